"""scrapy-redis's scheduler, queue and dupefilter for crawls that end, and end for all at once.

A scrapy-redis crawl never ends by itself, or each node ends when it happens to find the queue
empty. Here a node that has nothing to do rests until another produces requests, and all of them
close when the last one finds nothing left (`shared_crawl.py` has the rules).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Self, TypeVar

import scrapy_redis.dupefilter
import scrapy_redis.queue
import scrapy_redis.scheduler
from redis.exceptions import RedisError
from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider, DontCloseSpider
from scrapy.settings import BaseSettings
from scrapy.utils.asyncio import create_looping_call
from scrapy.utils.defer import deferred_from_coro
from scrapy_redis.connection import get_redis_from_settings
from twisted.internet.defer import Deferred

from crawler.news import News, is_passing
from crawler.shared_crawl import CrawlEndedError, Next, SharedCrawl, node_name
from semaphore_middleware.errors import end_crawl

logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")


class Queue(scrapy_redis.queue.PriorityQueue):  # type: ignore[misc]  # untyped
    """The requests still to be fetched, the most urgent first."""

    def __init__(self, crawl: SharedCrawl, spider: Spider) -> None:
        super().__init__(crawl.server, spider, key="")
        self.key = crawl.requests  # not by the argument, which takes a % for a placeholder
        self.crawl = crawl

    def push(self, request: Request) -> None:
        self.crawl.push(-request.priority, self._encode_request(request))

    def pop(self) -> Request | None:
        data = self.crawl.pop()
        return None if data is None else self._decode_request(data)


class SeenSet(scrapy_redis.dupefilter.RFPDupeFilter):  # type: ignore[misc]  # untyped
    """All that was ever queued: at most `max_pages` different requests."""

    def __init__(self, crawl: SharedCrawl, max_pages: int, debug: bool = False) -> None:
        super().__init__(crawl.server, crawl.seen, debug)
        self.crawl = crawl
        self.max_pages = max_pages

    def request_seen(self, request: Request) -> bool:
        return not self.crawl.see(self.request_fingerprint(request), self.max_pages)


class Scheduler(scrapy_redis.scheduler.Scheduler):  # type: ignore[misc]  # untyped
    """One node's end of the crawl that it shares."""

    def __init__(self, crawler: Crawler) -> None:
        settings = crawler.settings
        super().__init__(get_redis_from_settings(settings), persist=True)
        self.crawler = crawler
        self.crawl = SharedCrawl(
            self.server,
            name=settings.get("CRAWL") or crawler.spidercls.name,
            node=node_name(settings),
            lease=_lease(settings),
        )
        self.news = News(settings["REDIS_URL"], self.crawl.news, self._wake_engine)
        self.renewal = create_looping_call(self._renew)
        self.takes_part = False
        self.works = False
        self.found_nothing = False
        self.server_away = False

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        try:
            if not crawler.settings.get("REDIS_URL"):
                raise ValueError("REDIS_URL is not set: the nodes of a crawl share a Redis server")
            return cls(crawler)
        except ValueError as error:
            end_crawl(error)

    def open(self, spider: Spider) -> Deferred[None]:
        settings = spider.settings
        self.spider = spider
        self.queue = Queue(self.crawl, spider)
        self.df = SeenSet(
            self.crawl,
            max_pages=settings.getint("CRAWL_MAX_PAGES"),
            debug=settings.getbool("DUPEFILTER_DEBUG"),
        )
        return deferred_from_coro(self._join())

    async def _join(self) -> None:
        try:
            self.takes_part = await self.news.meet_server(
                self.crawl.join, wanted=lambda: self.crawler.crawling
            )
        except RedisError as error:
            logger.info("The server refuses this node: %s", error)
            self._close_when_opened("server_refused")
            return
        if not self.takes_part:
            self._close_when_opened("shutdown")
            return
        logger.info("Node %s joins the crawl: %d requests wait", self.crawl.node, len(self.queue))
        self.crawler.signals.connect(self._spider_idle, signals.spider_idle)
        self.news.listen()
        self.renewal.start(self.crawl.lease / 3, now=False)

    def _close_when_opened(self, reason: str) -> None:
        """Ask for it the way Scrapy expects: raised by open() it leaves a traceback behind."""

        def close_spider() -> None:
            raise CloseSpider(reason)

        self.crawler.signals.connect(close_spider, signals.spider_opened, weak=False)

    def close(self, _reason: str) -> Deferred[None]:
        return deferred_from_coro(self._leave())

    async def _leave(self) -> None:
        if self.renewal.running:
            self.renewal.stop()
        await self.news.close()
        if self.takes_part:
            self._ask(self.crawl.leave, otherwise=None)
        self.server.close()

    def enqueue_request(self, request: Request) -> bool:
        try:
            queued: bool = super().enqueue_request(request)
        except CrawlEndedError:
            logger.info("The crawl has ended without this node: %s is dropped", request)
            return False
        if queued:
            self.found_nothing = False
            self._count("scheduler/enqueued/redis")
        return queued

    def next_request(self) -> Request | None:
        request = self._ask(self.queue.pop, otherwise=None)
        # With the server away there may be some: the spider must not count as idle.
        self.found_nothing = request is None and not self.server_away
        if request is not None:
            self.works = True
            self._count("scheduler/dequeued/redis")
        return request

    def has_pending_requests(self) -> bool:
        # The engine asks right after next_request(), so there is no need to ask the server again.
        return not self.found_nothing

    def _spider_idle(self) -> None:
        answer = self._ask(self.crawl.rest, otherwise=Next.WAIT)
        self.works = False
        if answer is Next.CLOSE:
            return
        if answer is Next.TAKE_MORE:
            self._wake_engine()
        raise DontCloseSpider

    def _renew(self) -> None:
        if self.works:
            self._ask(self.crawl.work, otherwise=None)

    def _ask(self, question: Callable[[], Answer], otherwise: Answer) -> Answer:
        """The server's answer, or `otherwise` while it is away: Scrapy's heartbeat asks again."""
        try:
            answer = question()
        except RedisError as error:
            if not is_passing(error):
                raise
            if not self.server_away:
                logger.warning("The crawl's server at %s is away: %s", self.news.server, error)
            self.server_away = True
            return otherwise
        self.server_away = False
        return answer

    def _count(self, stat: str) -> None:
        # Not left to the base class: it passes the spider along, which Scrapy 2.19 warns about.
        self.crawler.stats.inc_value(stat)

    def _wake_engine(self) -> None:
        # The engine has no public way to be woken, and by itself it looks every 5 s only.
        engine = self.crawler.engine
        if engine.running and engine._slot is not None:
            engine._slot.nextcall.schedule()


def _lease(settings: BaseSettings) -> float:
    value = settings.get("CRAWL_LEASE", 15.0)
    try:
        lease = float(value)
    except (TypeError, ValueError):
        lease = 0.0
    if not 0 < lease < math.inf:
        raise ValueError(f"CRAWL_LEASE = {value!r}: a number of seconds above 0 is allowed")
    return lease
