"""A scheduler for crawls that many nodes share, that lose nothing, and that end for all at once.

A scrapy-redis crawl forgets what a node had in hand when it died, and never ends by itself. Here
the server keeps a request until it is done: until its callback has finished, what that yielded is
queued and its items are through, or it was dropped, has failed or been replaced. A node that has
nothing to do rests until another produces requests, and all close when the last one finds nothing
left (`shared_crawl.py` has the rules). After a crash a page may be fetched twice.

Each site has a queue of its own on the server, and the sites take turns. A node takes a few
requests ahead, of sites that are not full (`hand.py`), and a task of its own talks with the server
(`talk.py`), so that the engine never waits for it.

Against a server that is away the node keeps what it produces, and finishes nothing until that is
queued. A server that has lost its data has lost what was seen and queued: the nodes put back what
they have in hand and ask for the start URLs again, so the crawl begins anew. Its pages are fetched
again, and `max_pages` counts from nothing.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Self

from redis.exceptions import RedisError
from scrapy import Request, Spider, signals
from scrapy.core.scheduler import BaseScheduler
from scrapy.crawler import Crawler
from scrapy.exceptions import DontCloseSpider
from scrapy.utils.defer import deferred_from_coro
from twisted.internet.defer import Deferred

from semaphore_middleware.frontier.client import SharedCrawl, lease_of, node_name
from semaphore_middleware.frontier.codec import Packing
from semaphore_middleware.frontier.prefetch import Hand
from semaphore_middleware.frontier.session import Talk, log_too_late
from semaphore_middleware.frontier.subscription import News, client_of
from semaphore_middleware.scrapy.engine import Engine, end_crawl

logger = logging.getLogger(__name__)


class Scheduler(BaseScheduler):
    """One node's end of the crawl that it shares."""

    def __init__(self, crawler: Crawler) -> None:
        settings = crawler.settings
        self.crawler = crawler
        self.engine = Engine(crawler)
        self.server = client_of(settings["REDIS_URL"])
        self.crawl = SharedCrawl(
            self.server,
            name=settings.get("CRAWL") or crawler.spidercls.name,
            node=node_name(settings),
            lease=lease_of(settings),
            max_pages=settings.getint("CRAWL_MAX_PAGES"),
        )
        self.takes_part = False
        self.restart: asyncio.Task[None] | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        try:
            if not crawler.settings.get("REDIS_URL"):
                raise ValueError("REDIS_URL is not set: the nodes of a crawl share a Redis server")
            return cls(crawler)
        except ValueError as error:
            end_crawl(error)

    # Joining and leaving ------------------------------------------------------------------------

    def open(self, spider: Spider) -> Deferred[None]:
        self.talk = Talk(
            self.crawl,
            Packing(spider),
            Hand(self.crawler),
            self.engine,
            self.crawler.stats,
            on_loss=self._start_again,
        )
        self.news = News(self.server, self.crawl.news, self.talk.look_again)
        return deferred_from_coro(self._join())

    async def _join(self) -> None:
        try:
            self.takes_part = await self.news.meet_server(
                self.crawl.join, wanted=lambda: self.crawler.crawling
            )
            if not self.takes_part:
                self.engine.close_when_opened("shutdown")
                return
            unfinished = (await self.crawl.counts()).unfinished
        except RedisError as error:
            logger.info("The server refuses this node: %s", error)
            self.engine.close_when_opened("server_refused")
            return
        logger.info("Node %s joins the crawl: %d requests are left", self.crawl.node, unfinished)
        self.crawler.signals.connect(self._spider_idle, signals.spider_idle)
        self.news.listen()
        self.talk.start()

    def close(self, _reason: str) -> Deferred[None]:
        return deferred_from_coro(self._leave())

    async def _leave(self) -> None:
        if self.restart is not None:
            self.restart.cancel()
        await self.news.close()
        if self.takes_part:
            await self.talk.stop()
        await self.server.aclose()

    # What the engine asks for -------------------------------------------------------------------

    def enqueue_request(self, request: Request) -> bool:
        """Whether it is a duplicate, the server tells later: the engine has then long gone on."""
        if self.talk.ended:
            log_too_late(request)
            return False
        self.talk.produce(request)
        return True

    def next_request(self) -> Request | None:
        request = self.talk.begin()
        if request is not None:
            self.crawler.stats.inc_value("scheduler/dequeued/redis")
        return request

    def has_pending_requests(self) -> bool:
        return self.talk.may_bring_requests or self.restart is not None

    def _spider_idle(self) -> None:
        if not self.talk.ended:
            self.talk.rest()
            raise DontCloseSpider

    # A crawl that the server has lost -----------------------------------------------------------

    def _start_again(self) -> None:
        if self.restart is None:
            self.restart = asyncio.create_task(self._produce_start_requests())

    async def _produce_start_requests(self) -> None:
        try:
            await self.engine.start_again()
        finally:
            self.restart = None
            self.engine.wake()
