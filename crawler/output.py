"""The output files of a node: its pages, and its stats for its parent process."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Self

from scrapy import Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.settings import BaseSettings

from shared_crawl import node_name

FEED = {
    "pages/%(crawl)s-%(node)s.jsonl": {
        "format": "jsonlines",
        "uri_params": "crawler.output.feed_name_parts",
        "store_empty": False,
    }
}


def set_default_feed(settings: BaseSettings) -> None:
    """Write pages/<crawl>-<node>.jsonl unless a feed is asked for.

    Not in settings.py, where `-o` and `-O` would add to it and not replace it.
    """
    if not settings.getdict("FEEDS"):
        settings.set("FEEDS", FEED, priority="spider")


def feed_name_parts(params: dict[str, Any], spider: Spider) -> dict[str, Any]:
    """Crawl and node for the name of a feed's file: no two nodes write the same file."""
    crawl = spider.settings.get("CRAWL") or spider.name
    node = node_name(spider.settings, spider.name)
    return {**params, "crawl": _for_file(crawl), "node": _for_file(node)}


def _for_file(name: str) -> str:
    return re.sub(r"[^\w.-]", "_", name)[-100:]


class StatsFile:
    """An extension: it writes the final stats as JSON to the file in `STATS_FILE`."""

    def __init__(self, crawler: Crawler, path: Path) -> None:
        self.crawler = crawler
        self.path = path

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Called by Scrapy."""
        path = crawler.settings.get("STATS_FILE")
        if not path:
            raise NotConfigured
        extension = cls(crawler, Path(path))
        # Not spider_closed: other extensions still set stats there.
        crawler.signals.connect(extension.write, signals.engine_stopped)
        return extension

    def write(self) -> None:
        """Write the file."""
        self.path.write_text(json.dumps(self.crawler.stats.get_stats(), default=str))
