"""Downloader middlewares that the add-on is compared with."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from typing import Any, Self

from redis.asyncio import Redis
from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.utils.httpobj import urlparse_cached

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
    """A sorted set of holders by the time at which they asked: who is refused asks again.

    So has Josiah L. Carlson, Redis in Action (Manning, 2013), in 6.3.1.
    """

    KEY, LEASE_S = "asking-again", 10.0  # until a holder counts as dead

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._redis: Any = Redis(unix_socket_path=crawler.settings["BENCHMARK_SERVER"])
        self._limit = crawler.settings.getint("BENCHMARK_LIMIT")
        self._names: dict[Request, str] = {}
        self._leaving: set[asyncio.Future[Any]] = set()

    async def process_request(self, request: Request) -> None:
        self._names[request] = name = secrets.token_hex(8)
        while True:
            if await self._attempt(name):
                return
            # Varied, or all who were refused ask at once.
            await asyncio.sleep(PAUSE_S * random.uniform(0.5, 1.5))

    async def _attempt(self, name: str) -> bool:
        now = time.time()
        async with self._redis.pipeline() as pipe:
            pipe.zremrangebyscore(self.KEY, "-inf", now - self.LEASE_S)
            pipe.zadd(self.KEY, {name: now})
            pipe.zrank(self.KEY, name)
            *_, rank = await pipe.execute()
        if rank is not None and rank < self._limit:
            return True
        await self._redis.zrem(self.KEY, name)
        return False

    def left(self, request: Request) -> None:
        leaving = asyncio.ensure_future(self._redis.zrem(self.KEY, self._names.pop(request)))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
