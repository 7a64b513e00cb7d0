"""The scheduler's queue, which passes over sites that are full."""

from __future__ import annotations

from typing import Any

from scrapy.pqueues import DownloaderAwarePriorityQueue

from semaphore_middleware.gate import gate_of


class SemaphorePriorityQueue(DownloaderAwarePriorityQueue):
    """Requests of a site that has a limit's worth of waiters stay here, on disk under JOBDIR, and
    other sites' requests go ahead of them. The sites that are not full take turns.
    """

    def __init__(self, crawler: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(crawler, *args, **kwargs)
        gate_of(crawler).pass_over_full_sites(self)
