"""A node's final stats, for the process that has started it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Self

from scrapy import signals
from scrapy.crawler import Crawler


class StatsFile:
    """An extension: it writes the final stats as JSON to the file in `STATS_FILE`."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        # Not spider_closed: other extensions still set stats there.
        crawler.signals.connect(self.write, signals.engine_stopped)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    def write(self) -> None:
        stats = json.dumps(self._crawler.stats.get_stats(), default=str)
        Path(self._crawler.settings["STATS_FILE"]).write_text(stats)
