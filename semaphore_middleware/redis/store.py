"""The scripts as typed calls: key names, batches, replies to dataclasses.

One `Store` belongs to one node. It outlives the links to the server, because it must remember what
it saw of each server's life.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from hashlib import sha1
from typing import Any, Self

from redis.exceptions import NoScriptError

from semaphore_middleware.errors import ServerUnreachableError
from semaphore_middleware.model.feedback import Backoff
from semaphore_middleware.model.hosts import encoded
from semaphore_middleware.model.lease import STEP
from semaphore_middleware.model.rules import LIMITLESS
from semaphore_middleware.redis.connection import Link, Server
from semaphore_middleware.redis.keys import Keys
from semaphore_middleware.redis.protocol import Answer, Ask, batches
from semaphore_middleware.redis.scripts import SCRIPTS, script
from semaphore_middleware.redis.server_state import Life

logger = logging.getLogger(__name__)

# Seconds that an epoch is kept after its last use: a wall clock that is set an hour ahead must not
# expire it, for a node that is new could not tell that from an idle server.
KEPT = 3 * 3600.0


class Store:
    def __init__(
        self,
        server: Server,
        keys: Keys,
        node: str,
        lease: float,
        recovery_wait: float,
        on_loss: Callable[[float], None],
        backoff: Backoff = Backoff(),  # noqa: B008 - it is frozen
    ) -> None:
        self._server = server
        self._backoff = backoff
        self._keys = keys
        self._node = encoded(node)
        self._lease = lease
        self._recovery_wait = recovery_wait
        self._step = _ms(STEP * lease)
        self._life: Life | None = None
        self._seen: dict[bytes, float] = {}  # epoch key -> when it was last as it should be
        self._quiet_since = -math.inf
        self._silent_until = -math.inf
        self._on_loss = on_loss  # told for how many seconds no permit is granted
        self._scripts = {name: script(name) for name in SCRIPTS}
        self._shas = {v: sha1(s.encode()).hexdigest() for v, s in self._scripts.items()}

    @property
    def channels(self) -> tuple[bytes, bytes]:
        """Where this node is told of grants that another node's call has caused, and where all are
        told that operators have changed something.
        """
        return self._keys.grants + self._node, self._keys.changes

    def speaking_as(self, node: str) -> Self:
        """The same, but what it says counts as that node's."""
        other = copy(self)
        other._node = encoded(node)
        return other

    # Calls ------------------------------------------------------------------------------------

    async def run(self, link: Link, asks: Sequence[Ask], first_apart: bool = False) -> list[Answer]:
        """Send all asks in one go, in their order, and read all answers.

        `first_apart`: somebody waits for what the first call, a release as a rule, sets free.
        Raises `ServerUnreachableError`; every ask can then be sent again without harm.
        """
        answers: list[Answer] = []
        while asks:
            calls = list(batches(asks))
            packed = [self._pack(call) for call in calls]
            replies = await self._evaluate(link, packed, first_apart)
            strangers: list[Ask] = []
            now = time.monotonic()
            for call, per_scope in zip(calls, replies, strict=True):
                for ask, reply in zip(call, per_scope, strict=True):
                    if reply[0] == b"ok":
                        answers.append(Answer.read(ask, reply))
                        self._seen[self._keys.of(ask.scope).epoch] = now
                    else:
                        strangers.append(ask)
            if strangers:
                await self._say_hello(link, {self._keys.of(ask.scope).epoch for ask in strangers})
            asks = strangers
        return answers

    async def inspect(self, link: Link, scopes: Sequence[str]) -> list[Any]:
        """Look at scopes without changing anything: a raw reply for each."""
        keys = [self._keys.of(scope) for scope in scopes]
        calls = [("inspect", len(k), *k, self._step) for k in keys]
        return await self._evaluate(link, calls) if calls else []

    async def forgive(self, link: Link, scope: str) -> None:
        """Forget that a site has said "not now"."""
        await self._evaluate(link, [("forgive", 1, self._keys.of(scope).state)])

    async def command(self, link: Link, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Plain commands, in one go. Raises `ServerUnreachableError` if the server refuses one."""
        return self._check(await link.call(commands))

    async def _evaluate(
        self, link: Link, calls: Sequence[tuple[Any, ...]], first_apart: bool = False
    ) -> list[Any]:
        """EVALSHA each (verb, number of keys, keys and arguments); loads what is missing."""
        commands = [("EVALSHA", self._shas[verb], *rest) for verb, *rest in calls]
        replies = await link.call(commands, first_apart)
        missing = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if missing:
            await link.call([("SCRIPT", "LOAD", script) for script in self._scripts.values()])
            # All from the first one on: their order counts, and each can be sent twice.
            replies[missing[0] :] = await link.call(commands[missing[0] :])
        return self._check(replies)

    def _check(self, replies: list[Any]) -> list[Any]:
        for reply in replies:
            if isinstance(reply, Exception):  # full, failing to save, a key that is not ours
                raise ServerUnreachableError(f"{self._server} refuses: {reply}") from reply
        return replies

    def _pack(self, batch: Sequence[Ask]) -> tuple[Any, ...]:
        assert self._life is not None
        keys: list[bytes] = []
        arguments: list[Any] = [
            self._keys.grants,
            self._node,
            self._life.run_id,
            int(self._life.evicts),
            _ms(self._lease),
            self._step,
            _ms(KEPT),
            random.random(),
        ]
        for ask in batch:
            keys += self._keys.of(ask.scope)
            limit, concurrency = ask.limit, min(ask.limit.concurrency, LIMITLESS)
            report = ask.report.packed(self._backoff) if ask.report else b""
            arguments += (concurrency, _ms(limit.delay), limit.jitter, int(limit.adaptive), report)
            arguments += (len(ask.numbers), *ask.numbers)
        return (batch[0].verb, len(keys), *keys, *arguments)

    # The server's life ------------------------------------------------------------------------

    def meet(self, life: Life) -> None:
        """Note which life a new link ends in. Call it before the link is used."""
        known = self._life
        if known is None or known.run_id != life.run_id:
            self._seen.clear()
            if life.evicts:
                logger.warning(
                    "%s throws keys away when its memory is full. Each time, no permit is granted "
                    "for a while: set its maxmemory-policy to noeviction.",
                    self._server,
                )
        if known is None or known.condition != life.condition:
            now = time.monotonic()
            if life.may_have_lost:
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
        now = time.monotonic()
        if any(now - self._seen.get(epoch, -math.inf) < KEPT / 2 for epoch in epochs):
            self._quiet_since = now  # it was there in this very life, and cannot have expired since
        elif await self._others_have_waited(link, life):
            self._quiet_since = -math.inf
        wait = max(0.0, self._recovery_wait - (now - self._quiet_since))
        arguments = (life.run_id, int(life.evicts), _ms(wait), _ms(KEPT), self._step)
        calls = [("hello", 1, epoch, *arguments) for epoch in epochs]
        waits = await self._evaluate(link, calls)
        silent = max(waits) / 1000
        if silent > 0 and now >= self._silent_until:
            self._on_loss(silent)
            logger.warning(
                "%s has just started, or has lost its data. No permit is granted for %.1f s, until "
                "all that were granted before are given back or over.",
                self._server,
                silent,
            )
        self._silent_until = max(self._silent_until, now + silent)

    async def _others_have_waited(self, link: Link, life: Life) -> bool:
        """On a server that was flushed at some time, not each new crawl need wait: a note tells
        that a node has seen no loss since, for a whole recovery wait. Writes it if this one has.
        """
        if not life.may_have_lost:
            return False
        note, condition = self._keys.quiet, repr(life.condition).encode()
        if time.monotonic() - self._quiet_since >= self._recovery_wait:
            await link.call([("SET", note, condition, "PX", _ms(KEPT))])
            return True
        (reply,) = await link.call([("GET", note)])
        return bool(reply == condition)


def _ms(seconds: float) -> int:
    return math.ceil(seconds * 1000)
