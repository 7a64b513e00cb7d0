"""What a node leaves behind: its feed, and its stats for who started it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Self

from scrapy import Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.settings import BaseSettings

from semaphore_middleware.frontier.client import node_name

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
    """What a feed's file is named after: no two nodes of a crawl may write the same one."""
    crawl = spider.settings.get("CRAWL") or spider.name
    node = node_name(spider.settings)
    return {**params, "crawl": _for_file(crawl), "node": _for_file(node)}


def _for_file(name: str) -> str:
    return re.sub(r"[^\w.-]", "_", name)[-100:]


class StatsFile:
    """Write the crawl's final stats to the file that `STATS_FILE` names, as JSON."""

    def __init__(self, crawler: Crawler, path: Path) -> None:
        self.crawler = crawler
        self.path = path

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        path = crawler.settings.get("STATS_FILE")
        if not path:
            raise NotConfigured
        extension = cls(crawler, Path(path))
        # After spider_closed, where other extensions still count.
        crawler.signals.connect(extension.write, signals.engine_stopped)
        return extension

    def write(self) -> None:
        self.path.write_text(json.dumps(self.crawler.stats.get_stats(), default=str))
