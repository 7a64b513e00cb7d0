"""Stats summed up over all nodes of a shared crawl."""

from __future__ import annotations

from collections.abc import Mapping

from scrapy.statscollectors import StatsCollector

NAMES = frozenset(
    {
        "downloader/exception_count",
        "downloader/request_bytes",
        "downloader/request_count",
        "downloader/response_bytes",
        "downloader/response_count",
        "item_dropped_count",
        "item_scraped_count",
        "log_count/ERROR",
        "log_count/WARNING",
        "retry/count",
    }
)
PREFIXES = (
    "downloader/exception_type_count/",
    "downloader/response_status_count/",
    "spider_exceptions/",
)
NO_STATS: Mapping[str, int] = {}


class SummedStats:
    """A node's share of the sums. Each number is sent once an interval, if it has changed."""

    def __init__(self, stats: StatsCollector, interval_s: float) -> None:
        self._stats = stats
        self._interval_s = interval_s
        self._sent: dict[str, int] = {}
        self._due_at = 0.0  # loop time

    def changed(self) -> dict[str, int]:
        """The numbers changed since the server last received them."""
        numbers = {
            name: int(value)
            for name, value in self._stats.get_stats().items()
            if name in NAMES or name.startswith(PREFIXES)
        }
        return dict(numbers.items() - self._sent.items())

    def due(self, now: float) -> Mapping[str, int]:
        """The changed numbers if the interval is over, else none."""
        return self.changed() if now >= self._due_at else NO_STATS

    def on_sent(self, sent_at: float, numbers: Mapping[str, int]) -> None:
        """The server has received the numbers due at this time."""
        if sent_at >= self._due_at:
            self._sent.update(numbers)
            self._due_at = sent_at + self._interval_s

    def send_again(self) -> None:
        """The server may have lost all numbers."""
        self._sent = {}
        self._due_at = 0.0
