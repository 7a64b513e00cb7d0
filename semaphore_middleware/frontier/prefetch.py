"""The requests that a node has taken from the server and not finished."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Set
from typing import Any

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response
from scrapy.squeues import FifoMemoryQueue
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.misc import build_from_crawler, load_object
from twisted.python.failure import Failure

from semaphore_middleware.frontier.client import (
    NO_DEMAND,
    Demand,
    Outcome,
    TakenRequest,
)
from semaphore_middleware.scrapy.engine import RobotsTxtUnreadableError

# Numbers of requests.
PREFETCH_TARGET = 32  # ready at once, of sites that are not full
SITE_BATCH = 8  # taken of one site in one call, at most
SITE_ENOUGH = SITE_BATCH // 2  # ready of one site: no more of it are taken
MAX_READY = 1000  # in all

# Statuses of responses.
LOWEST_ERROR = 500  # of the server's own
TOO_MANY_REQUESTS = 429


class Prefetch:
    """A few requests taken ahead, so that the engine need not wait for the server. No I/O.

    A request is ready from when it is taken until the engine starts it, then started until the
    engine has finished with it. Ready requests are kept in the queue that
    `SCHEDULER_PRIORITY_QUEUE` names. If that queue skips full sites, as the add-on's does, no
    requests of full sites are taken: here they could only wait, on the server any node can take
    them.

    There are `PREFETCH_TARGET` ready requests of sites that are not full, and of each full site
    those that were taken before that was known, which are less than `SITE_BATCH + SITE_ENOUGH`:
    before it was full, or before any request of it was here, if it shares a scope with others that
    is full (its domain, its address). In all there are at most `MAX_READY`.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._queue = self._new_queue()
        self._ready: dict[Request, TakenRequest] = {}
        self._ready_of_site: Counter[str] = Counter()
        self._started: dict[Request, TakenRequest] = {}
        self._is_closing = False  # the spider

    def _new_queue(self) -> Any:
        queue_class = load_object(self._crawler.settings["SCHEDULER_PRIORITY_QUEUE"])
        queue = build_from_crawler(
            queue_class, self._crawler, downstream_queue_cls=FifoMemoryQueue, key=""
        )
        self.site_of: Callable[[Request], str] = getattr(queue, "site_of", _host_of)
        self._is_full: Callable[[str], bool] = getattr(queue, "is_full", _never)
        return queue

    @property
    def ready(self) -> int:
        """How many requests have been taken and not started."""
        return len(self._ready)

    # A request from taken to finished -----------------------------------------------------------

    def add(self, request: Request, taken: TakenRequest) -> None:
        """Keep a request until the engine asks for it."""
        self._queue.push(request)
        self._ready[request] = taken
        self._ready_of_site[taken.site] += 1

    def start_next(self) -> Request | None:
        """The next request, or None if none is ready but those of full sites."""
        request: Request | None = self._queue.pop()
        if request is None:
            return None
        taken = self._ready.pop(request)
        self._started[request] = taken
        self._ready_of_site[taken.site] -= 1
        if not self._ready_of_site[taken.site]:
            del self._ready_of_site[taken.site]
        return request

    def on_fetched(self, result: Any, request: Request) -> Any:
        """Note what has become of a request. The signal `response_received` does not tell: it names
        the response's request, which a middleware may have replaced.

        A request that brings none once the spider closes may have been ended by that alone. It is
        given up: it stays unfinished, and goes to another node as it is stored, without what
        middlewares have put into it. Returned to the engine, it comes to the scheduler once more,
        where `was_given_up` tells that it is on the server already.
        """
        taken = self._started.get(request)
        if self._is_closing and not isinstance(result, Response):
            if taken is not None:
                taken.is_given_up = True
                return request
            # Perhaps a callback asked for it, or an item's pipeline: any page that is at work now
            # may lack it.
            for one in self._started.values():
                one.is_given_up |= one.outcome is not Outcome.NOTHING
        elif taken is not None and isinstance(result, Response):
            is_error = result.status >= LOWEST_ERROR or result.status == TOO_MANY_REQUESTS
            taken.outcome = Outcome.FAILED if is_error else Outcome.PAGE
        elif taken is not None and isinstance(result, Failure):
            error = result.value
            may_come = isinstance(error, RobotsTxtUnreadableError)
            is_dropped = isinstance(error, IgnoreRequest) and not may_come
            taken.outcome = Outcome.NOTHING if is_dropped else Outcome.FAILED
        return result

    def on_closing(self) -> None:
        """Note that the spider begins to close."""
        self._is_closing = True

    def was_given_up(self, request: Request) -> bool:
        """True if a request is left to other nodes, because the spider closes."""
        taken = self._started.get(request)
        return taken is not None and taken.is_given_up

    def finished(self, in_progress: Set[Request]) -> list[TakenRequest]:
        """The started requests that the engine has no longer in progress, none given up."""
        started = self._started.items()
        return [one for request, one in started if not (one.is_given_up or request in in_progress)]

    def has_only(self, finished: list[TakenRequest]) -> bool:
        """True if no request is ready, and none started but these."""
        return not self._ready and len(finished) == len(self._started)

    def forget(self, finished: list[TakenRequest]) -> None:
        """Forget these requests: the server knows that they are finished."""
        over = set(map(id, finished))
        self._started = {key: one for key, one in self._started.items() if id(one) not in over}

    @property
    def has_suspect(self) -> bool:
        """True if a node has failed with one of these requests."""
        return any(taken.tries for taken in self._taken())

    def _taken(self) -> Iterator[TakenRequest]:
        return itertools.chain(self._started.values(), self._ready.values())

    def forget_ready(self) -> list[TakenRequest]:
        """Forget the ready requests and return them: other nodes may have taken them since."""
        ready = list(self._ready.values())
        self._ready.clear()
        self._ready_of_site.clear()
        self._queue = self._new_queue()  # the old one does not let go of those of full sites
        return ready

    def forget_all(self) -> list[TakenRequest]:
        """Forget all requests and return them."""
        started = list(self._started.values())
        self._started.clear()
        return started + self.forget_ready()

    # What to take next --------------------------------------------------------------------------

    @property
    def is_low(self) -> bool:
        """True if it is time to take more."""
        return 2 * self._startable() < PREFETCH_TARGET

    def demand(self, most: int, finished: list[TakenRequest]) -> Demand:
        """How many requests to take now, at most so many, and of which sites none. `finished` are
        those that the server is told of in the same call.
        """
        if any(taken.is_alone for taken in self._taken()):
            return NO_DEMAND
        # Only requests that this node has started can fill a site.
        sites = {taken.site for taken in self._started.values()}.union(self._ready_of_site)
        skipped = frozenset(site for site in sites if self.is_skipped(site))
        most = max(0, min(most, PREFETCH_TARGET - self._startable(), MAX_READY - self.ready))
        return Demand(
            most,
            SITE_BATCH,
            skipped,
            suspect=not self.has_suspect,
            alone=self.has_only(finished),
        )

    def is_skipped(self, site: str) -> bool:
        """True if no more requests of this site are to be taken now."""
        return self._ready_of_site[site] >= SITE_ENOUGH or self._is_full(site)

    def _startable(self) -> int:
        """Ready requests of sites that are not full."""
        counts = self._ready_of_site.items()
        return self.ready - sum(count for site, count in counts if self._is_full(site))


def _host_of(request: Request) -> str:
    return urlparse_cached(request).hostname or ""


def _never(_: str) -> bool:
    return False
