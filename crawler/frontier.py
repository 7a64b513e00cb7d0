"""A scheduler for crawls that many nodes share, that lose nothing, and that end for all at once.

A scrapy-redis crawl forgets what a node had in hand when it died, and never ends by itself. Here
the server keeps a request until it is done: until its callback has finished, what that yielded is
queued and its items are through, or it was dropped, has failed or been replaced. A node that has
nothing to do rests until another produces requests, and all close when the last one finds nothing
left (`shared_crawl.py` has the rules). After a crash a page may be fetched twice.

Against a server that is away the node keeps what it produces, and finishes nothing until that is
queued. A server that has lost its data has lost what was seen and queued: the nodes put back what
they have in hand and ask for the start URLs again, so the crawl begins anew. Its pages are fetched
again, and `max_pages` counts from nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self, TypeVar

from redis.exceptions import RedisError
from scrapy import Request, Spider, signals
from scrapy.core.scheduler import BaseScheduler
from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider, DontCloseSpider
from scrapy.utils.asyncio import CallLaterResult, call_later, create_looping_call
from scrapy.utils.defer import deferred_from_coro
from scrapy_redis.connection import get_redis_from_settings
from twisted.internet.defer import Deferred

from crawler.news import News
from crawler.packing import Packing
from crawler.shared_crawl import (
    CrawlEndedError,
    CrawlLostError,
    Entry,
    Next,
    SharedCrawl,
    Taken,
    lease_of,
    node_name,
)
from semaphore_middleware.errors import end_crawl

logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")

ASK_AGAIN = 3.0  # seconds. Each try may hold up the node; Scrapy's heartbeat comes every 5


class Scheduler(BaseScheduler):
    """One node's end of the crawl that it shares."""

    def __init__(self, crawler: Crawler) -> None:
        settings = crawler.settings
        self.crawler = crawler
        self.server = get_redis_from_settings(settings)
        self.crawl = SharedCrawl(
            self.server,
            name=settings.get("CRAWL") or crawler.spidercls.name,
            node=node_name(settings),
            lease=lease_of(settings),
        )
        self.max_pages = settings.getint("CRAWL_MAX_PAGES")
        self.news = News(settings["REDIS_URL"], self.crawl.key("news"), self._look_again)
        self.renewal = create_looping_call(self._renew)
        self.alarm: CallLaterResult | None = None
        self.restart: asyncio.Task[None] | None = None
        self.in_hand: dict[Request, Taken] = {}
        self.unsent: deque[Entry] = deque()
        self.takes_part = False
        self.works = False
        self.found_nothing = False
        self.ended = False
        self.server_away = False
        self.quiet_until = 0.0

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
        self.packing = Packing(spider)
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
        unfinished = self.crawl.counts().unfinished
        logger.info("Node %s joins the crawl: %d requests are left", self.crawl.node, unfinished)
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
        self.quiet_until = 0.0
        self._send_unsent()
        for later in (self.alarm, self.restart):
            if later is not None:
                later.cancel()
        if self.takes_part:
            try:
                self._tell(self.crawl.leave)
            except RedisError as error:
                logger.warning("Cannot leave the crawl, its lease does the rest: %s", error)
        self.server.close()

    # What the engine asks for -------------------------------------------------------------------

    def enqueue_request(self, request: Request) -> bool:
        entry = self.packing.pack(self.crawl.new_id(), request)
        # What was produced first is sent first, and only the first try may take its time.
        queued = None if self.unsent else self._push(entry)
        if self.ended:
            logger.info("The crawl has ended without this node: %s is dropped", request)
            return False
        if queued is None:
            self.unsent.append(entry)
        elif not queued:
            self.packing.log_duplicate(request)
            return False
        self.found_nothing = False
        return True

    def next_request(self) -> Request | None:
        self._send_unsent()
        request = self._take()
        # With the server away there may be some: the spider must not count as idle.
        self.found_nothing = not (request or self.unsent or self.server_away or self.restart)
        return request

    def has_pending_requests(self) -> bool:
        # The engine asks right after next_request(), so there is no need to ask the server again.
        return not self.found_nothing

    def _spider_idle(self) -> None:
        if any(request in self._in_progress() for request in self.in_hand):
            raise DontCloseSpider  # one is between downloader and spider, where Scrapy looks away
        rest = self._ask(partial(self._tell, self.crawl.rest))
        if rest is not None:
            self.works = False
            self.ended = rest.next is Next.CLOSE
        if self.ended:
            return
        if rest is not None and rest.next is Next.TAKE_MORE:
            self._wake_engine()
        elif rest is not None:
            self._wake_engine_in(rest.seconds)
        raise DontCloseSpider

    # Requests to and from the server ------------------------------------------------------------

    def _push(self, entry: Entry) -> bool | None:
        """Whether it is queued now; None if the server did not say."""
        queued = self._ask(partial(self.crawl.push, entry, self.max_pages))
        if queued:
            self.crawler.stats.inc_value("scheduler/enqueued/redis")
        return queued

    def _send_unsent(self) -> None:
        while self.unsent and self._push(self.unsent[0]) is not None:
            self.unsent.popleft()

    def _take(self) -> Request | None:
        while taken := self._ask(partial(self._tell, self.crawl.pop)):
            self.works = True
            self.crawler.stats.inc_value("scheduler/dequeued/redis")
            try:
                request = self.packing.unpack(taken.data)
            except Exception:
                # The spider has changed since: no node could ever finish it.
                logger.exception("A request cannot be read any more and is dropped")
                self._ask(partial(self.crawl.work, [taken.id]))
            else:
                self.in_hand[request] = taken
                return request
        return None

    def _renew(self) -> None:
        if self.works:
            self._ask(partial(self._tell, self.crawl.work))

    def _tell(self, verb: Callable[[Sequence[str]], Answer]) -> Answer:
        """Call this verb with what is done; not before all that came of it is on the server."""
        in_progress = self._in_progress()
        done = [] if self.unsent else [r for r in self.in_hand if r not in in_progress]
        answer = verb([self.in_hand[request].id for request in done])
        for request in done:
            del self.in_hand[request]
        return answer

    def _ask(self, question: Callable[[], Answer]) -> Answer | None:
        """The server's answer; None if it has none: it is away, or the run of the crawl is over."""
        if self.ended or time.monotonic() < self.quiet_until:
            return None
        try:
            answer = question()
        except CrawlEndedError:
            self.ended = True
            self.unsent.clear()
        except CrawlLostError:
            self._ask(self._begin_anew)
        except RedisError as error:
            if not self.server_away:
                logger.warning("The crawl's server at %s is away: %s", self.news.server, error)
            self.server_away = True
            self.quiet_until = time.monotonic() + ASK_AGAIN
        else:
            self.server_away = False
            return answer
        return None

    def _begin_anew(self) -> None:
        self.crawl.join()
        logger.warning("The crawl's server has lost its data: the crawl begins anew")
        for taken in self.in_hand.values():
            again = self.packing.unpack(taken.data)
            self.unsent.append(self.packing.pack(self.crawl.new_id(), again))
        self.in_hand.clear()
        if self.restart is None:
            self.restart = asyncio.create_task(self._start_again())

    async def _start_again(self) -> None:
        engine = self.crawler.engine
        try:
            start = await engine.scraper.spidermw.process_start()
            assert start is not None
            async for request in start:
                if isinstance(request, Request):
                    engine.crawl(request)
                    await asyncio.sleep(0)
        finally:
            self.restart = None
            self._wake_engine()

    # The engine, and time -----------------------------------------------------------------------

    def _in_progress(self) -> set[Request]:
        """The requests that the engine has not done with.

        Private, as of Scrapy 2.19, which has no signal for that moment: `request_left_downloader`
        comes before the callback, and nothing at all comes after it.
        """
        slot = self.crawler.engine._slot
        assert slot is not None, "a scheduler is asked while its spider is open"
        return slot.inprogress

    def _wake_engine(self) -> None:
        # The engine has no public way to be woken, and by itself it looks every 5 s only.
        engine = self.crawler.engine
        if engine.running and engine._slot is not None:
            engine._slot.nextcall.schedule()

    def _wake_engine_in(self, seconds: float) -> None:
        if self.alarm is not None:
            self.alarm.cancel()
        self.alarm = call_later(seconds, self._wake_engine)

    def _look_again(self) -> None:
        self.quiet_until = 0.0
        self._wake_engine()
