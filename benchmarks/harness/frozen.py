"""Plain Scrapy with what the add-on does for the garbage collector."""

from __future__ import annotations

import gc
from typing import Self

from scrapy import signals
from scrapy.crawler import Crawler


class Frozen:
    """Leaves what is loaded when the crawl begins out of the collector's rounds."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        extension = cls()
        crawler.signals.connect(extension.freeze, signals.spider_opened)
        return extension

    def freeze(self) -> None:
        gc.collect()
        gc.freeze()
