"""The Scrapy scheduler of crawls that many nodes share: no request is lost, and all end together.

A scrapy-redis crawl loses the requests that a node has taken when the node dies, and never ends by
itself. Here the server keeps a request until it is finished: until its callback has returned, the
requests that it yielded are queued and its items have passed the pipelines, or until it was
dropped, has failed or was replaced. An idle node waits until another queues requests; when the last
one finds nothing left, all close (`client.py` has the rules). After a crash a page may be fetched
twice.

Each site has a queue of its own on the server, and the sites take turns. A node takes a few
requests ahead, of sites that are not full (`prefetch.py`), and a background task talks to the
server (`session.py`), so that the engine never waits for it.

While the server is unavailable, a node keeps the requests that its callbacks yield, and finishes
nothing until they are queued. If the server has lost its data, fingerprints and queues are gone:
each node queues again what it had taken, and the start URLs. So the crawl starts over, fetches its
pages again, and counts `max_pages` from 0.
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

from semaphore_middleware.frontier.client import CrawlClient, lease_of, node_name
from semaphore_middleware.frontier.codec import Codec
from semaphore_middleware.frontier.prefetch import Prefetch
from semaphore_middleware.frontier.session import FrontierSession, log_too_late
from semaphore_middleware.frontier.subscription import Subscription, create_client
from semaphore_middleware.scrapy.engine import Engine, end_crawl

logger = logging.getLogger(__name__)


class Scheduler(BaseScheduler):
    """One node's scheduler for the crawl that it shares. Set it with `SCHEDULER`.

    Settings: `REDIS_URL`, `CRAWL` (the crawl's name, default: the spider's), `CRAWL_MAX_PAGES`,
    `CRAWL_LEASE` (seconds).
    """

    def __init__(self, crawler: Crawler) -> None:
        settings = crawler.settings
        self.crawler = crawler
        self.engine = Engine(crawler)
        self.server = create_client(settings["REDIS_URL"])
        self.client = CrawlClient(
            self.server,
            name=settings.get("CRAWL") or crawler.spidercls.name,
            node=node_name(settings),
            lease=lease_of(settings),
            max_pages=settings.getint("CRAWL_MAX_PAGES"),
        )
        self.joined = False
        self.restart: asyncio.Task[None] | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Called by Scrapy. A wrong setting ends the crawl with one line in the log."""
        try:
            if not crawler.settings.get("REDIS_URL"):
                raise ValueError("REDIS_URL is not set: the nodes of a crawl share a Redis server")
            return cls(crawler)
        except ValueError as error:
            end_crawl(error)

    # Joining and leaving ------------------------------------------------------------------------

    def open(self, spider: Spider) -> Deferred[None]:
        """Wait for the server and join the crawl."""
        self.session = FrontierSession(
            self.client,
            Codec(spider),
            Prefetch(self.crawler),
            self.engine,
            self.crawler.stats,
            on_data_loss=self._start_over,
        )
        self.subscription = Subscription(self.server, self.client.channel, self.session.check_again)
        return deferred_from_coro(self._join())

    async def _join(self) -> None:
        try:
            self.joined = await self.subscription.wait_for_server(
                self.client.join, wanted=lambda: self.crawler.crawling
            )
            if not self.joined:
                self.engine.close_when_opened("shutdown")
                return
            unfinished = (await self.client.counts()).unfinished
        except RedisError as error:
            logger.info("The crawl's server refuses this node: %s", error)
            self.engine.close_when_opened("server_refused")
            return
        logger.info(
            "Node %s joins the crawl; unfinished requests: %d", self.client.node, unfinished
        )
        self.crawler.signals.connect(self._spider_idle, signals.spider_idle)
        self.subscription.start()
        self.session.start()

    def close(self, _reason: str) -> Deferred[None]:
        """Leave the crawl; unfinished requests go back to the server."""
        return deferred_from_coro(self._leave())

    async def _leave(self) -> None:
        if self.restart is not None:
            self.restart.cancel()
        await self.subscription.close()
        if self.joined:
            await self.session.stop()
        await self.server.aclose()

    # Called by the engine -----------------------------------------------------------------------

    def enqueue_request(self, request: Request) -> bool:
        """Queue a request. True even for a duplicate: only the server knows, and it is not waited
        for.
        """
        if self.session.ended:
            log_too_late(request)
            return False
        self.session.enqueue(request)
        return True

    def next_request(self) -> Request | None:
        """The next request to download, if one is ready."""
        request = self.session.next_request()
        if request is not None:
            self.crawler.stats.inc_value("scheduler/dequeued/redis")
        return request

    def has_pending_requests(self) -> bool:
        """False if the spider may count as idle."""
        return self.session.has_pending or self.restart is not None

    def _spider_idle(self) -> None:
        if not self.session.ended:
            self.session.on_idle()
            raise DontCloseSpider

    # A crawl that the server has lost -----------------------------------------------------------

    def _start_over(self) -> None:
        if self.restart is None:
            self.restart = asyncio.create_task(self._enqueue_start_requests())

    async def _enqueue_start_requests(self) -> None:
        try:
            await self.engine.crawl_start_requests()
        finally:
            self.restart = None
            self.engine.wake()
