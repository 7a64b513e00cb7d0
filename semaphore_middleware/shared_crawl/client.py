"""Calls of a node to the Redis server of a shared crawl, and the replies."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from semaphore_middleware.errors import ServerUnreachableError
from semaphore_middleware.link import chance
from semaphore_middleware.link.connection import Connection
from semaphore_middleware.link.link import Link
from semaphore_middleware.link.rights import try_rights
from semaphore_middleware.link.scripts import Call, Script, batches, run_scripts
from semaphore_middleware.link.text import decoded, encoded
from semaphore_middleware.model.validation import LONGEST_S
from semaphore_middleware.shared_crawl.counts import Counts, commands_for
from semaphore_middleware.shared_crawl.identity import other_work
from semaphore_middleware.shared_crawl.keys import CrawlKeys, index_key, site_of
from semaphore_middleware.shared_crawl.nodes import CrawlNode, Holdings, nodes_commands
from semaphore_middleware.shared_crawl.settings import CrawlSettings
from semaphore_middleware.shared_crawl.sums import NO_STATS

VERSION = "7"
"""The version of keys and scripts. Only nodes with equal versions share a run. Change it with
whatever older nodes cannot read.
"""
CALL_TIMEOUT_S = 3.0
TRIES_BEFORE_ALONE = 2  # as in common.lua
RETRIED_AT_ONCE = 500  # requests in a call
PLACES_PER_CALL = 500  # of requests that are read

NODES_SCRIPTS = ("join", "sync", "idle", "keep", "leave", "retry")
SCRIPTS = {
    name: Script(name, "semaphore_middleware.shared_crawl")
    for name in (*NODES_SCRIPTS, "take_starts", "end")
}


@dataclass(frozen=True, slots=True)
class NewRequest:
    """An encoded request to be queued. Sent twice with the same place, it is queued once."""

    place: bytes
    data: bytes
    fingerprint: bytes = b""  # queued only if no other request had it; empty: queued in any case
    reservation: bytes = b""  # queued only if no other request has fulfilled this reservation
    of_run: bool = False  # fingerprints of earlier runs do not count


def unreadable_start(reservation: bytes) -> NewRequest:
    """Make this reservation a dead letter, as its text is not a start request."""
    return NewRequest(b"", b"", reservation=reservation)


class Outcome(Enum):
    """The result of a request."""

    NOTHING = b"0"
    """It was dropped, or another request has replaced it."""
    PAGE = b"1"
    """The spider got a response; one with a server error's status counts if a callback got it."""
    FAILED = b"2"
    """No response, or a server's error that no callback got. It is kept for a retry."""
    REFUSED = b"3"
    """It names a class that this node does not take from the server. It becomes a dead letter."""


@dataclass(slots=True)
class RequestInFlight:
    """An encoded request, from when this node takes it until it is finished."""

    place: bytes
    data: bytes
    tries: int = 0  # nodes that have died with it, or could not read it
    outcome: Outcome = Outcome.NOTHING
    is_given_up: bool = False  # left to other nodes

    @property
    def must_be_alone(self) -> bool:
        """True if a node takes this request only while it has no other."""
        return self.tries >= TRIES_BEFORE_ALONE

    @property
    def site(self) -> str:
        """The request's site, from its place in the queue."""
        return site_of(self.place)


@dataclass(frozen=True, slots=True)
class Demand:
    """How many requests a node wants, and of which sites. The sites alternate."""

    requests: int = 0  # at most
    per_site: int = 0  # at most
    skipped_sites: frozenset[str] = frozenset()
    poison: bool = True  # allows one request with which one node has failed
    alone: bool = False  # if there are no others, allows one with which two nodes have failed


NO_DEMAND = Demand()


@dataclass(frozen=True, slots=True)
class Held:
    """The places of the requests that a node has, as far as it knows."""

    ready: Sequence[bytes]
    """Not started yet."""
    started: Sequence[bytes]


class Queued(Enum):
    """Whether a new request was queued."""

    DUPLICATE = 0
    YES = 1
    OVER_BUDGET = 2
    """Its site has all the pages allowed for it."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The server's reply to `CrawlClient.join`."""

    unfinished: int  # requests
    identity: dict[str, str]  # of the run's nodes, if known
    was_stopped: bool  # the run goes on, after all nodes had left it
    left: int = 0  # unfinished requests of the run before, now deleted
    forgotten: int = 0  # its dead letters and failed requests, also deleted


@dataclass(frozen=True, slots=True)
class SyncReply:
    """The server's reply to `CrawlClient.sync`."""

    queued: list[Queued]  # for each new request
    taken: list[RequestInFlight]
    lease_expired: bool  # before this call: all of the node's requests went back to the queues
    dead_letters: list[bytes]  # data of requests tried too often
    lost: int = 0  # requests whose data the server has lost


class NextStep(Enum):
    """The next step of a node without requests."""

    TAKE_MORE = b"more"
    TAKE_STARTS = b"starts"
    """Take the reservations of a dead node, or those that `retry` has put back."""
    WAIT = b"wait"
    CLOSE = b"done"
    CLOSE_UNDONE = b"undone"


@dataclass(frozen=True, slots=True)
class Missing:
    """What an ended run lacks: numbers of requests."""

    dead_letters: int = 0
    failed: int = 0
    left: int = 0  # in the queues
    lost: int = 0  # the server has lost their data


NOTHING_MISSING = Missing()


@dataclass(frozen=True, slots=True)
class AtWork:
    """The nodes that an idle one waits for."""

    nodes: int
    node: str  # one of them
    in_flight: int  # requests that this one has taken


@dataclass(frozen=True, slots=True)
class IdleReply:
    """The server's reply to `CrawlClient.idle`."""

    next_step: NextStep
    wait_s: float  # ask again after this time at the latest
    dead_letters: list[bytes]  # data of requests tried too often
    lease_expired: int  # 1: the node had no lease, or it had expired
    queued_again: int = 0  # requests that were lost from the queues
    missing: Missing = NOTHING_MISSING  # if the crawl ends
    at_work: AtWork | None = None  # if other nodes are


class Ending(Enum):
    """When a crawl ends, as the reply to an operator."""

    NOW = b"now"
    LATER = b"later"
    """As soon as the queues are empty."""
    NO_RUN = b"none"
    """No run is under way."""


class RunOverError(Exception):
    """This node's run of the crawl is over."""

    def __init__(self, missing: Missing = NOTHING_MISSING) -> None:
        super().__init__("this node's run of the crawl is over")
        self.missing = missing
        """What the run lacks, if it has ended."""


class CrawlEndedError(RunOverError):
    """The crawl has ended: before this node joined, or without it."""

    def __init__(
        self, missing: Missing, ago: float = 0.0, run: bytes = b"", in_common: bytes = b""
    ) -> None:
        super().__init__(missing)
        self.ago = ago
        """Seconds since the end, by the server's wall clock. Set by `join`, as the next two."""
        self.run = run
        """The id of the run."""
        self.identity: dict[str, str] = json.loads(in_common or b"{}")
        """The identity of its nodes; empty if none took part."""


class NotDoneError(RunOverError):
    """The run is over without any page, or with lost requests."""


class CrawlLostError(RunOverError):
    """The server has lost the crawl: all queued requests and all fingerprints."""


class WrongTypeError(Exception):
    """The users' key has a type that cannot contain start requests."""


class OtherCrawlError(Exception):
    """The crawl of this name has another spider, other arguments, or another version."""

    def __init__(self, identity: dict[str, str], text: str = "another crawl has this name") -> None:
        super().__init__(text)
        self.identity = identity
        """The identity of that crawl's nodes."""


class OtherVersionError(OtherCrawlError):
    """The crawl's run has another `VERSION`."""

    def __init__(self, crawl: str, version: bytes) -> None:
        super().__init__(
            {},
            f"the crawl {crawl!r} is in use by another version of this package (shared crawl "
            f"{version.decode('utf-8', 'replace') or '1'}, this one uses {VERSION}): let that "
            f"version end it; or forget it, with scrapy frontier drop {crawl}",
        )


class OtherRunError(OtherCrawlError):
    """Nodes take part in a run of another name."""

    def __init__(self, crawl: str, run: bytes, own: str) -> None:
        name = run.decode("utf-8", "replace")
        named = f"the run {name!r}" if name else "a run without a name"
        super().__init__(
            {},
            f"nodes take part in {named} of the crawl {crawl!r}: the run {own!r} can begin when "
            "they have left",
        )


class OtherBudgetsError(Exception):
    """The nodes of the crawl have other budgets."""

    def __init__(self, budgets: dict[str, int]) -> None:
        super().__init__("the nodes of the crawl have other budgets")
        self.budgets = budgets
        """The budgets of the crawl's nodes, by setting."""


OVER = {  # by a script's reply
    b"ended": CrawlEndedError,
    b"undone": NotDoneError,
    b"lost": CrawlLostError,
}


class CrawlClient:
    """One node's calls to the server, one after the other. Stores no requests itself.

    A crawl named <name> has these keys on the server, each behind `{<prefix>:<name>}:`

        run       hash    id: random, new for each run of the crawl; its version; its name, and the
                          last names; its nodes' identity; pages fetched; the crawl's clock; when
                          the run has ended; the id before; the last run that is not done; whether
                          an operator ends it, or has dropped it; the budgets; the salt of shortened
                          fingerprints; whether `seen` has times; how many requests are unfinished,
                          and at the end, left and lost; how many the run before has lost; the
                          cursors of searches: for requests that no queue has, and for
                          reservations of dead nodes
        nodes     zset    node -> until when it counts, ms; without those that are stopping
        working   zset    node -> end of its lease, ms
        seen      hash    fingerprints of all requests ever queued, shortened to 8 bytes, in some
                          runs with times: bucket -> some of them; count -> how many
        requests  hash    place -> request: all unfinished ones
        queue     zset    places of the requests to be taken, in order
        sites     zset    site with queued requests -> order, the lowest is next
        taken     zset    node, zero byte, place, how many nodes have failed with it (a digit),
                          when it was taken (4 bytes, s): taken and not finished
        takers    hash    place -> node that has taken it
        suspects  zset    place of a request -> how many nodes have failed with it: 1, or 2 for
                          more
        aside     hash    place -> dead letter, which no node gets; id of a reservation that no
                          node could read -> its value
        failed    hash    place -> request: has brought no page
        hungry    zset    node that waits for requests -> the last offer that it has seen
        claims    hash    id -> node, zero byte, text: start requests not queued yet
        budgets   hash    site -> its pages; site, zero byte -> how many of its requests are taken
        stats     hash    node, zero byte, name -> this node's number; node, zero byte -> when it
                          came, by the crawl's clock; zero byte, name -> the sum of nodes that have
                          gone

    A node works from when it joins until it is idle, and again from when it takes a request. While
    it works it has a lease, renewed by each `sync`. When the lease expires, by the crawl's clock,
    the next call of a node that takes requests or is idle puts the dead node's requests back, as
    poison requests, or unchanged if it was stopping. What a node that was only silent reports
    later counts unless another node was quicker.

    The crawl is done when no node works and `requests` has only requests over the budgets. Then
    `run` and `stats` are kept for 30 days, so that a node that is started late does not repeat the
    crawl; and `aside`, `failed`, `seen` and `budgets`, if requests have failed or are dead letters.
    A run without a page, or with lost requests, is not done: the next node goes on, or starts over.

    A waiting node has its own channel, `node:<node>`: after a message it asks again. A server at
    its `maxmemory` refuses joining nodes and new requests; all other calls still work.

    Calls raise `ServerUnreachableError` if the server cannot be reached now: the call may have been
    executed, and can be repeated. They raise `ServerRefusedError` if waiting would not help.
    """

    def __init__(self, settings: CrawlSettings) -> None:
        """Raises `SettingsError` for a wrong URL."""
        self.settings = settings
        self.keys = CrawlKeys(settings.prefix, settings.name)
        server = settings.server(CALL_TIMEOUT_S, self.keys.hash_tag)
        self.link = Link(server, lambda: "The crawl's requests wait until it can be used again")
        self.run = self.run_before = self._salt = b""  # none joined yet
        # A process that reuses a dead one's name is another node.
        self.node = f"{settings.node}:{chance.token(4)}"
        self.channel = self.keys.channels + encoded(self.node)

    async def check_rights(self) -> None:
        """Try all calls of a node on the server, and leave nothing there.

        Raises `ServerRefusedError`, with the missing rights.
        """
        keys = self.keys
        async with self.link.use() as connection:
            scripts = [SCRIPTS[name] for name in NODES_SCRIPTS]
            # No key and no channel of a node has this name.
            await try_rights(connection, keys.channels, keys.all, f"{{{keys.hash_tag}}}", scripts)
        await self.link.check_subscription([self.channel])

    # Calls --------------------------------------------------------------------------------------

    async def join(
        self, identity: dict[str, str] | None = None, new_run: bool = False, after: bytes = b""
    ) -> Joined:
        """Join the crawl's run, or begin the first one. After the end of the last run, begin
        another one with `new_run`, or if `after` is the last one's id. If the last run has fetched
        nothing, go on with its failed requests, or start over. If the settings name another run,
        begin it when no node takes part in the last one. `identity` must be equal on all nodes; it
        is None for a caller that takes no requests, and then no budgets change.

        Raises `CrawlEndedError`, `OtherCrawlError` and `OtherBudgetsError`.
        """
        packed = json.dumps(identity, sort_keys=True) if identity is not None else ""
        budgets = self.settings.budgets.values()
        run, rest = b"again", []
        while run == b"again":
            run, *rest = await self._call(
                "join",
                chance.token(8),
                packed,
                int(new_run) or after,
                encoded(self.settings.run_name),
                *budgets,
                more_keys=() if self.link.server.is_cluster else (index_key(self.settings.prefix),),
                though_full=False,
            )
        if run == b"ended":
            ago_ms, of_run, in_common, *missing = rest
            raise CrawlEndedError(Missing(*missing), ago_ms / 1000, of_run, in_common)
        if run == b"other":
            raise OtherCrawlError(json.loads(rest[0]))
        if run == b"budgets":
            raise OtherBudgetsError(dict(zip(self.settings.budgets, rest, strict=True)))
        if run == b"run":
            raise OtherRunError(self.settings.name, rest[0], self.settings.run_name)
        if run == b"failed":
            is_other = identity is not None and other_work(identity, json.loads(rest[0] or b"{}"))
            if not is_other:
                await self.retry()
            return await self.join(identity, bool(is_other))
        self.run = run
        unfinished, in_common, run_before, self._salt, was_stopped, *gone = rest
        self.run_before = run_before or self.run_before  # its id is lost with the run
        return Joined(unfinished, json.loads(in_common or b"{}"), bool(was_stopped), *gone)

    async def sync(
        self,
        new: Sequence[NewRequest] = (),
        finished: Sequence[RequestInFlight] = (),
        demand: Demand = NO_DEMAND,
        working: bool = False,
        unreadable: Sequence[RequestInFlight] = (),
        stats: Mapping[str, int] = NO_STATS,
        stopping: bool = False,
        held: Held | None = None,
    ) -> SyncReply:
        """Queue new requests, forget finished ones, give back unreadable ones, store the node's
        numbers, take other requests: in this order. If a part fails, the later ones are not done.

        After a lost reply, the next call names the requests `held`: the server gives back those
        that the node does not know of. The lease begins, or is renewed, if `working` or if
        something is taken. A node that is `stopping` takes nothing. Raises `RunOverError`.
        """
        queued, taken, lease_expired, *rest = await self._call(
            "sync",
            int(working),
            int(stopping),
            len(new),
            *itertools.chain.from_iterable(map(self._new_fields, new)),
            *_fields(finished),
            *_fields(unreadable),
            *_held_fields(held),
            *_pairs(stats),
            demand.requests,
            demand.per_site,
            int(demand.poison),
            int(demand.alone),
            *map(encoded, demand.skipped_sites),
            though_full=not new,
        )
        return SyncReply(list(map(Queued, queued)), list(_taken(taken)), bool(lease_expired), *rest)

    async def keep(self, connection: Connection) -> bool:
        """Renew this node's lease while its event loop is stalled, from another thread, over
        another connection. Returns False if the node has no lease.
        """
        (works,) = await run_scripts(connection, [self._pack("keep", (), self.keys.all)])
        return bool(works)

    async def idle(
        self, finished: Sequence[RequestInFlight] = (), wait: bool | float = False
    ) -> IdleReply:
        """Stop working. If no node works and nothing is queued, this ends the crawl. `wait` delays
        that: by a number of seconds, or with True until an operator ends the crawl.

        Raises `RunOverError`.
        """
        wait_s = LONGEST_S if wait is True else wait
        step, wait_ms, dead_letters, lease_expired, queued_again, *more = await self._call(
            "idle", *_fields(finished), round(1000 * wait_s)
        )
        next_step = NextStep(step)
        missing, at_work = NOTHING_MISSING, None
        if next_step in (NextStep.CLOSE, NextStep.CLOSE_UNDONE):
            missing = Missing(*more)
        elif more:
            nodes, node, taken = more
            at_work = AtWork(nodes, decoded(node), taken)
        return IdleReply(
            next_step, wait_ms / 1000, dead_letters, lease_expired, queued_again, missing, at_work
        )

    async def take_starts(self, key: str | None, most: int) -> list[tuple[bytes, bytes]]:
        """Take start requests from the users' key, if there is one, and reservations that no living
        node has. Returns a reservation's id and a text for each. A new request fulfils a
        reservation. Unfulfilled ones are returned again, so the node must have none.

        Raises `RunOverError`, and `WrongTypeError` for a key of another type.
        """
        more_keys = () if key is None else (encoded(key),)
        found, wrong_type = await self._call(
            "take_starts", most, chance.token(4), more_keys=more_keys
        )
        if wrong_type:
            raise WrongTypeError(wrong_type.decode())
        return list(zip(*[iter(found)] * 2, strict=True))

    async def leave(
        self, finished: Sequence[RequestInFlight] = (), stats: Mapping[str, int] = NO_STATS
    ) -> None:
        """Leave the crawl, also if the reply to the call that joined it was lost. The node's
        unfinished requests go back to the queues.
        """
        await self._call("leave", *_pairs(stats), *_fields(finished))

    # Calls of operators, who need not join a run ------------------------------------------------

    async def drop(self) -> bool:
        """End the crawl for all nodes, done or not, and forget it. Returns False if none exists."""
        (ending,) = await self._call("end", "forget")
        return Ending(ending) is not Ending.NO_RUN

    async def end(self, at_once: bool = False) -> Ending:
        """End the crawl for all nodes: when all that is queued is done, or at once.

        Raises `OtherVersionError`.
        """
        (ending,) = await self._call("end", "now" if at_once else "later")
        return Ending(ending)

    async def retry(self) -> int | None:
        """Put failed requests, and dead letters, back into the queues, and return their number;
        None if there is no crawl. An ended crawl goes on with them when a node joins.

        Raises `OtherVersionError`.
        """
        if not (await self.counts()).exists:
            return None
        total = 0
        for part in ("aside", "failed"):
            cursor = b"0"
            while True:
                count, cursor = await self._call("retry", part, cursor, RETRIED_AT_ONCE)
                total += count
                if cursor == b"0":
                    break
        return total

    async def counts(self) -> Counts:
        commands = commands_for(self.keys)
        async with self.link.use() as connection:
            return Counts.from_replies(await connection.execute(commands))

    async def nodes(self) -> list[CrawlNode]:
        """The nodes by name, and what they have taken."""
        async with self.link.use() as connection:
            holdings = Holdings(await connection.execute(nodes_commands(self.keys)))
            places = holdings.oldest_places
            data = []
            for some in batches(places, PLACES_PER_CALL):
                command = ("HMGET", self.keys.key("requests"), *some)
                data += (await connection.execute([command]))[0]
        return holdings.nodes(dict(zip(places, data, strict=True)))

    async def stats(self) -> dict[str, int]:
        """Sums over all nodes of the last run."""
        command = ("HGETALL", self.keys.key("stats"))
        async with self.link.use() as connection:
            (fields,) = await connection.execute([command])
        sums: Counter[str] = Counter()
        for field, value in zip(*[iter(fields)] * 2, strict=True):
            if name := field.rpartition(b"\0")[2]:  # without a name it is a time
                sums[name.decode()] += int(value)
        return dict(sorted(sums.items()))

    def _new_fields(self, new: NewRequest) -> tuple[bytes, bytes, bytes, bytes]:
        salt = self.run if new.of_run else self._salt
        fingerprint = new.fingerprint and short_fingerprint(new.fingerprint, salt)
        return new.place, new.data, fingerprint, new.reservation

    async def _call(
        self,
        name: str,
        *arguments: Any,
        more_keys: tuple[bytes, ...] = (),
        though_full: bool = True,
    ) -> Any:
        call = self._pack(name, arguments, (*self.keys.all, *more_keys), though_full)
        async with self.link.use() as connection:
            (reply,) = await run_scripts(connection, [call], before_loading=self._check_incarnation)
        if reply and reply[0] == b"over":
            raise OVER[reply[1]](Missing(*reply[2:]))
        if reply and reply[0] == b"version":
            raise OtherVersionError(self.settings.name, reply[1])
        return reply

    def _pack(
        self, name: str, arguments: Sequence[Any], keys: Sequence[bytes], though_full: bool = True
    ) -> Call:
        settings = self.settings
        packed = (
            VERSION,
            self.keys.channels,
            encoded(self.node),
            self.run,
            round(settings.lease * 1000),
            round(settings.recrawl_after),
            *arguments,
        )
        return Call(SCRIPTS[name], keys, packed, though_full=though_full)

    async def _check_incarnation(self, connection: Connection) -> None:
        """Check whether a server that lacks the scripts is a new one: a proxy may lead to another
        one without notice.
        """
        await connection.check_server()
        if connection.incarnation != self.link.incarnation:
            self.link.incarnation = connection.incarnation
            raise ServerUnreachableError(f"{self.link.server} was replaced by another server")


def short_fingerprint(fingerprint: bytes, salt: bytes) -> bytes:
    """Shorten a fingerprint to eight bytes. Each crawl has its own salt, so that no site can find
    URLs with equal bytes.
    """
    return hashlib.blake2b(fingerprint, digest_size=8, key=salt).digest()


def _held_fields(held: Held | None) -> tuple[Any, ...]:
    if held is None:
        return (-1,)
    places = (*held.ready, *held.started)
    return (len(places), len(held.ready), *places)


def _fields(finished: Sequence[RequestInFlight]) -> Iterable[Any]:
    yield len(finished)
    for taken in finished:
        yield from (taken.place, taken.outcome.value)


def _pairs(stats: Mapping[str, int]) -> Iterable[Any]:
    return len(stats), *itertools.chain.from_iterable(stats.items())


def _taken(reply: list[bytes]) -> Iterable[RequestInFlight]:
    for place, data, tries in zip(*[iter(reply)] * 3, strict=True):
        yield RequestInFlight(place, data, int(tries))
