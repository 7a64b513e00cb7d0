"""The scheduler's queue, which passes over saturated scopes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy.pqueues import DownloaderAwarePriorityQueue

from semaphore_middleware.scrapy.engine import pass_over_saturated_scopes
from semaphore_middleware.scrapy.throttler import throttler_of

if TYPE_CHECKING:
    from scrapy import Request


class SemaphorePriorityQueue(DownloaderAwarePriorityQueue):
    """The add-on's `SCHEDULER_PRIORITY_QUEUE`.

    Requests of a saturated scope, one with a limit's worth of waiting requests, stay in the queue
    (under JOBDIR on disk), and other requests go ahead of them. Scopes that are not take turns.
    """

    def __init__(self, crawler: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(crawler, *args, **kwargs)
        self._backpressure = throttler_of(crawler).backpressure
        pass_over_saturated_scopes(self, self._backpressure)

    # For schedulers that keep only a part of their requests here, as the shared frontier does ----

    def site_of(self, request: Request) -> str:
        """A name for the request's scope, the same on all nodes. Scopes may be any text; names are
        short and printable.
        """
        return self._backpressure.get_slot_key(request)

    def is_full(self, site: str) -> bool:
        """True if `pop` passes over requests of this scope at present."""
        return not self._backpressure.stats([site])
