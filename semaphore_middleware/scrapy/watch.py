"""What people see of a crawl: its stats, its metrics, and in the log why requests wait for long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semaphore_middleware.core.semaphore import FairSemaphore
from semaphore_middleware.scrapy.settings import SemaphoreSettings
from semaphore_middleware.telemetry.long_waits import LongWaits
from semaphore_middleware.telemetry.prometheus import Metrics
from semaphore_middleware.telemetry.stats import GateStats

if TYPE_CHECKING:
    from scrapy.statscollectors import StatsCollector


class Watch:
    def __init__(self, settings: SemaphoreSettings) -> None:
        self._metrics = Metrics.of(settings.metrics_host, settings.metrics_port)
        self.on_round_trip = self._metrics.round_trip if self._metrics else None
        """For the semaphore to call; None: nobody wants to know."""
        self._long_waits: LongWaits | None = None

    def stats(self, stats: StatsCollector) -> GateStats:
        """Those of this crawl, which are measured as well if there are metrics."""
        return self._metrics.stats(stats) if self._metrics else GateStats(stats)

    async def open(self, semaphore: FairSemaphore, stats: GateStats) -> None:
        """Begin before the semaphore is open: a server that cannot be reached is worth a look."""
        self._long_waits = LongWaits(semaphore)
        if self._metrics:
            await self._metrics.open(semaphore, stats)

    def stands_in_line(self, scope: str) -> None:
        """A request of this scope has to wait."""
        if self._long_waits:
            self._long_waits.watch(scope)

    async def close(self) -> None:
        if self._long_waits:
            await self._long_waits.close()
        if self._metrics:
            await self._metrics.close()
