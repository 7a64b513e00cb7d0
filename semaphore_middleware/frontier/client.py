"""A shared crawl on the Redis server: its keys, and what its nodes do with them."""

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
SCRIPTS = ("sync", "idle", "leave", "end")  # each with common.lua in front of it


def script(name: str) -> str:
    """The source of a script, as it is sent to the server."""
    return "".join((LUA / f"{file}.lua").read_text("utf-8") for file in ("common", name))


def node_name(settings: Mapping[str, Any]) -> str:
    """This node's name: the add-on's; without the add-on, host name and process id."""
    return settings.get("SEMAPHORE_NODE") or f"{socket.gethostname()}-{os.getpid()}"


def lease_of(settings: Mapping[str, Any]) -> float:
    """The setting `CRAWL_LEASE`, in seconds. Raises `ValueError` unless it is a number above 0."""
    value = settings.get("CRAWL_LEASE", 15.0)
    try:
        lease = float(value)
    except (TypeError, ValueError):
        lease = 0.0
    if not 0 < lease < math.inf:
        raise ValueError(f"CRAWL_LEASE = {value!r}: a number of seconds above 0 is allowed")
    return lease


@dataclass(frozen=True, slots=True)
class NewRequest:
    """An encoded request to be queued. Sent twice with the same id, it is queued once."""

    id: str
    score: float  # the lowest leaves the site's queue first
    site: str
    data: bytes
    fingerprint: str = ""  # queued only if no other had this one; empty: queued in any case


@dataclass(frozen=True, slots=True)
class TakenRequest:
    """An encoded request that this node has taken from its site's queue and not finished."""

    id: str
    site: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Demand:
    """How many requests a node would take, of which sites. The sites take turns."""

    requests: int = 0  # at most
    per_site: int = 0  # of these, at most
    skipped_sites: frozenset[str] = frozenset()


NO_DEMAND = Demand()


@dataclass(frozen=True, slots=True)
class SyncReply:
    """The server's reply to `CrawlClient.sync`."""

    queued: list[bool]  # for each new request; False: a duplicate, or one page too many
    taken: list[TakenRequest]
    lease_expired: bool  # before this call: all that the node had taken went back to the queues


class NextStep(Enum):
    """What a node without requests is to do."""

    TAKE_MORE = b"more"
    WAIT = b"wait"
    CLOSE = b"done"


@dataclass(frozen=True, slots=True)
class IdleReply:
    """The server's reply to `CrawlClient.idle`."""

    next_step: NextStep
    wait_s: float  # ask again after this time at the latest


@dataclass(frozen=True)
class Counts:
    """The size of a shared crawl."""

    nodes: int  # that have joined and not left
    sites: int  # with queued requests
    unfinished: int  # requests that are queued or taken
    seen: int  # fingerprints


class RunOverError(Exception):
    """The run of the crawl that this node has joined is over."""


class CrawlEndedError(RunOverError):
    """The crawl has ended without this node: it joined late, or its lease expired."""


class CrawlLostError(RunOverError):
    """The server has lost the crawl: all queued requests and all fingerprints."""


ERRORS = {"ENDED": CrawlEndedError, "LOST": CrawlLostError}  # by the reply's first word


class CrawlClient:
    """One node's access to a shared crawl. Keeps no requests itself.

    A crawl named <name> has these keys on the server:

        crawl:<name>:run            string  a random id, new for each run of the crawl
        crawl:<name>:nodes          set     the nodes that have joined and not left
        crawl:<name>:working        zset    node -> end of its lease, ms
        crawl:<name>:seen           set     fingerprints of all requests that were ever queued
        crawl:<name>:requests       hash    id -> request: all that are not finished
        crawl:<name>:queue:<site>   zset    id -> score: requests to be taken, the lowest first
        crawl:<name>:sites          zset    site with such a queue -> turn, the lowest is next
        crawl:<name>:taken:<node>   hash    id -> score and site: taken and not finished
        crawl:<name>:ended:<run>    string  exists for a day after the end of a run

    A node works from the moment it takes a request until it is idle. While it works it has a lease,
    which each `sync` renews. When the lease expires, by the server's clock, the node counts as
    dead: the next call of any node that takes requests or is idle puts what it had taken back into
    the queues, at the old place. A node that comes back may go on, but cannot finish what others
    have taken since.

    The crawl is done when no node works and nothing is queued. Its keys are then deleted, so that
    the next run starts anew. A message on the channel crawl:<name>:notifications tells idle nodes
    to ask again.

    A node whose run is over gets `CrawlEndedError`, or `CrawlLostError` if the server has lost its
    data. Only a node that was suspended for more than a day gets the latter for an ended run.
    """

    def __init__(
        self, server: Redis, name: str, node: str, lease: float = 15.0, max_pages: int = 0
    ) -> None:
        """`lease` in seconds; `max_pages`: fingerprints of all nodes together, 0 for no limit."""
        self.server = server
        self.name = name
        self.lease = lease
        self.max_pages = max_pages
        self.run = ""  # none joined yet
        # A process that reuses a dead one's name is another node.
        self._process_id = token_hex(4)
        self.node = f"{node}:{self._process_id}"
        self._numbers = itertools.count(1)
        self.channel = self.key("notifications")
        self._scripts = {name: server.register_script(script(name)) for name in SCRIPTS}

    def key(self, part: str) -> bytes:
        """The name of one of the crawl's keys."""
        return f"crawl:{self.name}:{part}".encode(errors="surrogateescape")

    def new_id(self) -> str:
        """An id for a new request."""
        # Made here: the server might repeat itself after it has lost data. Redis orders ids of the
        # same score by name, so a site's queue is first come, first served.
        return f"{next(self._numbers):012}:{self._process_id}"

    async def join(self) -> None:
        """Join the crawl's run, or begin one."""
        async with self.server.pipeline() as pipe:
            pipe.set(self.key("run"), token_hex(8), nx=True)
            pipe.get(self.key("run"))
            pipe.sadd(self.key("nodes"), self.node)
            self.run = (await pipe.execute())[1].decode()

    async def sync(
        self,
        new: Sequence[NewRequest] = (),
        finished: Sequence[str] = (),
        demand: Demand = NO_DEMAND,
        working: bool = False,
    ) -> SyncReply:
        """Queue new requests, forget finished ones (by id), take others: in this order.

        If a part fails, the later parts are not done. The lease begins, or is renewed, if `working`
        or if something is taken. Raises `RunOverError`.
        """
        queued, taken, lease_expired = await self._call(
            "sync",
            *(round(self.lease * 1000), int(working), self.max_pages),
            len(new),
            *itertools.chain.from_iterable(map(_fields, new)),
            *(len(finished), *finished),
            *(demand.requests, demand.per_site, *demand.skipped_sites),
        )
        return SyncReply([bool(one) for one in queued], list(_taken(taken)), bool(lease_expired))

    async def renew_lease(self) -> None:
        """Count as working for one lease from now. Raises `RunOverError`."""
        await self.sync(working=True)

    async def idle(self, finished: Sequence[str] = ()) -> IdleReply:
        """Stop working. If no node works and nothing is queued, this ends the crawl.

        Raises `RunOverError`.
        """
        step, wait_ms = await self._call("idle", *finished)
        return IdleReply(NextStep(step), wait_ms / 1000)

    async def leave(self, finished: Sequence[str] = ()) -> None:
        """Leave the crawl; what this node has taken and not finished goes back to the queues."""
        with suppress(RunOverError):
            await self._call("leave", *finished)

    async def end(self) -> None:
        """End the crawl for all nodes, done or not."""
        with suppress(RunOverError):
            await self._call("end")

    async def counts(self) -> Counts:
        """How many nodes, sites and requests there are now."""
        async with self.server.pipeline() as pipe:
            pipe.scard(self.key("nodes"))
            pipe.zcard(self.key("sites"))
            pipe.hlen(self.key("requests"))
            pipe.scard(self.key("seen"))
            return Counts(*await pipe.execute())

    async def _call(self, script: str, *arguments: Any) -> Any:
        parts = ("run", f"ended:{self.run}", "nodes", "working", "seen", "requests", "sites")
        # The last two are prefixes: of the keys of all queues, and of all nodes' taken requests.
        keys = [self.key(part) for part in (*parts, "queue:", "taken:")]
        try:
            return await self._scripts[script](
                keys, [self.channel, self.node, self.run, *arguments]
            )
        except ResponseError as error:
            word = str(error).partition(" ")[0]
            if word in ERRORS:
                raise ERRORS[word] from None
            raise


def _fields(request: NewRequest) -> tuple[str, float, str, bytes, str]:
    return request.id, request.score, request.site, request.data, request.fingerprint


def _taken(reply: list[bytes]) -> Iterable[TakenRequest]:
    for id, site, data in zip(*[iter(reply)] * 3, strict=True):
        yield TakenRequest(id.decode(), site.decode(), data)
