"""robots.txt for nodes that join a crawl in full swing."""

from __future__ import annotations

from scrapy import Request
from scrapy.downloadermiddlewares.robotstxt import RobotsTxtMiddleware as ScrapyRobotsTxtMiddleware
from scrapy.robotstxt import RobotParser


class RobotsTxtMiddleware(ScrapyRobotsTxtMiddleware):
    """Scrapy's own, minus a hole: of the requests that wait for a robots.txt it judges only two.

    Its waiters share one Deferred, whose result is None for all but the first of them (Scrapy
    2.19, `Deferred.asFuture`), and None means that all is allowed.
    """

    async def robot_parser(self, request: Request) -> RobotParser | None:
        await super().robot_parser(request)
        return await super().robot_parser(request)  # now from memory, the same for everyone
