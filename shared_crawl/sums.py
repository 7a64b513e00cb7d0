"""Stats summed up over all nodes of a shared crawl."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import islice

from scrapy.statscollectors import StatsCollector

from semaphore_middleware.model.validation import shown

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


MOST = 10**15
"""The largest count: the server's integers have 64 bits."""
MOST_STATS = 1000
"""Of a node: a call with more would hold up the server's other clients."""

logger = logging.getLogger(__name__)


def _is_count(value: object) -> bool:
    """True for a number to be summed up; a stat of such a name may be the project's own."""
    return type(value) is int and abs(value) < MOST


class SummedStats:
    """A node's share of the sums. Each number is sent once an interval, if it has changed. Stats
    whose names begin with one of `more` are summed up, too.
    """

    def __init__(
        self, stats: StatsCollector, interval_s: float, more: tuple[str, ...] = ()
    ) -> None:
        self._stats = stats
        self._prefixes = PREFIXES + more
        self._interval_s = interval_s
        self._sent: dict[str, int] = {}
        self._due_at = 0.0  # loop time
        self._has_warned = False

    def changed(self) -> dict[str, int]:
        """The numbers changed since the server last received them."""
        summed = {
            name: value
            for name, value in self._stats.get_stats().items()
            if isinstance(name, str) and (name in NAMES or name.startswith(self._prefixes))
        }
        counts = ((name, value) for name, value in summed.items() if _is_count(value))
        numbers = dict(islice(counts, MOST_STATS))
        if len(numbers) < len(summed) and not self._has_warned:
            self._has_warned = True
            name = next(name for name in summed if name not in numbers)
            logger.warning(
                "The stat %r = %s is not summed up over all nodes: allowed are integers of at "
                "most 15 digits, and %d stats of a node",
                name,
                shown(summed[name]),
                MOST_STATS,
            )
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
