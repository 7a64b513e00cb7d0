"""The scheduler's queue, which passes over sites that are full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy.pqueues import DownloaderAwarePriorityQueue

from semaphore_middleware.scrapy.engine import pass_over_full_sites
from semaphore_middleware.scrapy.throttler import gate_of

if TYPE_CHECKING:
    from scrapy import Request


class SemaphorePriorityQueue(DownloaderAwarePriorityQueue):
    """Requests of a site that has a limit's worth of waiters stay here, on disk under JOBDIR, and
    other sites' requests go ahead of them. The sites that are not full take turns.
    """

    def __init__(self, crawler: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(crawler, *args, **kwargs)
        gate = gate_of(crawler)
        pass_over_full_sites(self, gate.waiters)
        self._waiters = gate.waiters

    # For a scheduler that has more requests than it keeps here ------------------------------------

    def site_of(self, request: Request) -> str:
        """What this request shares a limit with: one name for a site in all nodes, of any scope."""
        return self._waiters.get_slot_key(request)

    def is_full(self, site: str) -> bool:
        """Whether `pop` passes over the requests of this site now."""
        return not self._waiters.stats([site])
