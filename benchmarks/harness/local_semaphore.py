"""All that a single Scrapy process needs: a middleware with an `asyncio.Semaphore` for its site."""

from __future__ import annotations

import asyncio
from typing import Self

from scrapy import Request, signals
from scrapy.crawler import Crawler


class LocalSemaphore:
    """Requests wait in `process_request` until the semaphore lets them in."""

    def __init__(self, limit: int) -> None:
        self._semaphore = asyncio.Semaphore(limit)
        self._held: set[Request] = set()

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        middleware = cls(crawler.settings.getint("LOCAL_LIMIT"))
        crawler.signals.connect(middleware.left, signals.request_left_downloader)
        return middleware

    async def process_request(self, request: Request) -> None:
        await self._semaphore.acquire()
        self._held.add(request)

    def left(self, request: Request) -> None:
        self._held.remove(request)
        self._semaphore.release()
