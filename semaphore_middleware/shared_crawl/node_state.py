"""One node of a shared crawl: the next call to the server, and the effects of each reply. No I/O.

The engine waits for no reply: a call contains everything that the scheduler has reported since the
last one: the new requests, in their order, then the finished ones, then the demand for more. So a
request counts as finished only when all requests that its callback has yielded are on the server.

A promoted server may lack the last calls. To that server, the requests finished in these calls are
still taken: it puts them back into the queues when their nodes are idle. Requests that were queued
recently are sent again (`new_requests.py`).

After a timeout, a call is repeated with half as many requests, and asks for half as many. Each
reply raises the limit by one request.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from scrapy import Request
from scrapy.crawler import Crawler

from semaphore_middleware.link.lease import RENEWAL
from semaphore_middleware.shared_crawl.client import (
    AtWork,
    Demand,
    Held,
    IdleReply,
    NewRequest,
    NextStep,
    Outcome,
    Queued,
    RequestInFlight,
    SyncReply,
    WrongTypeError,
)
from semaphore_middleware.shared_crawl.codec import Codec
from semaphore_middleware.shared_crawl.ending import CrawlEnd
from semaphore_middleware.shared_crawl.engine import CrawlEngine
from semaphore_middleware.shared_crawl.keys import Places
from semaphore_middleware.shared_crawl.new_requests import MAX_NEW_REQUESTS, NewRequests
from semaphore_middleware.shared_crawl.prefetch import Prefetch
from semaphore_middleware.shared_crawl.serializer import UnknownClassError
from semaphore_middleware.shared_crawl.settings import CrawlSettings
from semaphore_middleware.shared_crawl.spider_start import SpiderStart
from semaphore_middleware.shared_crawl.sums import SummedStats

logger = logging.getLogger(__name__)

KEYS_GONE = "Keys were evicted or deleted: see maxmemory-policy in docs/production.md"
LOST = f"The server has lost the data of %d queued requests of the crawl %r. {KEYS_GONE}"
QUEUED_AGAIN = (
    "%d unfinished requests of the crawl %r were in no queue, and are queued again. " + KEYS_GONE
)
LOG_WAIT_S = 60.0  # between two log lines about what a node waits for
STARTS_POLL_S = 1.0  # between two checks of the users' key while the node waits


@dataclass(frozen=True, slots=True)
class SyncCall:
    """Arguments of `CrawlClient.sync`."""

    made_at: float  # loop time
    new: Sequence[NewRequest]
    finished: Sequence[RequestInFlight]
    demand: Demand
    working: bool
    unreadable: Sequence[RequestInFlight]
    stats: Mapping[str, int]
    stopping: bool = False
    held: Held | None = None


@dataclass(frozen=True, slots=True)
class IdleCall:
    """Arguments of `CrawlClient.idle`."""

    finished: Sequence[RequestInFlight]
    wait: bool | float


@dataclass(frozen=True, slots=True)
class StartsCall:
    """Arguments of `CrawlClient.take_starts`."""

    key: str | None


CrawlCall: TypeAlias = SyncCall | IdleCall | StartsCall
Reservations: TypeAlias = list[tuple[bytes, bytes]]
"""Start requests from the users' key: an id and a text each."""


class Idle(Enum):
    """Whether the engine has nothing left to do."""

    NO = auto()
    YES = auto()
    WITHOUT_STARTS = auto()
    """The users' key has no start requests, either."""


class NodeState:
    """A node between two calls. Times are the event loop's.

    `on_mismatch` ends this node because of an error, for example a request that it cannot read.
    """

    def __init__(
        self,
        settings: CrawlSettings,
        crawler: Crawler,
        engine: CrawlEngine,
        on_mismatch: Callable[[Exception], None],
    ) -> None:
        assert crawler.spider is not None, "a scheduler is opened with its spider"
        self._settings = settings
        self._stats = crawler.stats
        self._engine = engine
        self._on_mismatch = on_mismatch
        self.codec = Codec(crawler.spider, engine, settings)
        self.prefetch = Prefetch(crawler)
        self.start = SpiderStart(settings.start_once)
        places = Places(*settings.last_first)
        self.new_requests = NewRequests(self.codec, places, self.prefetch, self.start)
        self.sums = SummedStats(crawler.stats, self.interval_s)
        self.end = CrawlEnd(settings.name, crawler.stats)
        self.has_work = asyncio.Event()
        """Set when there may be a next call."""
        self.works = False
        """The node has a lease that must be renewed, as far as it knows."""
        self._is_applied = True  # the last call with a demand got its reply
        self._renewal_at = 0.0
        self._check_at = math.inf  # a waiting node then asks the server again
        self._unreadable: list[RequestInFlight] = []  # the next call gives them back
        self._request_limit = MAX_NEW_REQUESTS  # of requests in a call, each way
        self._log_wait_at = 0.0
        self._idle = Idle.NO
        self._starts_due = False  # the next call takes start requests of the users' key

    @property
    def interval_s(self) -> float:
        """The time between two renewals of the lease."""
        return RENEWAL * self._settings.lease

    # Reports of the scheduler -------------------------------------------------------------------

    def enqueue(self, request: Request) -> None:
        """Queue a request on the server, soon. Raises any error for one that cannot be stored."""
        if not self.prefetch.was_given_up(request):  # otherwise the server has it
            self.new_requests.add_request(request)
            self.start.on_busy()
            self.has_work.set()

    def next_request(self) -> Request | None:
        """The next request, if one is ready. Otherwise the engine is woken when that may change."""
        request = self.prefetch.start_next()
        if self.prefetch.engine_waits or self.prefetch.wants_more:
            self.has_work.set()
        return request

    def on_idle(self) -> None:
        """The engine has nothing left to do. It is woken when that changes."""
        if self._idle is Idle.NO:
            self._idle = Idle.YES
        self.has_work.set()

    def on_closing(self) -> None:
        """The spider begins to close. The server is notified at once: this node may be cut off."""
        self.prefetch.is_closing = True
        self._starts_due = False
        self._renewal_at = 0.0
        self.has_work.set()

    def on_held_open(self) -> None:
        """Another component keeps the idle spider open, as it may have requests: the node works."""
        if not self.works:
            self.works = True
            self._renewal_at = 0.0
            self.has_work.set()

    @property
    def has_pending(self) -> bool:
        """Requests may come without any further response, so the spider is not idle."""
        if self.end.has_come:
            return False
        return bool(self.new_requests or self.prefetch.ready or self.prefetch.may_have_more)

    # Calls --------------------------------------------------------------------------------------

    @property
    def call_at(self) -> float:
        """When the next call is due, even if nothing happens until then."""
        return min(self._renewal_at, self._check_at)

    def begin_cycle(self, now: float) -> None:
        """Something has happened, or a call is due."""
        self.has_work.clear()
        if now >= self._check_at:
            self._check_at = math.inf
            self.check_again()

    def check_again(self) -> None:
        """Ask the server for requests: it has sent a notification, or a time has passed.

        Even with a full engine a notified node asks again, as the server then notifies the next
        waiting node.
        """
        if self.prefetch.on_notified():
            self.has_work.set()
        self._engine.wake()

    def next_call(self, now: float) -> CrawlCall | None:
        key = self._settings.start_key
        finished = self.finished()
        if self._has_nothing_but(finished):
            self.start.on_idle(now)
            is_idle = self._idle is not Idle.NO
        else:
            self.start.on_busy()
            is_idle = False
        if self._starts_due or (key is not None and is_idle and self._idle is Idle.YES):
            return StartsCall(key)
        if is_idle:
            return IdleCall(finished, self._settings.wait)
        self._idle = Idle.NO
        return self._sync_call(now, finished)

    def finished(self) -> list[RequestInFlight]:
        """The requests finished by the engine, unknown to the server."""
        return self.prefetch.finished(self._engine.in_progress)

    def _has_nothing_but(self, finished: list[RequestInFlight]) -> bool:
        # Scrapy counts as idle with a request between downloader and spider. That request must be
        # finished first, even if it is of a run that the server has lost.
        is_done = self.prefetch.has_only(finished) and not self._engine.in_progress
        return is_done and not self.has_unsent

    def _sync_call(self, now: float, finished: list[RequestInFlight]) -> SyncCall | None:
        new = self.new_requests.next_batch(self._request_limit)
        held = None if self._is_applied else self.prefetch.held()
        if len(new) < len(self.new_requests):
            finished = []  # their requests may be among those that are left
        demand = self.prefetch.demand(self._request_limit, finished)
        is_due = now >= self._renewal_at
        if not (new or finished or self._unreadable or held or demand.requests or is_due):
            return None
        self._is_applied = self._is_applied and not demand.requests
        stats = self.sums.due(now)
        unreadable = tuple(self._unreadable)
        stopping = self.prefetch.is_closing
        return SyncCall(now, new, finished, demand, self.works, unreadable, stats, stopping, held)

    # Replies ------------------------------------------------------------------------------------

    def on_reply(
        self, call: CrawlCall, reply: SyncReply | IdleReply | Reservations, now: float
    ) -> None:
        match call, reply:
            case SyncCall(), SyncReply():
                self._on_synced(call, reply)
            case IdleCall(), IdleReply():
                self._on_idle_reply(call, reply, now)
            case StartsCall(), list():
                self._on_starts(reply, now)

    def on_timeout(self, call: SyncCall) -> None:
        self._request_limit = max(1, max(len(call.new), call.demand.requests) // 2)

    def on_wrong_type(self, error: WrongTypeError) -> None:
        self._on_no_starts()
        self._on_mismatch(error)

    def on_renewed(self, call: SyncCall, reply: SyncReply) -> None:
        """A call has renewed the lease. What has changed since it was made is sent at once."""
        if reply.lease_expired:
            self._on_lease_expired(call.made_at)
            # On the server, this node may still have the requests that it has just forgotten.
            self._is_applied = False
            self.has_work.set()
        is_sent = (call.working, call.stopping) == (self.works, self.prefetch.is_closing)
        self._renewal_at = call.made_at + self.interval_s if is_sent else 0.0

    def _on_synced(self, call: SyncCall, reply: SyncReply) -> None:
        had_poison = self.prefetch.has_poison
        self._is_applied = True
        self._request_limit = min(MAX_NEW_REQUESTS, self._request_limit + 1)
        del self._unreadable[: len(call.unreadable)]
        self.sums.on_sent(call.made_at, call.stats)
        self.on_renewed(call, reply)
        self.prefetch.forget(call.finished)
        self._log_dead_letters(reply.dead_letters)
        self._log_gone(LOST, reply.lost)
        self._on_queued(reply.queued)
        self._on_taken(call.demand, reply.taken)
        if had_poison and not self.prefetch.has_poison:
            self.check_again()  # the server may have the next one
        if self.prefetch.engine_waits and (call.new or call.demand.requests):
            self._engine.wake()
        if self.new_requests:
            self.has_work.set()
        elif call.demand.requests and not reply.taken and self._settings.start_key is not None:
            self._starts_due = True
            self.has_work.set()

    def _on_queued(self, replies: Sequence[Queued]) -> None:
        for request, queued in self.new_requests.on_queued(replies):
            if queued is Queued.YES:
                self._stats.inc_value("scheduler/enqueued/redis")
                self.prefetch.on_new_requests()
                continue
            if queued is Queued.DUPLICATE:
                self.codec.log_duplicate(request)
                self.start.on_duplicate(request, self.codec.is_repeated(request))
            else:
                self._on_over_budget(request)
            self._engine.send_request_dropped(request)

    def _on_over_budget(self, request: Request) -> None:
        name = "scheduler/over_budget/redis"
        if not self._stats.get_value(name):
            logger.info(
                "%s is dropped: its site has all the pages that CRAWL_MAX_PAGES_PER_SITE allows. "
                "Further ones are only counted (%s).",
                request,
                name,
            )
        self._stats.inc_value(name)

    def _on_taken(self, demand: Demand, requests: Sequence[RequestInFlight]) -> None:
        for taken in requests:
            self.works = True
            self.start.on_busy()
            try:
                self.prefetch.add_taken(self.codec.decode(taken.data), taken)
            except Exception as error:
                self._unreadable.append(taken)
                self.has_work.set()
                if isinstance(error, UnknownClassError):
                    taken.outcome = Outcome.REFUSED
                    self._log_refused(error)
                else:
                    self._on_mismatch(error)
        self.prefetch.on_taken(demand, requests)

    def _on_starts(self, reservations: Reservations, now: float) -> None:
        self._starts_due = False
        for reservation, text in reservations:
            try:
                self.new_requests.add_reserved(reservation, text)
            except Exception as error:  # the text may be anything
                self._stats.inc_value("scheduler/unreadable_starts")
                logger.error(
                    "An entry of CRAWL_START_KEY is not a start request, and becomes a dead "
                    "letter: %s. scrapy frontier retry %s puts it back",
                    error,
                    self._settings.name,
                )
        if reservations:
            self._idle = Idle.NO
            self.has_work.set()
        else:
            self._check_at = now + STARTS_POLL_S  # new ones come without a notification
            self._on_no_starts()

    def _on_no_starts(self) -> None:
        self._starts_due = False
        if self._idle is Idle.YES:
            self._idle = Idle.WITHOUT_STARTS
            self.has_work.set()

    def _on_idle_reply(self, call: IdleCall, reply: IdleReply, now: float) -> None:
        self._idle = Idle.NO
        self._is_applied = True
        self.prefetch.forget(call.finished)
        self._log_dead_letters(reply.dead_letters)
        self._log_gone(QUEUED_AGAIN, reply.queued_again)
        if self.works and reply.lease_expired:
            self._on_lease_expired(now)
        self.works = False
        match reply.next_step:
            case NextStep.CLOSE:
                self.end.log_missing(reply.missing)
                self.end_crawl()
            case NextStep.CLOSE_UNDONE:
                self.end.log_undone(reply.missing)
                self.end_crawl()
            case NextStep.TAKE_MORE:
                self.check_again()
            case NextStep.TAKE_STARTS:
                self._starts_due = True
                self.check_again()
                self.has_work.set()
            case NextStep.WAIT:
                has_key = self._settings.start_key is not None
                wait_s = min(reply.wait_s, STARTS_POLL_S) if has_key else reply.wait_s
                self._check_at = now + wait_s
                self._log_wait(reply.at_work, now)

    def _log_wait(self, at_work: AtWork | None, now: float) -> None:
        """Log, once a minute, what this node waits for."""
        if now < self._log_wait_at:
            return
        self._log_wait_at = now + LOG_WAIT_S
        if at_work is None:
            key = self._settings.start_key
            server = self._settings.server(1, self._settings.prefix)  # without a password
            reads = f"; it reads {key!r} at {server}" if key is not None else ""
            logger.info("This node waits for further requests, as CRAWL_WAIT allows%s", reads)
        else:
            logger.info(
                "This node waits for others at work (%d), such as %s; requests in flight there: %d",
                at_work.nodes,
                at_work.node,
                at_work.in_flight,
            )

    def _on_lease_expired(self, now: float) -> None:
        """The node may still finish its started requests; other nodes may have taken the rest."""
        self.prefetch.forget_ready()
        silent = now - (self._renewal_at - self.interval_s)
        if self._renewal_at and silent > self._settings.lease:
            logger.warning(
                "This node was silent for %.0f s, longer than CRAWL_LEASE (%g s), so its "
                "requests went to other nodes. Requests that it still finishes count, unless "
                "another node was faster. A callback or a pipeline may have stalled it, or the "
                "server was unreachable",
                silent,
                self._settings.lease,
            )

    def _log_dead_letters(self, requests: Sequence[bytes]) -> None:
        for data in requests:
            try:
                name = str(self.codec.decode(data))
            except Exception:
                name = "a request that cannot be read"
            self._stats.inc_value("scheduler/dead_letters/redis")
            logger.warning(
                "Dead letter, because three nodes have failed with it, the last one while it did "
                "nothing else: %s. scrapy frontier retry %s puts it back",
                name,
                self._settings.name,
            )

    def _log_refused(self, error: UnknownClassError) -> None:
        self._stats.inc_value("scheduler/dead_letters/redis")
        logger.warning(
            "A request becomes a dead letter: %s. scrapy frontier retry %s puts it back",
            error,
            self._settings.name,
        )

    def _log_gone(self, text: str, count: int) -> None:
        if count:
            logger.warning(text, count, self._settings.name)

    # Another server, a lost crawl, the end ------------------------------------------------------

    def on_promoted_server(self) -> None:
        """Another server has taken over, and may lack the last calls."""
        self._is_applied = False
        self.new_requests.send_again()
        self.sums.send_again()
        self.has_work.set()

    def begin_anew(self) -> None:
        """The node has joined a new run, because the server has lost the one before."""
        self.works = True
        self._idle = Idle.NO  # the start requests are made once more
        self.sums.send_again()
        self.new_requests.begin_anew()
        for taken in self.prefetch.forget_all():
            self.enqueue(self.codec.decode(taken.data))
        self.prefetch.on_new_requests()

    def end_crawl(self) -> None:
        self.end.come(is_idle=not self.works)
        for request in self.new_requests.clear():
            self.end.drop(request)
            self._engine.send_request_dropped(request)
        self.prefetch.forget_all()
        self._engine.finish()

    def leave(self) -> None:
        """From now on, take no requests, and only send."""
        self.prefetch.wants_more = False
        self._starts_due = False
        self._idle = Idle.NO

    @property
    def has_unsent(self) -> bool:
        """New or unreadable requests still have to be sent."""
        return bool(self.new_requests or self._unreadable)
