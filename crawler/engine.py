"""What the shared frontier needs of Scrapy's engine, and where its insides are known (2.19)."""

from __future__ import annotations

import asyncio
from collections.abc import Set

from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider


class Engine:
    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    @property
    def in_progress(self) -> Set[Request]:
        """The requests that the engine has not done with.

        Private, because no signal tells that moment: `request_left_downloader` comes before the
        callback, and nothing at all comes after it.
        """
        slot = self._crawler.engine._slot
        assert slot is not None, "a scheduler is used while its spider is open"
        return slot.inprogress

    def wake(self) -> None:
        """Have the scheduler asked again at once: by itself the engine looks every 5 s only.

        Private, because there is no public way. The slot is None once the spider is closed.
        """
        engine = self._crawler.engine
        if engine.running and engine._slot is not None:
            engine._slot.nextcall.schedule()

    def tell_of_drop(self, request: Request) -> None:
        """What the engine tells itself where the scheduler can say at once what it wants."""
        self._crawler.signals.send_catch_log(
            signals.request_dropped, request=request, spider=self._crawler.spider
        )

    def close_when_opened(self, reason: str) -> None:
        """Ask for it the way Scrapy expects: raised by open() it leaves a traceback behind."""

        def close_spider() -> None:
            raise CloseSpider(reason)

        self._crawler.signals.connect(close_spider, signals.spider_opened, weak=False)

    async def start_again(self) -> None:
        """Ask the spider for its start requests once more."""
        engine = self._crawler.engine
        start = await engine.scraper.spidermw.process_start()
        assert start is not None
        async for request in start:
            if isinstance(request, Request):
                engine.crawl(request)
                await asyncio.sleep(0)
