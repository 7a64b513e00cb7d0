"""A shared crawl on the Redis server: its keys, and what its nodes do with them."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

from semaphore_middleware.frontier import state
from semaphore_middleware.frontier.settings import CrawlSettings
from semaphore_middleware.frontier.state import Counts, CrawlKeys, Places, commands_for, site_of
from semaphore_middleware.model import chance
from semaphore_middleware.model.hosts import encoded
from semaphore_middleware.redis.link import Link
from semaphore_middleware.redis.location import Server
from semaphore_middleware.redis.rights import try_rights
from semaphore_middleware.redis.scripts import evaluate

CALL_TIMEOUT_S = 3.0
TRIES_BEFORE_ALONE = 2  # as in common.lua
RETRIED_AT_ONCE = 1000  # requests in a call
NO_STATS: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True)
class NewRequest:
    """An encoded request to be queued. Sent twice with the same place, it is queued once."""

    place: bytes
    data: bytes
    fingerprint: bytes = b""  # queued only if no other had this one; empty: queued in any case
    claim: bytes = b""  # which it fulfils: it is queued only if no other has done so
    of_run: bool = False  # the fingerprint counts in this run only, whatever earlier ones have seen


def given_up(claim: bytes) -> NewRequest:
    """In place of a new request: there will be none for this claim."""
    return NewRequest(b"", b"", claim=claim)


class Outcome(Enum):
    """What has become of a request."""

    NOTHING = b"0"
    """It was dropped, or another one has replaced it."""
    PAGE = b"1"
    """It has brought the spider a response."""
    FAILED = b"2"
    """It has brought no response, or a server's error. It is kept: it can be tried again."""


@dataclass(slots=True)
class TakenRequest:
    """An encoded request that this node has taken from its site's queue, until it is finished."""

    place: bytes
    data: bytes
    tries: int = 0  # how many nodes have died with it, or could not read it
    outcome: Outcome = Outcome.NOTHING
    is_given_up: bool = False  # the node does not finish it: others are to do it

    @property
    def is_alone(self) -> bool:
        """True if it is to be done while the node does nothing else."""
        return self.tries >= TRIES_BEFORE_ALONE

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
    suspect: bool = True  # one of them may be one that a node has failed with
    alone: bool = False  # if there are no others: one that two nodes have failed with


NO_DEMAND = Demand()


class Queued(Enum):
    """Whether a new request was queued."""

    DUPLICATE = 0
    YES = 1
    OVER_BUDGET = 2
    """Its site has had all pages that it may have."""


@dataclass(frozen=True, slots=True)
class SyncReply:
    """The server's reply to `CrawlClient.sync`."""

    queued: list[Queued]  # for each new request
    taken: list[TakenRequest]
    lease_expired: bool  # before this call: all that the node had taken went back to the queues
    set_aside: list[bytes]  # requests that were tried too often: their data


class NextStep(Enum):
    """What a node without requests is to do."""

    TAKE_MORE = b"more"
    WAIT = b"wait"
    CLOSE = b"done"
    CLOSE_EMPTY = b"empty"


@dataclass(frozen=True, slots=True)
class IdleReply:
    """The server's reply to `CrawlClient.idle`."""

    next_step: NextStep
    wait_s: float  # ask again after this time at the latest
    set_aside: list[bytes]  # requests that were tried too often: their data
    lease_expired: int  # 1: the node had no lease, or none any more
    all_set_aside: int = 0  # in the whole crawl, if it ends
    all_failed: int = 0


class RunOverError(Exception):
    """The run of the crawl that this node has joined is over."""


class Ending(Enum):
    """What has come of an operator's ending a crawl."""

    NOW = b"now"
    LATER = b"later"
    """When all that is queued is done."""
    NO_RUN = b"none"
    """No run is under way."""


class CrawlEndedError(RunOverError):
    """The crawl has ended, before this node came or without it."""

    def __init__(self, ago: float = 0.0, run: bytes = b"", in_common: bytes = b"") -> None:
        super().__init__("the crawl has ended")
        self.ago = ago
        """Seconds since then, by the server's wall clock, as `join` says them."""
        self.run = run
        """Which run it was, as `join` says."""
        self.identity: dict[str, str] = json.loads(in_common or b"{}")
        """What its nodes had in common, as `join` says; empty if none took part."""


class NothingFetchedError(RunOverError):
    """The run is over, and has fetched nothing."""


class WrongTypeError(Exception):
    """The users' key holds no start requests, but something else."""


class OtherCrawlError(Exception):
    """The crawl of this name has another spider, other arguments, or another version."""

    def __init__(self, identity: dict[str, str]) -> None:
        super().__init__("the crawl of this name is another one")
        self.identity = identity
        """What the nodes of that crawl have in common."""


class CrawlLostError(RunOverError):
    """The server has lost the crawl: all queued requests and all fingerprints."""


OVER = {  # by a script's reply
    b"ended": CrawlEndedError,
    b"empty": NothingFetchedError,
    b"lost": CrawlLostError,
}


class CrawlClient:
    """One node's access to a shared crawl. Keeps no requests itself. Not for concurrent calls.

    A crawl named <name> has these keys on the server, each behind `{<prefix>:<name>}:`

        run       hash    id: random, new for each run of the crawl; what its nodes have in common;
                          pages fetched; the crawl's clock; when the run has ended; the id before;
                          the last run that has fetched nothing; whether an operator ends it;
                          with what fingerprints are shortened; whether `seen` has times
        nodes     zset    node -> until when it counts, ms: all that were heard of
        working   zset    node -> end of its lease, ms
        seen      hash    fingerprints of all requests that were ever queued, shortened to 8
                          bytes, in some runs with times: bucket -> some of them; count -> how many
        requests  hash    place -> request: all that are not finished
        queue     zset    the places of those that are to be taken, in order
        sites     zset    site with queued requests -> turn, the lowest is next
        taken     zset    node, zero byte, place, how many nodes have failed with it (a digit):
                          taken and not finished
        suspects  zset    place of a request that nodes have failed with -> 1, or 2 for more
        aside     hash    place -> request: those that were tried three times; nobody gets them
        failed    hash    place -> request: those that have brought no page
        hungry    zset    nodes that wait for requests -> the last offer that they have seen
        claims    hash    id -> node, zero byte, text: start requests that are not queued yet
        budgets   hash    site -> its pages; site, zero byte -> how many of its requests are taken
        stats     hash    node, zero byte, name -> what this node has counted

    A node works from when it joins until it is idle, and again from when it takes a request. While
    it works it has a lease, which each `sync` renews. When the lease expires, by the crawl's clock
    on the server, the node counts as dead: the next call of any node that takes requests or is idle
    puts what it had taken back, as suspects (docs/how-it-works.md has their rules). A node that was
    only silent says later what it has finished; that counts if no other was quicker.

    The crawl is done when no node works and nothing is queued. All its keys but `run` and `stats`
    are then deleted; these are kept for 30 days, so that a node that is started late, or again,
    does not begin the crawl once more. If requests were set aside or have failed, they, `seen` and
    `budgets` are kept, too. A run that has fetched nothing is not done: the next node begins anew.

    A node that waits has a channel of its own, `node:<node>`, on which it is told to ask again. A
    server at its `maxmemory` refuses nodes that join, and new requests; all else goes on there.

    Calls raise `ServerUnreachableError` if the server cannot be reached just now; what was sent may
    have been done, and can be sent again. They raise `ServerRefusedError` where waiting would not
    help.
    """

    def __init__(self, settings: CrawlSettings) -> None:
        """Raises `SettingsError` for a URL that cannot be read."""
        self.settings = settings
        self.keys = CrawlKeys(settings.prefix, settings.name)
        server = Server(settings.url, CALL_TIMEOUT_S, settings.url_from, self.keys.hash_tag)
        self.link = Link(server, lambda: "The crawl's requests wait until it can be used again")
        self.run = self.run_before = self._salt = b""  # none joined yet
        # A process that reuses a dead one's name is another node.
        self.node = f"{settings.node}:{chance.token(4)}"
        self.new_place = Places(*settings.last_first).new
        self.channel = self.keys.channels + encoded(self.node)

    async def check_rights(self) -> None:
        """Try everything that a node may do on the server. Leaves nothing there.

        Raises `ServerRefusedError`, which names what is missing.
        """
        keys = self.keys
        names = (*keys.trials, *keys.all)
        async with self.link.use() as connection:
            sources = map(state.script, state.NODES_SCRIPTS)
            await try_rights(connection, names, self.channel, keys.tag, sources)
        await self.link.check_subscription([self.channel])

    # Calls --------------------------------------------------------------------------------------

    async def join(
        self, identity: dict[str, str] | None = None, new_run: bool = False
    ) -> tuple[int, dict[str, str]]:
        """Join the crawl's run, or begin the first one; with `new_run` also a further one, if the
        last one has ended. `identity` is what all nodes have in common; None, from one that takes
        no requests, goes with any. Returns how many requests are not finished, and what the nodes
        have in common, as far as it is known.

        Raises `CrawlEndedError` if the last run has ended, and `OtherCrawlError`.
        """
        packed = json.dumps(identity, sort_keys=True) if identity is not None else ""
        run, *rest = await self._call(
            "join", chance.token(8), packed, int(new_run), though_full=False
        )
        if run == b"ended":
            raise CrawlEndedError(rest[0] / 1000, *rest[1:])
        if run == b"other":
            raise OtherCrawlError(json.loads(rest[0]))
        self.run = run
        unfinished, in_common, self.run_before, self._salt = rest
        return unfinished, json.loads(in_common or b"{}")

    async def sync(
        self,
        new: Sequence[NewRequest] = (),
        finished: Sequence[TakenRequest] = (),
        demand: Demand = NO_DEMAND,
        working: bool = False,
        unreadable: Sequence[bytes] = (),
        stats: Mapping[str, int] = NO_STATS,
    ) -> SyncReply:
        """Queue new requests, forget finished ones, give back unreadable ones (by place), write
        down what this node has counted, take others: in this order.

        If a part fails, the later parts are not done. The lease begins, or is renewed, if `working`
        or if something is taken. Raises `RunOverError`.
        """
        queued, taken, lease_expired, set_aside = await self._call(
            "sync",
            *(int(working), len(new)),
            *itertools.chain.from_iterable(map(self._new_fields, new)),
            *_fields(finished),
            *(len(unreadable), *unreadable),
            *_pairs(stats),
            *(demand.requests, demand.per_site, int(demand.suspect), int(demand.alone)),
            *map(encoded, demand.skipped_sites),
            though_full=not new,
        )
        return SyncReply(
            list(map(Queued, queued)), list(_taken(taken)), bool(lease_expired), set_aside
        )

    async def idle(self, finished: Sequence[TakenRequest] = (), waits: bool = False) -> IdleReply:
        """Stop working. If no node works and nothing is queued, this ends the crawl, unless it
        `waits` for an operator to end it.

        Raises `RunOverError`.
        """
        step, wait_ms, *rest = await self._call("idle", *_fields(finished), int(waits))
        return IdleReply(NextStep(step), wait_ms / 1000, *rest)

    async def take_starts(
        self, key: str, most: int, known: Sequence[bytes]
    ) -> list[tuple[bytes, bytes]]:
        """Take start requests from a key that users fill: of each the id of a claim, and the text.
        It is a claim until a new request fulfils it. `known`: claims that this node has still.

        Raises `RunOverError`, and `WrongTypeError` for a key of another type.
        """
        keys = (*self.keys.all, encoded(key))
        found, wrong_type = await self._call("take_starts", most, len(known), *known, keys=keys)
        if wrong_type:
            raise WrongTypeError(wrong_type.decode())
        return list(zip(*[iter(found)] * 2, strict=True))

    async def leave(
        self, finished: Sequence[TakenRequest] = (), stats: Mapping[str, int] = NO_STATS
    ) -> None:
        """Leave the crawl; what this node has taken and not finished goes back to the queues."""
        with suppress(RunOverError):
            await self._call("leave", *_pairs(stats), *_fields(finished))

    # What operators do; no run need have been joined --------------------------------------------

    async def drop(self) -> bool:
        """End the crawl for all nodes, done or not, and forget it. False if there is none."""
        (ending,) = await self._call("end", "forget")
        return Ending(ending) is not Ending.NO_RUN

    async def end(self, at_once: bool = False) -> Ending:
        """End the crawl for all nodes: when all that is queued is done, or at once."""
        (ending,) = await self._call("end", "now" if at_once else "later")
        return Ending(ending)

    async def retry(self) -> int | None:
        """Put requests that were set aside or have failed back into the queues; how many these
        were, None if there is no crawl. One that has ended goes on with them when a node joins.
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
        """How many nodes, sites and requests there are now."""
        commands = commands_for(self.keys)
        async with self.link.use() as connection:
            return Counts.of(await connection.execute(commands))

    async def stats(self) -> dict[str, int]:
        """What all nodes of the last run have counted, in sum."""
        command = ("HGETALL", self.keys.of("stats"))
        async with self.link.use() as connection:
            (fields,) = await connection.execute([command])
        sums: Counter[str] = Counter()
        for field, value in zip(*[iter(fields)] * 2, strict=True):
            sums[field.rpartition(b"\0")[2].decode()] += int(value)
        return dict(sorted(sums.items()))

    def _new_fields(self, new: NewRequest) -> tuple[bytes, bytes, bytes, bytes]:
        salt = self.run if new.of_run else self._salt
        fingerprint = new.fingerprint and short_fingerprint(new.fingerprint, salt)
        return new.place, new.data, fingerprint, new.claim

    async def _call(
        self,
        name: str,
        *arguments: Any,
        keys: tuple[bytes, ...] | None = None,
        though_full: bool = True,
    ) -> Any:
        keys = keys or self.keys.all
        settings = self.settings
        head = (self.keys.channels, encoded(self.node), self.run, round(settings.lease * 1000))
        limits = (settings.max_pages, settings.max_pages_per_site, round(settings.recrawl_after))
        call = (name, len(keys), *keys, *head, *limits, *arguments)
        async with self.link.use() as connection:
            (reply,) = await evaluate(connection, [call], state.script, though_full=though_full)
        if len(reply) == 1 and reply[0] in OVER:
            raise OVER[reply[0]]
        return reply


def short_fingerprint(fingerprint: bytes, salt: bytes) -> bytes:
    """Eight bytes for a fingerprint of any length, as the server keeps them. A crawl has its own,
    so that no site can know which of its URLs would get the same.
    """
    return hashlib.blake2b(fingerprint, digest_size=8, key=salt).digest()


def _fields(finished: Sequence[TakenRequest]) -> Iterable[Any]:
    yield len(finished)
    for one in finished:
        yield from (one.place, one.outcome.value)


def _pairs(stats: Mapping[str, int]) -> Iterable[Any]:
    return len(stats), *itertools.chain.from_iterable(stats.items())


def _taken(reply: list[bytes]) -> Iterable[TakenRequest]:
    for place, data, tries in zip(*[iter(reply)] * 3, strict=True):
        yield TakenRequest(place, data, int(tries))
