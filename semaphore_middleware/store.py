"""The scripts as typed calls: key names, batches, replies to dataclasses.

One `Store` belongs to one node. It outlives the links to the server, because it must remember what
it saw of each server's life.
"""

from __future__ import annotations

import binascii
import logging
import math
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha1
from importlib import resources
from typing import Any, Literal

from redis.exceptions import NoScriptError

from semaphore_middleware.connection import Life, Link, Server
from semaphore_middleware.errors import ServerUnreachableError
from semaphore_middleware.limits import Limit

logger = logging.getLogger(__name__)

Verb = Literal["acquire", "release", "renew"]
BUCKETS = 256  # never a setting: nodes that disagreed would each have a limit of their own
LIMITLESS = 2**53  # Lua's numbers count no further
NEWS = rb"(?:granted \d{1,15}|again \d{1,15} \d{1,15})"
MESSAGE = re.compile(rb"%b(?: %b)*" % (NEWS, NEWS))
MOST_PERMITS = 500  # in one call, so that no call keeps the server from others for long


@dataclass(frozen=True, slots=True)
class Ask:
    """A verb, for these permits of this scope. Only their numbers travel, never their names."""

    verb: Verb
    scope: str
    limit: Limit
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    ask: Ask
    granted: tuple[int, ...]
    """Of the caller's permits, not only of those asked about."""
    lost: tuple[int, ...]
    again: float | None
    """Seconds until asking again is worth it: only time is in the way of the head of the line."""


@dataclass(frozen=True, slots=True)
class Message:
    """What a node is told over its channel."""

    granted: tuple[int, ...] = ()
    again: tuple[tuple[int, float], ...] = ()
    """A permit's number, and seconds until asking for it again is worth it."""


@dataclass(frozen=True, slots=True)
class Member:
    """A permit as `inspect` shows it. Times are in seconds."""

    id: str
    age: float
    """Since it was granted; of a waiter, since it asked."""
    lease_left: float

    @property
    def node(self) -> str:
        return self.id.rpartition(":")[0]


@dataclass(frozen=True, slots=True)
class Inspection:
    """A scope as the server sees it."""

    scope: str
    limit: int | None
    """The limit in force; None while the scope is idle."""
    holders: tuple[Member, ...]
    waiters: tuple[Member, ...]
    """In the order of the line."""

    def __str__(self) -> str:
        limit = self.limit or "-"
        return f"{self.scope}: {len(self.holders)}/{limit} held, {len(self.waiters)} waiting"


class Store:
    def __init__(
        self,
        server: Server,
        prefix: str,
        node: str,
        lease: float,
        recovery_wait: float,
        on_event: Callable[[str], None],
    ) -> None:
        self._server = server
        self._prefix = prefix.encode("utf-8", "surrogatepass")
        self._node = node.encode("utf-8", "surrogatepass")
        self._lease = lease
        self._recovery_wait = recovery_wait
        self._life: Life | None = None
        self._quiet_since = -math.inf
        self._silent_until = -math.inf
        self._count = on_event
        prelude = _source("prelude")
        self._scripts = {verb: prelude + _source(verb) for verb in ("acquire", "release", "renew")}
        self._scripts |= {verb: _source(verb) for verb in ("hello", "inspect")}
        self._shas = {v: sha1(s.encode()).hexdigest() for v, s in self._scripts.items()}

    @property
    def channel(self) -> bytes:
        """Where this node is told of grants that another node's call has caused."""
        return self._channels + self._node

    @property
    def _channels(self) -> bytes:
        return self._prefix + b":grants:"

    # Calls ------------------------------------------------------------------------------------

    async def run(self, link: Link, asks: Sequence[Ask]) -> list[Answer]:
        """Send all asks in one go, in their order, and read all answers.

        Raises `ServerUnreachableError`; every ask can then be sent again without harm.
        """
        answers: list[Answer] = []
        while asks:
            batches = list(_batches(asks))
            replies = await self._evaluate(link, [self._pack(batch) for batch in batches])
            strangers: list[Ask] = []
            for batch, (_, per_scope) in zip(batches, replies, strict=True):
                for ask, reply in zip(batch, per_scope, strict=True):
                    if reply[0] == b"ok":
                        answers.append(_answer(ask, reply))
                    else:
                        strangers.append(ask)
            if strangers:
                await self._say_hello(link, {self._epoch_key(ask.scope) for ask in strangers})
            asks = strangers
        return answers

    async def inspect(self, link: Link, scope: str) -> Inspection:
        """Look at a scope without changing anything."""
        keys = self._keys(scope)[:4]
        ((limit, holders, waiters),) = await self._evaluate(link, [("inspect", len(keys), *keys)])
        return Inspection(scope, limit or None, _members(holders), _members(waiters))

    def read(self, payload: bytes) -> Message | None:
        """A message from the channel; None if it is not one of ours."""
        if not isinstance(payload, bytes) or not MESSAGE.fullmatch(payload):
            return None
        words = payload.split(b" ")
        granted: list[int] = []
        again: list[tuple[int, float]] = []
        while words:
            if words.pop(0) == b"granted":
                granted.append(int(words.pop(0)))
            else:
                again.append((int(words.pop(0)), int(words.pop(0)) / 1000))
        return Message(tuple(granted), tuple(again))

    async def _evaluate(self, link: Link, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """EVALSHA each (verb, number of keys, keys and arguments); loads what is missing."""
        commands = [("EVALSHA", self._shas[verb], *rest) for verb, *rest in calls]
        replies = await link.call(commands)
        missing = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if missing:
            await link.call([("SCRIPT", "LOAD", script) for script in self._scripts.values()])
            # All from the first one on: their order counts, and each can be sent twice.
            replies[missing[0] :] = await link.call(commands[missing[0] :])
        for reply in replies:
            if isinstance(reply, Exception):  # full, failing to save, a key that is not ours
                raise ServerUnreachableError(f"{self._server} refuses: {reply}") from reply
        return replies

    def _pack(self, batch: Sequence[Ask]) -> tuple[Any, ...]:
        assert self._life is not None
        keys: list[bytes] = []
        arguments: list[Any] = [
            self._channels,
            self._node,
            self._life.run_id,
            _ms(self._lease),
            random.random(),
        ]
        for ask in batch:
            keys += self._keys(ask.scope)
            limit, concurrency = ask.limit, min(ask.limit.concurrency, LIMITLESS)
            arguments += (concurrency, _ms(limit.delay), limit.jitter, len(ask.numbers))
            arguments += ask.numbers
        return (batch[0].verb, len(keys), *keys, *arguments)

    def _keys(self, scope: str) -> list[bytes]:
        name = scope.encode("utf-8", "surrogatepass")
        stem = b"%s:{%d}:" % (self._prefix, _bucket(name))
        parts = (b"held", b"line", b"waiting", b"state")
        return [stem + name + b":" + part for part in parts] + [stem + b"epoch"]

    def _epoch_key(self, scope: str) -> bytes:
        return self._keys(scope)[4]

    # The server's life ------------------------------------------------------------------------

    def meet(self, life: Life) -> None:
        """Note which life a new link ends in. Call it before the link is used."""
        known = self._life
        if known is None or (known.run_id, known.losses) != (life.run_id, life.losses):
            now = time.monotonic()
            if life.losses or not life.always_master:
                self._quiet_since = now  # lost something at some time, no one can tell when
            elif life.born_empty:
                self._quiet_since = -math.inf
            else:
                self._quiet_since = now - life.uptime
        self._life = life

    async def _say_hello(self, link: Link, epochs: Iterable[bytes]) -> None:
        """Record this life. Nothing may be granted until all permits of the life before are over.

        An epoch that is merely missing may have been thrown away with everything else, or never
        have been there, or have expired: the server's own counts tell.
        """
        life = await self._server.look_at(link)
        self.meet(life)
        wait = max(0.0, self._recovery_wait - (time.monotonic() - self._quiet_since))
        kept = max(60.0, 4 * self._lease)
        arguments = (life.run_id, _ms(wait), _ms(kept))
        calls = [("hello", 1, epoch, *arguments) for epoch in epochs]
        waits = await self._evaluate(link, calls)
        silent = max(waits) / 1000
        now = time.monotonic()
        if silent > 0 and now >= self._silent_until:
            self._count("store_losses")
            logger.warning(
                "%s has just started, or has lost its data. No permit is granted for %.1f s, until "
                "all that were granted before are given back or over.",
                self._server,
                silent,
            )
        self._silent_until = max(self._silent_until, now + silent)


def _source(verb: str) -> str:
    return resources.files("semaphore_middleware.lua").joinpath(f"{verb}.lua").read_text("utf-8")


def _bucket(name: bytes) -> int:
    return binascii.crc_hqx(name, 0) % BUCKETS  # CRC16 as in Redis Cluster


def _ms(seconds: float) -> int:
    return math.ceil(seconds * 1000)


def _batches(asks: Sequence[Ask]) -> Iterator[list[Ask]]:
    """Cut the asks into calls: of one verb each, none too long, in the same order."""
    batch: list[Ask] = []
    size = 0
    for ask in asks:
        for start in range(0, len(ask.numbers), MOST_PERMITS):
            numbers = ask.numbers[start : start + MOST_PERMITS]
            if batch and (batch[0].verb != ask.verb or size + len(numbers) > MOST_PERMITS):
                yield batch
                batch, size = [], 0
            batch.append(Ask(ask.verb, ask.scope, ask.limit, numbers))
            size += len(numbers)
    if batch:
        yield batch


def _answer(ask: Ask, reply: Sequence[Any]) -> Answer:
    _, again, granted, lost = reply
    return Answer(
        ask,
        tuple(int(number) for number in granted),
        tuple(int(number) for number in lost),
        again / 1000 if again >= 0 else None,
    )


def _members(raw: Iterable[Sequence[Any]]) -> tuple[Member, ...]:
    return tuple(
        Member(id.decode("utf-8", "surrogatepass"), age / 1000, left / 1000)
        for id, age, left in raw
    )
