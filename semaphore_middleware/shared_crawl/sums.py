"""Stats summed up over all nodes of a shared crawl."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from scrapy.statscollectors import StatsCollector

PREFIXES = ("downloader/", "item_", "log_count/", "retry/", "scheduler/", "spider_exceptions/")
"""The beginnings of names of stats that count."""
NO_STATS: Mapping[str, int] = {}
MOST = 10**15
"""The largest count: the server's integers have 64 bits."""
MOST_STATS = 1000
"""The most of one node: a call with more would hold up the server's other clients."""


def _is_count(name: object, value: object) -> bool:
    """True for a number that can be summed; a project's own stat may have such a name, too."""
    is_summed = isinstance(name, str) and name.startswith(PREFIXES)
    return is_summed and type(value) is int and abs(value) < MOST


class SummedStats:
    """A node's share of the sums. Each number is sent once an interval, if it has changed."""

    def __init__(self, stats: StatsCollector, interval_s: float) -> None:
        self._stats = stats
        self._interval_s = interval_s
        self._sent: dict[str, int] = {}
        self._due_at = 0.0  # loop time

    def changed(self) -> dict[str, int]:
        """The numbers changed since the server last received them."""
        counts = (stat for stat in self._stats.get_stats().items() if _is_count(*stat))
        return dict(dict(islice(counts, MOST_STATS)).items() - self._sent.items())

    def due(self, now: float) -> Mapping[str, int]:
        """The changed numbers if the interval is over, otherwise none."""
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
