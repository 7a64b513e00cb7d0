"""One crawl as its nodes share it on the server."""

from __future__ import annotations

import itertools
import math
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from importlib.resources import files
from secrets import token_hex
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

LUA = files("semaphore_middleware.frontier") / "lua"
VERBS = ("exchange", "rest", "leave", "end")


def node_name(settings: Mapping[str, Any]) -> str:
    """This node's name: the add-on's, or one as unique where the add-on is left out."""
    return settings.get("SEMAPHORE_NODE") or f"{socket.gethostname()}-{os.getpid()}"


def lease_of(settings: Mapping[str, Any]) -> float:
    value = settings.get("CRAWL_LEASE", 15.0)
    try:
        lease = float(value)
    except (TypeError, ValueError):
        lease = 0.0
    if not 0 < lease < math.inf:
        raise ValueError(f"CRAWL_LEASE = {value!r}: a number of seconds above 0 is allowed")
    return lease


@dataclass(frozen=True, slots=True)
class Entry:
    """A request on its way to the server. Sent twice, it is queued once."""

    id: str
    score: float
    site: str
    data: bytes
    fingerprint: str = ""  # of none but the first request with this one; empty: queue it anyway


@dataclass(frozen=True, slots=True)
class Taken:
    """A request in a node's hand."""

    id: str
    site: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Wish:
    """What a node would take: of all sites in turn, but for those that are passed over."""

    requests: int = 0  # at most
    of_a_site: int = 0  # of these, at most
    passed_over: frozenset[str] = frozenset()


NOTHING = Wish()


@dataclass(frozen=True, slots=True)
class Answer:
    queued: list[bool]  # of each entry, False if it is known or too many
    taken: list[Taken]
    was_taken_for_dead: bool  # all that the node had in hand before is others' now


class Next(Enum):
    """What a node that has no work left is to do."""

    TAKE_MORE = b"more"
    WAIT = b"wait"
    CLOSE = b"done"


@dataclass(frozen=True, slots=True)
class Rest:
    next: Next
    seconds: float  # to wait at most, before it asks again


@dataclass(frozen=True)
class Counts:
    nodes: int  # that take part
    sites: int  # that have requests queued
    unfinished: int  # requests that are queued or in hand
    seen: int


class RunOverError(Exception):
    """The run of the crawl that this node has joined is over."""


class CrawlEndedError(RunOverError):
    """It has ended without this node, which came late or was taken for dead."""


class CrawlLostError(RunOverError):
    """The server has lost it, with all that was queued and seen."""


OVER = {"ENDED": CrawlEndedError, "LOST": CrawlLostError}


class SharedCrawl:
    """A crawl's keys, and what its nodes do with them.

        crawl:<name>:run           string  a random id, new for each run of the crawl
        crawl:<name>:nodes         set     who takes part
        crawl:<name>:working       zset    who may still produce requests -> until when, ms
        crawl:<name>:seen          set     fingerprints of all that was ever queued
        crawl:<name>:requests      hash    id -> request: all that is not done
        crawl:<name>:queue:<site>  zset    ids to be fetched -> score, the lowest first
        crawl:<name>:sites         zset    sites with such a queue -> turn, the lowest is next
        crawl:<name>:hand:<node>   hash    ids that a node has taken and not finished -> score, site
        crawl:<name>:ended:<run>   string  kept for a day after the end of a run

    A node works from the moment it takes a request until it rests. Its mark in `working` is
    renewed meanwhile. If it ends, by the server's clock, the node is taken for dead, and whoever
    takes requests or rests next puts back what it had in hand, to where it was. Should it wake, it
    may go on, but what others have in hand it cannot finish. The crawl is done when nobody works
    and nothing is queued; its keys are deleted then, so that its next run starts anew. The channel
    crawl:<name>:news tells those who rest when it is worth looking again.

    A node of a run that is over is told whether the run has ended or was lost with the server's
    data. Only one that has slept for more than a day takes the one for the other.
    """

    def __init__(
        self, server: Redis, name: str, node: str, lease: float = 15.0, max_pages: int = 0
    ) -> None:
        self.server = server
        self.name = name
        self.lease = lease
        self.max_pages = max_pages  # fingerprints that may be seen, by all nodes; 0 for no limit
        self.run = ""  # none joined yet
        # A node that is started again under its old name is not the one that died.
        self._life = token_hex(4)
        self.node = f"{node}:{self._life}"
        self._numbers = itertools.count(1)
        self.news = self.key("news")
        head = (LUA / "head.lua").read_text()
        self._scripts = {
            verb: server.register_script(head + (LUA / f"{verb}.lua").read_text()) for verb in VERBS
        }

    def key(self, part: str) -> bytes:
        return f"crawl:{self.name}:{part}".encode(errors="surrogateescape")

    def new_id(self) -> str:
        # The node's own, not the server's, which may repeat itself after it has lost data. Requests
        # with the same score leave in the order of their ids: first come, first served.
        return f"{next(self._numbers):012}:{self._life}"

    async def join(self) -> None:
        async with self.server.pipeline() as pipe:
            pipe.set(self.key("run"), token_hex(8), nx=True)
            pipe.get(self.key("run"))
            pipe.sadd(self.key("nodes"), self.node)
            self.run = (await pipe.execute())[1].decode()

    async def exchange(
        self,
        entries: Sequence[Entry] = (),
        done: Sequence[str] = (),
        wish: Wish = NOTHING,
        works: bool = False,
    ) -> Answer:
        """Queue these entries, forget what is done, take what is wished, in this order.

        `done`, here and below, are ids that the node has finished. A node that works is to say so:
        it counts as working for one lease from now, as does one that has taken something.
        """
        queued, taken, was_dead = await self._call(
            "exchange",
            *(round(self.lease * 1000), int(works), self.max_pages),
            len(entries),
            *itertools.chain.from_iterable(map(_fields, entries)),
            *(len(done), *done),
            *(wish.requests, wish.of_a_site, *wish.passed_over),
        )
        return Answer([bool(one) for one in queued], list(_taken(taken)), bool(was_dead))

    async def work(self) -> None:
        """Count as working for one lease from now."""
        await self.exchange(works=True)

    async def rest(self, done: Sequence[str] = ()) -> Rest:
        """Stop working; who finds that nobody works any more ends the crawl."""
        word, wait_ms = await self._call("rest", *done)
        return Rest(Next(word), wait_ms / 1000)

    async def leave(self, done: Sequence[str] = ()) -> None:
        """Stop taking part, and put back what is unfinished."""
        with suppress(RunOverError):
            await self._call("leave", *done)

    async def end(self) -> None:
        """End the crawl for all, done or not."""
        with suppress(RunOverError):
            await self._call("end")

    async def counts(self) -> Counts:
        async with self.server.pipeline() as pipe:
            pipe.scard(self.key("nodes"))
            pipe.zcard(self.key("sites"))
            pipe.hlen(self.key("requests"))
            pipe.scard(self.key("seen"))
            return Counts(*await pipe.execute())

    async def _call(self, verb: str, *arguments: Any) -> Any:
        parts = ("run", f"ended:{self.run}", "nodes", "working", "seen", "requests", "sites")
        # The last two are what the keys of all queues and of all hands begin with.
        keys = [self.key(part) for part in (*parts, "queue:", "hand:")]
        try:
            return await self._scripts[verb](keys, [self.news, self.node, self.run, *arguments])
        except ResponseError as error:
            word = str(error).partition(" ")[0]
            if word in OVER:
                raise OVER[word] from None
            raise


def _fields(entry: Entry) -> tuple[str, float, str, bytes, str]:
    return entry.id, entry.score, entry.site, entry.data, entry.fingerprint


def _taken(reply: list[bytes]) -> Iterable[Taken]:
    for id, site, data in zip(*[iter(reply)] * 3, strict=True):
        yield Taken(id.decode(), site.decode(), data)
