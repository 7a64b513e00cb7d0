"""What people write by hand: a middleware that awaits one Lua call for each request."""

from __future__ import annotations

from typing import Self

from redis.asyncio import Redis
from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.utils.httpobj import urlparse_cached

# KEYS: the count of a site. ARGV: the most in a second. Reply: whether there is room.
COUNT = """
local count = redis.call('INCR', KEYS[1])
if count == 1 then redis.call('PEXPIRE', KEYS[1], 1000) end
return count <= tonumber(ARGV[1])
"""


class OneCall:
    """Counts a site's requests in each second, which takes less than a semaphore: nothing is given
    back. It is there to show what a call costs, so nothing is done where there is no room.
    """

    def __init__(self, url: str) -> None:
        self._redis = Redis.from_url(url)
        self._count = self._redis.register_script(COUNT)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        middleware = cls(crawler.settings["BY_HAND_REDIS_URL"])
        crawler.signals.connect(middleware.close, signals.spider_closed)
        return middleware

    async def process_request(self, request: Request) -> None:
        host = urlparse_cached(request).hostname
        await self._count(keys=[f"count:{host}"], args=[1_000_000])

    async def close(self) -> None:
        await self._redis.aclose()
