"""A node's unfinished requests, and its demand for more."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Any

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response
from scrapy.pqueues import DownloaderAwarePriorityQueue
from scrapy.squeues import FifoMemoryQueue
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.misc import build_from_crawler, load_object
from twisted.python.failure import Failure

from semaphore_middleware.scrapy.engine import (
    PageIncompleteError,
    RobotsTxtUnreadableError,
    pass_over_saturated_scopes,
)
from semaphore_middleware.shared_crawl.client import (
    NO_DEMAND,
    Demand,
    Held,
    Outcome,
    RequestInFlight,
)
from semaphore_middleware.shared_crawl.engine import SlotsWithRoom

# Numbers of requests.
PREFETCH_TARGET = 32  # ready at once, of sites that are not full
SITE_BATCH = 8  # taken of one site in one call, at most
SITE_ENOUGH = SITE_BATCH // 2  # ready of one site, so that no more of it are taken
MAX_READY = 1000  # in all

# Statuses of responses.
LOWEST_ERROR = 500  # of the site's own errors
TOO_MANY_REQUESTS = 429


class Prefetch:
    """A few requests taken ahead, so that the engine need not wait for the server. No I/O.

    A request is ready until the engine starts it, and started until the engine has finished with
    it. Ready requests are kept in a queue of the class in `SCHEDULER_PRIORITY_QUEUE`. The
    add-on's queue skips full sites, and Scrapy's own is made to: a site is full when its slot in
    the downloader is. No requests of full sites are taken: here they could only wait, but from the
    server any node can take them. Those that are ready when their site gets full do not count
    toward `PREFETCH_TARGET`.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._ready: dict[Request, RequestInFlight] = {}
        self._ready_of_site: Counter[str] = Counter()
        self._queue = self._new_queue()
        self._started: dict[Request, RequestInFlight] = {}
        self.is_closing = False
        """The spider has begun to close."""
        self.engine_waits = False
        """The engine asked for a request, and none was ready."""
        self.wants_more = False
        """The next call asks for requests."""
        # Set if the server had nothing to take: the skipped sites, where it may have more.
        self._empty_except: frozenset[str] | None = None
        self._is_notified = False  # since the demand of the last call

    def _new_queue(self) -> Any:
        queue_class = load_object(self._crawler.settings["SCHEDULER_PRIORITY_QUEUE"])
        queue = build_from_crawler(
            queue_class, self._crawler, downstream_queue_cls=FifoMemoryQueue, key=""
        )
        self.site_of: Callable[[Request], str] = getattr(queue, "site_of", _host_of)
        is_full = getattr(queue, "is_full", None)
        if is_full is None:
            slots = SlotsWithRoom(self._crawler, self._ready_of_site)
            is_full = slots.is_full
            if isinstance(queue, DownloaderAwarePriorityQueue):
                pass_over_saturated_scopes(queue, slots)
        self._is_full: Callable[[str], bool] = is_full
        return queue

    @property
    def ready(self) -> int:
        return len(self._ready)

    # A request from taken to finished -----------------------------------------------------------

    def add_taken(self, request: Request, taken: RequestInFlight) -> None:
        """Keep a request until the engine asks for it."""
        site = taken.site  # raises an error for bytes that are no text, before anything is kept
        self._queue.push(request)
        self._ready[request] = taken
        self._ready_of_site[site] += 1

    def start_next(self) -> Request | None:
        """The next request, or None if only requests of full sites are ready."""
        request: Request | None = self._queue.pop()
        self.engine_waits = request is None
        if request is not None:
            taken = self._ready.pop(request)
            self._started[request] = taken
            self._ready_of_site[taken.site] -= 1
            if not self._ready_of_site[taken.site]:
                del self._ready_of_site[taken.site]
        is_low = 2 * self._startable() < PREFETCH_TARGET
        if is_low and self.may_have_more:
            self.wants_more = True
        return request

    def on_fetched(self, result: Any, request: Request) -> Any:
        """Note the outcome of a request. The signal `response_received` is no help: it names the
        response's request, and a middleware may have replaced that one.

        Once the spider closes, a request without a response may have been ended by that alone. It
        is given up: it stays unfinished, and goes to another node as it is stored. The engine gets
        it back and passes it to the scheduler again, which ignores it (`was_given_up`).
        """
        taken = self._started.get(request)
        if self.is_closing and taken is not None and not isinstance(result, Response):
            taken.is_given_up = True
            return request
        if isinstance(result, Failure) and isinstance(result.value, PageIncompleteError):
            for page in self._started.values():  # any of these may be the incomplete one
                page.is_given_up |= page.outcome is not Outcome.NOTHING
        elif taken is not None and isinstance(result, Response):
            is_error = result.status >= LOWEST_ERROR or result.status == TOO_MANY_REQUESTS
            taken.outcome = Outcome.FAILED if is_error else Outcome.PAGE
        elif taken is not None and isinstance(result, Failure):
            error = result.value
            may_come = isinstance(error, RobotsTxtUnreadableError)
            is_dropped = isinstance(error, IgnoreRequest) and not may_come
            taken.outcome = Outcome.NOTHING if is_dropped else Outcome.FAILED
        return result

    def on_callback(self, request: Request) -> None:
        """The callback gets the response, so it counts as a page even with an error's status."""
        if request in self._started:
            self._started[request].outcome = Outcome.PAGE

    def was_given_up(self, request: Request) -> bool:
        """True if a request is left to other nodes, as the spider closes. The server has it."""
        taken = self._started.get(request)
        return taken is not None and taken.is_given_up

    def finished(self, in_progress: Set[Request]) -> list[RequestInFlight]:
        """The started requests no longer in progress, without those given up."""
        return [
            taken
            for request, taken in self._started.items()
            if not (taken.is_given_up or request in in_progress)
        ]

    def has_only(self, finished: Sequence[RequestInFlight]) -> bool:
        """True if the node has no requests except these."""
        return not self._ready and len(finished) == len(self._started)

    def forget(self, finished: Iterable[RequestInFlight]) -> None:
        """Forget these requests: the server knows that they are finished."""
        over = set(map(id, finished))
        self._started = {
            request: taken for request, taken in self._started.items() if id(taken) not in over
        }

    def held(self) -> Held:
        """All requests, by place."""
        ready, started = self._ready.values(), self._started.values()
        return Held([taken.place for taken in ready], [taken.place for taken in started])

    @property
    def has_poison(self) -> bool:
        """True if a node has failed with one of these requests: then no other such one is taken."""
        return any(taken.tries for taken in self._taken())

    def _taken(self) -> Iterator[RequestInFlight]:
        return itertools.chain(self._started.values(), self._ready.values())

    def forget_ready(self) -> list[RequestInFlight]:
        """Forget the ready requests and return them: other nodes may have taken them since."""
        ready = list(self._ready.values())
        self._ready.clear()
        self._ready_of_site.clear()
        self._queue = self._new_queue()  # the old one does not return requests of full sites
        return ready

    def forget_all(self) -> list[RequestInFlight]:
        started = list(self._started.values())
        self._started.clear()
        return started + self.forget_ready()

    # What to take next --------------------------------------------------------------------------

    @property
    def may_have_more(self) -> bool:
        """True if the server may have requests for this node."""
        skipped = self._empty_except
        return skipped is None or not all(map(self.is_skipped, skipped))

    def on_notified(self) -> bool:
        """The server may have requests now. Returns True if it had none, and must be asked."""
        had_none = self._empty_except is not None
        self.wants_more |= had_none
        self._empty_except = None
        self._is_notified = True
        return had_none

    def on_new_requests(self) -> None:
        self._empty_except = None

    def demand(self, limit: int, finished: Sequence[RequestInFlight]) -> Demand:
        """The demand of the next call, at most `limit` requests. The same call reports the
        `finished` ones.
        """
        self._is_notified = False
        if (
            self.is_closing
            or not self.wants_more
            or any(taken.must_be_alone for taken in self._taken())
        ):
            return NO_DEMAND
        # Only requests that this node has started can fill a site.
        sites = {taken.site for taken in self._started.values()}.union(self._ready_of_site)
        skipped = frozenset(site for site in sites if self.is_skipped(site))
        missing = min(PREFETCH_TARGET - self._startable(), MAX_READY - self.ready)
        return Demand(
            max(0, min(limit, missing)),
            SITE_BATCH,
            skipped,
            poison=not self.has_poison,
            alone=self.has_only(finished),
        )

    def on_taken(self, demand: Demand, taken: Sequence[RequestInFlight]) -> None:
        if demand.requests:
            self.wants_more = False
            is_empty = not taken and not self._is_notified
            self._empty_except = demand.skipped_sites if is_empty else None

    def is_skipped(self, site: str) -> bool:
        """True if no more requests of this site should be taken now."""
        return self._ready_of_site[site] >= SITE_ENOUGH or self._is_full(site)

    def _startable(self) -> int:
        """The number of ready requests, without those of full sites."""
        counts = self._ready_of_site.items()
        return self.ready - sum(count for site, count in counts if self._is_full(site))


def _host_of(request: Request) -> str:
    return urlparse_cached(request).hostname or ""
