"""Scrapy's robots.txt middleware, mended, and known to the crawl's backpressure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy.downloadermiddlewares.robotstxt import RobotsTxtMiddleware as ScrapyRobotsTxtMiddleware
from scrapy.utils.httpobj import urlparse_cached

from semaphore_middleware.scrapy.throttler import throttler_of

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.robotstxt import RobotParser


class RobotsTxtMiddleware(ScrapyRobotsTxtMiddleware):
    """Scrapy's middleware, without a bug that lets forbidden requests through.

    Requests that wait for the same robots.txt share a Deferred, whose result is None for all but
    the first of them (Scrapy 2.19, `Deferred.asFuture`), and None means that all is allowed.
    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._backpressure = throttler_of(crawler).backpressure
        self._leaders: dict[str, Request] = {}
        """By host and port: the request in whose `fetch` its robots.txt is being fetched."""

    async def robot_parser(self, request: Request) -> RobotParser | None:
        """The parser for a request's host, once its robots.txt is there."""
        host = urlparse_cached(request).netloc
        leader = self._leaders.setdefault(host, request)
        self._backpressure.follow(request, leader)
        try:
            await super().robot_parser(request)
        finally:
            self._backpressure.unfollow(request, leader)
            if leader is request:
                del self._leaders[host]
        return await super().robot_parser(request)  # from memory now: the same for all
