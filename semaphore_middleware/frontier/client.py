"""A shared crawl on the Redis server: its keys, and what its nodes do with them."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from secrets import token_hex
from typing import Any

from semaphore_middleware.frontier.keys import CrawlKeys, Places, site_of
from semaphore_middleware.frontier.scripts import script
from semaphore_middleware.model.hosts import encoded
from semaphore_middleware.redis.connection import Connection
from semaphore_middleware.redis.location import Server
from semaphore_middleware.redis.rights import try_rights
from semaphore_middleware.redis.scripts import evaluate

CALL_TIMEOUT_S = 3.0
DEFAULT_PREFIX = "crawl"


def node_name(settings: Mapping[str, Any]) -> str:
    """This node's name: the add-on's; without the add-on, host name and process id."""
    return settings.get("SEMAPHORE_NODE") or f"{socket.gethostname()}-{os.getpid()}"


@dataclass(frozen=True, slots=True)
class NewRequest:
    """An encoded request to be queued. Sent twice with the same place, it is queued once."""

    place: bytes
    data: bytes
    fingerprint: str = ""  # queued only if no other had this one; empty: queued in any case


@dataclass(frozen=True, slots=True)
class TakenRequest:
    """An encoded request that this node has taken from its site's queue and not finished."""

    place: bytes
    data: bytes

    @property
    def site(self) -> str:
        """The site in whose queue it was."""
        return site_of(self.place)


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


OVER = {b"ended": CrawlEndedError, b"lost": CrawlLostError}  # by a script's reply


class CrawlClient:
    """One node's access to a shared crawl. Keeps no requests itself. Not for concurrent calls.

    A crawl named <name> has these keys on the server, each behind `{<prefix>:<name>}:`

        run       hash    id: random, new for each run of the crawl; the crawl's clock; when the run
                          has ended; the id of the one before
        nodes     zset    node -> until when it counts, ms: all that were heard of
        working   zset    node -> end of its lease, ms
        seen      set     fingerprints of all requests that were ever queued
        requests  hash    place -> request: all that are not finished
        queue     zset    the places of those that are to be taken, in order
        sites     zset    site with queued requests -> turn, the lowest is next
        taken     zset    node, zero byte, place: taken and not finished

    A node works from when it joins until it is idle, and again from when it takes a request. While
    it works it has a lease, which each `sync` renews. When the lease expires, by the crawl's clock
    on the server, the node counts as dead: the next call of any node that takes requests or is idle
    puts what it had taken back into the queues, at the old place. A node that comes back may go on,
    but cannot finish what others have taken since.

    The crawl is done when no node works and nothing is queued. Its keys are then deleted, so that
    the next run starts anew; that the run has ended is kept for a day. A message on the channel
    `notifications` tells idle nodes to ask again.

    A node whose run is over gets `CrawlEndedError`, or `CrawlLostError` if the server has lost its
    data. Only a node that was suspended for more than a day gets the latter for an ended run.

    Calls raise `ServerUnreachableError` if the server cannot be reached just now; what was sent may
    have been done, and can be sent again. They raise `ServerRefusedError` where waiting would not
    help.
    """

    def __init__(
        self,
        url: str,
        name: str,
        node: str,
        lease: float = 15.0,
        max_pages: int = 0,
        prefix: str = DEFAULT_PREFIX,
        url_from: str = "the server's URL",
    ) -> None:
        """`lease` in seconds; `max_pages`: fingerprints of all nodes together, 0 for no limit.
        `url_from` says in errors where the URL was set.

        Raises `SettingsError` for a URL that cannot be read.
        """
        self.name = name
        self.lease = lease
        self.max_pages = max_pages
        self.keys = CrawlKeys(prefix, name)
        self.server = Server(url, CALL_TIMEOUT_S, url_from, self.keys.tag)
        self.run = b""  # none joined yet
        # A process that reuses a dead one's name is another node.
        self.node = f"{node}:{token_hex(4)}"
        self._places = Places()
        self._connection: Connection | None = None
        self.life = ""
        """The server's life in which the last call was made: another one may have forgotten some of
        the last calls.
        """

    def new_place(self, site: str, score: float) -> bytes:
        """A place for a new request in a site's queue: the lowest score leaves first."""
        return self._places.new(site, score)

    # The connection -----------------------------------------------------------------------------

    async def connect(self) -> Connection:
        """The open connection, or a new one."""
        if self._connection is None or not self._connection.is_open:
            self._connection = await self.server.connect()
            self.life = self._connection.life
        return self._connection

    async def look(self) -> None:
        """Make sure that the server still is the master, and in which life."""
        connection = await self.connect()
        connection.look_for_master()
        await connection.check_server()
        self.life = connection.life

    async def check_rights(self) -> None:
        """Try everything that a node may do on the server. Leaves nothing there. A second
        connection is opened, to subscribe.

        Raises `ServerRefusedError`, which names what is missing.
        """
        names = (*self.keys.trials, *self.keys.all)
        tag = f"{{{self.keys.tag}}}"
        await try_rights(await self.connect(), names, self.keys.channel, tag, script)
        subscription = await self.server.connect()
        try:
            await subscription.subscribe([self.keys.channel])
        finally:
            await subscription.close()

    async def disconnect(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            await self._connection.close()

    # Calls --------------------------------------------------------------------------------------

    async def join(self) -> int:
        """Join the crawl's run, or begin one. Returns how many requests are not finished."""
        self.run, unfinished = await self._call("join", token_hex(8))
        return int(unfinished)

    async def sync(
        self,
        new: Sequence[NewRequest] = (),
        finished: Sequence[bytes] = (),
        demand: Demand = NO_DEMAND,
        working: bool = False,
    ) -> SyncReply:
        """Queue new requests, forget finished ones (by place), take others: in this order.

        If a part fails, the later parts are not done. The lease begins, or is renewed, if `working`
        or if something is taken. Raises `RunOverError`.
        """
        queued, taken, lease_expired = await self._call(
            "sync",
            *(int(working), self.max_pages, len(new)),
            *itertools.chain.from_iterable((one.place, one.data, one.fingerprint) for one in new),
            *(len(finished), *finished),
            *(demand.requests, demand.per_site, *map(encoded, demand.skipped_sites)),
        )
        return SyncReply([bool(one) for one in queued], list(_taken(taken)), bool(lease_expired))

    async def renew_lease(self) -> None:
        """Count as working for one lease from now. Raises `RunOverError`."""
        await self.sync(working=True)

    async def idle(self, finished: Sequence[bytes] = ()) -> IdleReply:
        """Stop working. If no node works and nothing is queued, this ends the crawl.

        Raises `RunOverError`.
        """
        step, wait_ms = await self._call("idle", *finished)
        return IdleReply(NextStep(step), wait_ms / 1000)

    async def leave(self, finished: Sequence[bytes] = ()) -> None:
        """Leave the crawl; what this node has taken and not finished goes back to the queues."""
        with suppress(RunOverError):
            await self._call("leave", *finished)

    async def end(self) -> None:
        """End the crawl for all nodes, done or not."""
        with suppress(RunOverError):
            await self._call("end")

    async def counts(self) -> Counts:
        """How many nodes, sites and requests there are now."""
        connection = await self.connect()
        sizes = (("ZCARD", "nodes"), ("ZCARD", "sites"), ("HLEN", "requests"), ("SCARD", "seen"))
        commands = [(command, self.keys.of(part)) for command, part in sizes]
        return Counts(*await connection.execute(commands))

    async def _call(self, name: str, *arguments: Any) -> Any:
        keys, lease_ms = self.keys, round(self.lease * 1000)
        head = (keys.channel, encoded(self.node), self.run, lease_ms)
        call = (name, len(keys.all), *keys.all, *head, *arguments)
        (reply,) = await evaluate(await self.connect(), [call], script)
        if len(reply) == 1 and reply[0] in OVER:
            raise OVER[reply[0]]
        return reply


def _taken(reply: list[bytes]) -> Iterable[TakenRequest]:
    for place, data in zip(*[iter(reply)] * 2, strict=True):
        yield TakenRequest(place, data)
