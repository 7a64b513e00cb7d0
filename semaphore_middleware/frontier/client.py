"""A shared crawl on the Redis server: its keys, and what its nodes do with them."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

from semaphore_middleware.frontier import state
from semaphore_middleware.frontier.state import Counts, CrawlKeys, Places, commands_for, site_of
from semaphore_middleware.model import chance
from semaphore_middleware.model.hosts import encoded
from semaphore_middleware.redis.environment import default_node
from semaphore_middleware.redis.link import Link
from semaphore_middleware.redis.location import Server
from semaphore_middleware.redis.rights import try_rights
from semaphore_middleware.redis.scripts import evaluate

CALL_TIMEOUT_S = 3.0
DEFAULT_PREFIX = "crawl"


def node_name(settings: Mapping[str, Any]) -> str:
    """This node's name: the add-on's; without the add-on, host name and process id."""
    return settings.get("SEMAPHORE_NODE") or default_node()


@dataclass(frozen=True, slots=True)
class NewRequest:
    """An encoded request to be queued. Sent twice with the same place, it is queued once."""

    place: bytes
    data: bytes
    fingerprint: bytes = b""  # queued only if no other had this one; empty: queued in any case


@dataclass(frozen=True, slots=True)
class TakenRequest:
    """An encoded request that this node has taken from its site's queue and not finished."""

    place: bytes
    data: bytes
    tries: int = 0  # how many nodes have died with it, or could not read it

    @property
    def site(self) -> str:
        """The site in whose queue it was."""
        return site_of(self.place)


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """A request that this node has taken and finished."""

    place: bytes
    is_page: bool  # it has brought the spider a response


@dataclass(frozen=True, slots=True)
class Demand:
    """How many requests a node would take, of which sites. The sites take turns."""

    requests: int = 0  # at most
    per_site: int = 0  # of these, at most
    skipped_sites: frozenset[str] = frozenset()
    suspect: bool = True  # one of them may be one that nodes have failed with


NO_DEMAND = Demand()


@dataclass(frozen=True, slots=True)
class SyncReply:
    """The server's reply to `CrawlClient.sync`."""

    queued: list[bool]  # for each new request; False: a duplicate
    taken: list[TakenRequest]
    lease_expired: bool  # before this call: all that the node had taken went back to the queues
    set_aside: list[bytes]  # requests that were tried too often: their data


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
    set_aside: list[bytes]  # requests that were tried too often: their data


class RunOverError(Exception):
    """The run of the crawl that this node has joined is over."""


class CrawlEndedError(RunOverError):
    """The crawl has ended, before this node came or without it."""

    def __init__(self, ago: float = 0.0) -> None:
        super().__init__("the crawl has ended")
        self.ago = ago
        """Seconds since then, by the server's wall clock, as `join` says them."""


class OtherCrawlError(Exception):
    """The crawl of this name has another spider, other arguments, or another version."""

    def __init__(self, identity: dict[str, str]) -> None:
        super().__init__("the crawl of this name is another one")
        self.identity = identity
        """What the nodes of that crawl have in common."""


class CrawlLostError(RunOverError):
    """The server has lost the crawl: all queued requests and all fingerprints."""


OVER = {b"ended": CrawlEndedError, b"lost": CrawlLostError}  # by a script's reply


class CrawlClient:
    """One node's access to a shared crawl. Keeps no requests itself. Not for concurrent calls.

    A crawl named <name> has these keys on the server, each behind `{<prefix>:<name>}:`

        run       hash    id: random, new for each run of the crawl; what its nodes have in common;
                          pages fetched; the crawl's clock; when the run has ended; the id before
        nodes     zset    node -> until when it counts, ms: all that were heard of
        working   zset    node -> end of its lease, ms
        seen      hash    fingerprints of all requests that were ever queued, shortened to 8
                          bytes: bucket -> some of them; count -> how many there are
        requests  hash    place -> request: all that are not finished
        queue     zset    the places of those that are to be taken, in order
        sites     zset    site with queued requests -> turn, the lowest is next; below 0 if all of
                          them are suspects
        taken     zset    node, zero byte, place: taken and not finished
        suspects  zset    places like those in `queue`, of requests that a node has failed with
        tries     hash    place -> how many nodes have failed with this request
        aside     set     places of requests that were tried three times, and that nobody gets

    A node works from when it joins until it is idle, and again from when it takes a request. While
    it works it has a lease, which each `sync` renews. When the lease expires, by the crawl's clock
    on the server, the node counts as dead: the next call of any node that takes requests or is idle
    puts what it had taken back. A node that comes back may go on, but cannot finish what others
    have taken since.

    A request may be what has killed its node. So what a dead node had taken, and what a node cannot
    read, becomes a suspect: a node has one of these at a time, so that the next death tells of it
    alone. A request that three nodes have failed with is set aside.

    The crawl is done when no node works and nothing is queued. All its keys but `run` are then
    deleted; `run` is kept for 30 days, so that a node that is started late, or again, does not
    begin the crawl once more. If requests were set aside, they and `seen` are kept, too. A message
    on the channel `notifications` tells idle nodes to ask again.

    A node whose run is over gets `CrawlEndedError`, or `CrawlLostError` if the server has lost its
    data.

    A server at its `maxmemory` refuses nodes that join, and new requests; all else goes on there.

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
        """`lease` in seconds; `max_pages`: of all nodes together, 0 for no limit.
        `url_from` says in errors where the URL was set.

        Raises `SettingsError` for a URL that cannot be read.
        """
        self.name = name
        self.lease = lease
        self.max_pages = max_pages
        self.keys = CrawlKeys(prefix, name)
        server = Server(url, CALL_TIMEOUT_S, url_from, self.keys.hash_tag)
        self.link = Link(server, lambda: "The crawl's requests wait until it can be used again")
        self.run = b""  # none joined yet
        # A process that reuses a dead one's name is another node.
        self.node = f"{node}:{chance.token(4)}"
        self._places = Places()

    def new_place(self, site: str, score: float) -> bytes:
        """A place for a new request in a site's queue: the lowest score leaves first."""
        return self._places.new(site, score)

    async def check_rights(self) -> None:
        """Try everything that a node may do on the server. Leaves nothing there.

        Raises `ServerRefusedError`, which names what is missing.
        """
        keys = self.keys
        names = (*keys.trials, *keys.all)
        await self.link.use(
            lambda connection: try_rights(connection, names, keys.channel, keys.tag, state.script)
        )
        await self.link.check_subscription([keys.channel])

    # Calls --------------------------------------------------------------------------------------

    async def join(self, identity: dict[str, str] | None = None, new_run: bool = False) -> int:
        """Join the crawl's run, or begin the first one; with `new_run` also a further one, if the
        last one has ended. `identity` is what all nodes have in common; None, from one that takes
        no requests, goes with any. Returns how many requests are not finished.

        Raises `CrawlEndedError` if the last run has ended, and `OtherCrawlError`.
        """
        packed = json.dumps(identity, sort_keys=True) if identity is not None else ""
        run, rest = await self._call(
            "join", chance.token(8), packed, int(new_run), though_full=False
        )
        if run == b"ended":
            raise CrawlEndedError(rest / 1000)
        if run == b"other":
            raise OtherCrawlError(json.loads(rest))
        self.run = run
        return int(rest)

    async def sync(
        self,
        new: Sequence[NewRequest] = (),
        finished: Sequence[FinishedRequest] = (),
        demand: Demand = NO_DEMAND,
        working: bool = False,
        unreadable: Sequence[bytes] = (),
    ) -> SyncReply:
        """Queue new requests, forget finished ones, give back unreadable ones (by place), take
        others: in this order.

        If a part fails, the later parts are not done. The lease begins, or is renewed, if `working`
        or if something is taken. Raises `RunOverError`.
        """
        queued, taken, lease_expired, set_aside = await self._call(
            "sync",
            *(int(working), len(new)),
            *itertools.chain.from_iterable(map(self._new_fields, new)),
            *_fields(finished),
            *(len(unreadable), *unreadable),
            *(demand.requests, demand.per_site, int(demand.suspect)),
            *map(encoded, demand.skipped_sites),
            though_full=not new,
        )
        return SyncReply(
            [bool(one) for one in queued], list(_taken(taken)), bool(lease_expired), set_aside
        )

    async def renew_lease(self) -> None:
        """Count as working for one lease from now. Raises `RunOverError`."""
        await self.sync(working=True)

    async def idle(self, finished: Sequence[FinishedRequest] = ()) -> IdleReply:
        """Stop working. If no node works and nothing is queued, this ends the crawl.

        Raises `RunOverError`.
        """
        step, wait_ms, set_aside = await self._call("idle", *_fields(finished))
        return IdleReply(NextStep(step), wait_ms / 1000, set_aside)

    async def leave(self, finished: Sequence[FinishedRequest] = ()) -> None:
        """Leave the crawl; what this node has taken and not finished goes back to the queues."""
        with suppress(RunOverError):
            await self._call("leave", *_fields(finished))

    # What operators do; no run need have been joined --------------------------------------------

    async def drop(self) -> bool:
        """End the crawl for all nodes, done or not, and forget it. False if there is none."""
        (was_there,) = await self._call("drop")
        return bool(was_there)

    async def retry(self) -> int:
        """Put requests that were set aside back into the queues; how many these were. A crawl that
        has ended goes on with them as soon as a node joins.
        """
        (count,) = await self._call("retry")
        return int(count)

    async def counts(self) -> Counts:
        """How many nodes, sites and requests there are now."""
        commands = commands_for(self.keys)
        return Counts.of(await self.link.use(lambda connection: connection.execute(commands)))

    def _new_fields(self, new: NewRequest) -> tuple[bytes, bytes, bytes]:
        fingerprint = new.fingerprint and short_fingerprint(new.fingerprint, self.run)
        return new.place, new.data, fingerprint

    async def _call(self, name: str, *arguments: Any, though_full: bool = True) -> Any:
        keys, lease_ms = self.keys, round(self.lease * 1000)
        head = (keys.channel, encoded(self.node), self.run, lease_ms, self.max_pages)
        call = (name, len(keys.all), *keys.all, *head, *arguments)
        (reply,) = await self.link.use(
            lambda connection: evaluate(connection, [call], state.script, though_full=though_full)
        )
        if len(reply) == 1 and reply[0] in OVER:
            raise OVER[reply[0]]
        return reply


def short_fingerprint(fingerprint: bytes, run: bytes) -> bytes:
    """Eight bytes for a fingerprint of any length, as the server keeps them. A run has its own, so
    that no site can know which of its URLs would get the same.
    """
    return hashlib.blake2b(fingerprint, digest_size=8, key=run).digest()


def _fields(finished: Sequence[FinishedRequest]) -> Iterable[Any]:
    yield len(finished)
    for one in finished:
        yield from (one.place, int(one.is_page))


def _taken(reply: list[bytes]) -> Iterable[TakenRequest]:
    for place, data, tries in zip(*[iter(reply)] * 3, strict=True):
        yield TakenRequest(place, data, int(tries))
