"""Downloader middlewares that the add-on is compared with."""

from __future__ import annotations

import asyncio
from typing import Any, Self

from redis.asyncio import Redis
from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.utils.httpobj import urlparse_cached

from lab.benchmarks.harness.contender import AskingAgain, Place

PAUSE_S = 0.1  # until one asks again


class Middleware:
    """What they share: each is made from its crawler, and sees its requests."""

    def __init__(self, crawler: Crawler) -> None:
        crawler.signals.connect(self.left, signals.request_left_downloader)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    def left(self, request: Request) -> None:
        """It leaves the downloader."""


def enabled(kind: type[Middleware]) -> dict[str, int]:
    """For DOWNLOADER_MIDDLEWARES."""
    return {f"{kind.__module__}.{kind.__name__}": 950}


class LocalSemaphore(Middleware):
    """All that a single Scrapy process needs: an `asyncio.Semaphore` for its site."""

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._semaphore = asyncio.Semaphore(crawler.settings.getint("BENCHMARK_LIMIT"))

    async def process_request(self, request: Request) -> None:  # noqa: ARG002
        await self._semaphore.acquire()

    def left(self, request: Request) -> None:  # noqa: ARG002
        self._semaphore.release()


class OneCall(Middleware):
    """What people write by hand: one Lua call for each request.

    It counts a site's requests in each second, which takes less than a semaphore: nothing is given
    back. It is there to show what a call costs, so nothing is done where there is no room.
    """

    # KEYS: the count of a site. ARGV: the most in a second. Reply: whether there is room.
    COUNT = """
    local count = redis.call('INCR', KEYS[1])
    if count == 1 then redis.call('PEXPIRE', KEYS[1], 1000) end
    return count <= tonumber(ARGV[1])
    """

    def __init__(self, crawler: Crawler) -> None:
        self._redis = Redis.from_url(crawler.settings["BENCHMARK_REDIS_URL"])
        self._count = self._redis.register_script(self.COUNT)
        crawler.signals.connect(self._redis.aclose, signals.spider_closed)

    async def process_request(self, request: Request) -> None:
        host = urlparse_cached(request).hostname
        await self._count(keys=[f"count:{host}"], args=[1_000_000])


class Again(Middleware):
    """Asks again and again, by a client for each request that is open or waits."""

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        path, limit = crawler.settings["BENCHMARK_SERVER"], crawler.settings["BENCHMARK_LIMIT"]
        self._place = Place(path, "asking-again", limit)
        self._idle: list[AskingAgain] = []
        self._clients: dict[Request, AskingAgain] = {}
        self._leaving: set[asyncio.Future[Any]] = set()

    async def process_request(self, request: Request) -> None:
        client = self._idle.pop() if self._idle else AskingAgain(self._place, PAUSE_S)
        self._clients[request] = client  # from now on, or what waits would be garbage
        await client.acquire()

    def left(self, request: Request) -> None:
        leaving = asyncio.ensure_future(self._leave(self._clients.pop(request)))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    async def _leave(self, client: AskingAgain) -> None:
        await client.release()
        self._idle.append(client)
