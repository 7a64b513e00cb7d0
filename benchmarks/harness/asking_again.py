"""The counting semaphore of the books, as a middleware: who gets no permit asks again."""

from __future__ import annotations

import asyncio
import time
from typing import Self
from uuid import uuid4

from redis.asyncio import Redis
from scrapy import Request, signals
from scrapy.crawler import Crawler

KEY = "asking-again"
LEASE = 15.0  # seconds
PAUSE = 0.1  # seconds before it asks again


class AskingAgain:
    """A sorted set of holders by the time of asking: whoever is among the first has a permit."""

    def __init__(self, url: str, limit: int) -> None:
        self._redis = Redis.from_url(url)
        self._limit = limit
        self._held: dict[Request, str] = {}
        self._leaving: set[asyncio.Future[int]] = set()

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        settings = crawler.settings
        middleware = cls(settings["BY_HAND_REDIS_URL"], settings.getint("BY_HAND_LIMIT"))
        crawler.signals.connect(middleware.left, signals.request_left_downloader)
        return middleware

    async def process_request(self, request: Request) -> None:
        id = uuid4().hex
        while not await self._is_among_the_first(id):
            await self._redis.zrem(KEY, id)
            await asyncio.sleep(PAUSE)
        self._held[request] = id

    async def _is_among_the_first(self, id: str) -> bool:
        now = time.time()
        async with self._redis.pipeline() as pipe:
            pipe.zremrangebyscore(KEY, "-inf", now - LEASE)
            pipe.zadd(KEY, {id: now})
            pipe.zrank(KEY, id)
            *_, rank = await pipe.execute()
        return rank is not None and int(rank) < self._limit

    def left(self, request: Request) -> None:
        leaving = asyncio.ensure_future(self._redis.zrem(KEY, self._held.pop(request)))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
