"""The add-on's downloader and priority queue, used by Scrapy's engine."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Any

from scrapy.core.downloader import Downloader, Slot
from scrapy.pqueues import DownloaderAwarePriorityQueue

from semaphore_middleware.scrapy.crawl import crawl_of
from semaphore_middleware.scrapy.engine import connections_per_host, pass_over_saturated_scopes
from semaphore_middleware.scrapy.scopes import ScopeNames, names_in, queue_key_of
from semaphore_middleware.scrapy.slots import OpenSlot

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from twisted.internet.defer import Deferred

NO_CONCURRENCY_LIMIT = 1000  # mutant 1000 -> 10000: no limit, as much as before
"""Connections kept to a host if CONCURRENT_REQUESTS sets no limit."""


class SemaphoreDownloader(Downloader):
    """The add-on's `DOWNLOADER`: requests waiting for permits do not use up CONCURRENT_REQUESTS.

    CONCURRENT_REQUESTS_PER_DOMAIN, DOWNLOAD_DELAY, DOWNLOAD_SLOTS and AutoThrottle hold for all
    nodes together, by the permits, and its own slots hold up nothing (see `OpenSlot`).
    """

    def __init__(self, crawler: Crawler) -> None:
        crawl = crawl_of(crawler)
        self._downloads = crawl.downloads
        self._name_limit = crawl.semaphore.name_limit
        at_once = crawl.settings.concurrent_requests or NO_CONCURRENCY_LIMIT
        largest = max(crawl.settings.limits.largest, at_once)
        with connections_per_host(crawler, largest):
            super().__init__(crawler)
        self._downloads.wrap_transfers(self)
        self._downloads.slot_of = self._slot_of

    def fetch(
        self,
        request: Request,
        spider: Spider | None = None,  # noqa: ARG002 - older classes derived from Scrapy's give it
    ) -> Deferred[Response | Request]:
        return self._downloads.fetch(super().fetch, request)

    def _slot_of(self, request: Request) -> OpenSlot:
        _, slot = self._get_slot(request)
        assert isinstance(slot, OpenSlot), "as `_get_slot` makes it"
        return slot

    def _get_slot(
        self,
        request: Request,
        spider: Spider | None = None,  # noqa: ARG002 - as in `fetch`
    ) -> tuple[str, Slot]:
        """The name of a request's slot, and the slot: Scrapy's, opened. No public method makes it.

        Scrapy gives it the delay of the settings, or AutoThrottle's start delay.
        """
        key, slot = super()._get_slot(request)
        if not isinstance(slot, OpenSlot):
            of_settings = self.settings.getfloat("DOWNLOAD_DELAY")
            delay = self.per_slot_settings.get(key, {}).get("delay", of_settings)
            slot = self.slots[key] = OpenSlot(slot, delay, self._name_limit)
        return key, slot

    def needs_backout(self) -> bool:
        """True if the engine should take no request from the scheduler.

        Scrapy counts `active`, including requests that only wait for a permit: one full site would
        use up CONCURRENT_REQUESTS, and hold up all other sites that the scheduler could go on to.
        """
        return self._downloads.admissions.needs_backout(len(self.active))


class SemaphorePriorityQueue(DownloaderAwarePriorityQueue):
    """The add-on's `SCHEDULER_PRIORITY_QUEUE`: it passes over saturated scopes.

    A scope is saturated if as many requests wait as its limit allows. Its other requests stay in
    the queue (under JOBDIR on disk), and those of other scopes go ahead, alternately. The time to
    find the next request does not grow with the number of slots.
    """

    def __init__(self, crawler: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(crawler, *args, **kwargs)
        self._admissions = crawl_of(crawler).downloads.admissions
        self._admissions.scheduler_passes_over = True
        self._names = sorted(map(names_in, self.pqueues))
        self._next: ScopeNames | None = None  # for the next request
        self._last: ScopeNames = ()  # of the last request
        pass_over_saturated_scopes(self, self)

    def push(self, request: Request) -> None:
        """Queue a request. If the queue of its slot raises an error, that queue is kept."""
        slots = len(self.pqueues)
        try:
            super().push(request)
        finally:
            if len(self.pqueues) > slots:
                insort(self._names, names_in(next(reversed(self.pqueues))))

    def pop(self) -> Request | None:
        """The next request; None if all requests have a saturated scope."""
        slots = len(self.pqueues)
        request: Request | None = super().pop()
        if self._next is not None:
            self._last = self._next
            if len(self.pqueues) < slots:
                del self._names[bisect_left(self._names, self._last)]
        return request

    def close(self) -> dict[str, list[int]]:
        self._names.clear()
        return super().close()

    # For Scrapy's part of the queue: it takes the slot with the fewest requests -----------------

    def get_slot_key(self, request: Request) -> str:
        """The slot of a request: its scopes, by names fit for file names."""
        return self._admissions.queue_key(request)

    def stats(self, possible_slots: Iterable[str]) -> list[tuple[int, str]]:  # noqa: ARG002
        """The slot of the next request, as the only choice."""
        self._next = names = self._admissions.next_names(self._names, self._last)
        return [] if names is None else [(0, queue_key_of(names))]

    # For schedulers that keep only a part of their requests here --------------------------------

    def site_of(self, request: Request) -> str:
        """A name for the request's scope, the same on all nodes: short and printable."""
        return self.get_slot_key(request)

    def is_full(self, site: str) -> bool:
        """True if `pop` passes over requests of this scope at present."""
        return self._admissions.is_saturated(site)
