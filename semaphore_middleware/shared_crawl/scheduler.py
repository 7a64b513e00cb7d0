"""The Scrapy scheduler of a shared crawl: no request is lost, and all nodes end together.

The server keeps a request until it is finished: until its callback has returned, the requests
yielded by the callback are queued, and its items have passed the pipelines and are in the feeds'
files; or until it was dropped, has failed or was replaced. `client.py` has the rules.

If the server has lost its data, each node queues its unfinished requests again, and the start
requests: the crawl starts over. If it was the embedded server, all nodes end with an error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Self, cast

from scrapy import Request, Spider, signals
from scrapy.core.scheduler import BaseScheduler
from scrapy.core.scheduler import Scheduler as ScrapyScheduler
from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider
from scrapy.utils.defer import deferred_from_coro
from scrapy.utils.misc import build_from_crawler
from twisted.internet.defer import Deferred

from semaphore_middleware.errors import ServerRefusedError, ServerUnreachableError, SettingsError
from semaphore_middleware.link import embedded, stderr
from semaphore_middleware.link.renewal_thread import RENEWAL_THREAD
from semaphore_middleware.scrapy.engine import belongs_to_a_command, end_crawl
from semaphore_middleware.scrapy.versions import START_MAY_CLOSE
from semaphore_middleware.shared_crawl.client import (
    CrawlClient,
    CrawlEndedError,
    OtherBudgetsError,
    OtherCrawlError,
    OtherRunError,
    OtherVersionError,
    WrongTypeError,
)
from semaphore_middleware.shared_crawl.engine import CrawlEngine
from semaphore_middleware.shared_crawl.feeds import Feeds
from semaphore_middleware.shared_crawl.identity import differences, identity_of, other_work
from semaphore_middleware.shared_crawl.node_state import NodeState
from semaphore_middleware.shared_crawl.session import CrawlSession
from semaphore_middleware.shared_crawl.settings import CrawlSettings, misspelt

logger = logging.getLogger(__name__)
log_error = partial(stderr.log, logger, logging.ERROR)


class Scheduler(BaseScheduler):
    """One node's scheduler for a shared crawl. Set it with `SCHEDULER`.

    Its settings are `CRAWL` and `CRAWL_*`, and Scrapy's `SCHEDULER_MEMORY_QUEUE`. A node stopped
    before the end of the crawl exits with status 1, so that its supervisor starts it again. A node
    started after the end exits at once, with status 0.
    """

    renewal_thread = RENEWAL_THREAD

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        self.engine = CrawlEngine(crawler)
        self.settings = CrawlSettings.from_crawler(crawler)
        self.client = CrawlClient(self.settings)
        for line in misspelt(sorted(crawler.settings)):
            logger.warning(line)
        self.failed = False
        self.is_mismatch = False  # this node cannot take part, and ends
        self.lacks_starts = False  # the spider's `start` has raised an error
        self.is_idle = False  # `spider_idle` was sent; a receiver may keep the spider open
        self.restart: asyncio.Task[None] | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Called by Scrapy. A wrong setting ends the crawl with one line in the log. Commands such
        as `scrapy fetch` share no requests, so they get Scrapy's own scheduler.
        """
        if belongs_to_a_command(crawler):
            return cast("Self", build_from_crawler(ScrapyScheduler, crawler))
        try:
            return cls(crawler)
        except SettingsError as error:
            end_crawl(error, crawler)

    # Joining and leaving ------------------------------------------------------------------------

    def open(self, spider: Spider) -> Deferred[None]:
        self.spider_logger = spider.logger
        self.state = NodeState(self.settings, self.crawler, self.engine, self._on_mismatch)
        self.engine.after_fetch(self.state.prefetch.on_fetched)
        self.engine.before_callback(self.state.prefetch.on_callback)
        self.engine.before_close(self.state.on_closing)
        self.engine.fail_when_cut_short(lambda: self.state.end.has_come)
        feeds = Feeds(self.engine, self.crawler.settings)
        self.session = CrawlSession(
            self.client,
            self.state,
            self.engine,
            feeds,
            self._on_mismatch,
            self._start_over,
            self.renewal_thread,
        )
        arguments = self.engine.spider_arguments()
        if arguments is None:
            logger.info("Without the add-on, nodes do not compare the arguments of their spiders.")
        self.identity = identity_of(spider, arguments or {}, self.settings)
        return deferred_from_coro(self._join())

    async def _join(self) -> None:
        self.crawler.signals.connect(self._exit, signals.spider_closed)
        try:
            await self.session.join(self.identity)
        except CrawlEndedError as error:
            self.state.end.has_come = True
            if other := other_work(self.identity, error.identity):
                self.failed = True
                log_error(
                    "The crawl %r has ended, and differs from this one: %s. Choose another name "
                    "in CRAWL; or start it over, with -s CRAWL_RUN=new",
                    self.settings.name,
                    other,
                )
                self.engine.close_when_opened("another_crawl")
                return
            logger.warning(
                "The crawl %r has ended%s, so there is nothing to do. To crawl all of it again: "
                "-s CRAWL_RUN=new, or another name in CRAWL_RUN or CRAWL",
                self.settings.name,
                f" its run {run!r}" if (run := self.settings.run_name) else "",
            )
            self.state.end.log_missing(error.missing)
            self.engine.close_when_opened("finished")
        except (OtherCrawlError, OtherBudgetsError) as error:
            self._log_mismatch(error)
            self.engine.close_when_opened("another_crawl")
        except (ServerRefusedError, ServerUnreachableError) as error:
            log_error("The shared crawl: %s", error)
            self.engine.close_when_opened("server_error")
        except CloseSpider as stop:
            self.engine.close_when_opened(stop.reason)
        else:
            self.engine.throttle_start(partial(self._starts, self.client.run))
            self.crawler.signals.connect(self._spider_idle, signals.spider_idle)

    async def _starts(self, run: bytes, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """The spider's start requests in a run, throttled. Some are missing if `start` fails."""
        try:
            async for item in self.state.new_requests.throttled(start):
                if self.client.run != run and not self.state.start.is_feed:
                    return  # a new run has begun, where all are made again
                yield item
        except Exception as error:
            if not (START_MAY_CLOSE and isinstance(error, CloseSpider)):
                self.failed = self.lacks_starts = True
            raise

    def close(self, _reason: str) -> Deferred[None]:
        """Leave the crawl; unfinished requests go back to the server."""
        if self.restart is not None:
            self.restart.cancel()
        return deferred_from_coro(self.session.stop())

    def _exit(self) -> None:
        """Let the process exit with status 1 if the crawl has not ended, as far as this node knows,
        or lacks requests: then somebody should restart the node or read its log.
        """
        end = self.state.end
        if self.failed or end.has_failed or not end.has_come:
            self.engine.end_with_failure()
        if not end.has_come and self.settings.url == embedded.find():
            logger.warning(
                "The embedded server forgets the crawl %r when its last node has ended. To "
                "continue a crawl later, set REDIS_URL to a server of your own",
                self.settings.name,
            )

    # Called by the engine -----------------------------------------------------------------------

    def enqueue_request(self, request: Request) -> bool:
        """Queue a request. Returns True even for a duplicate: only the server can detect it, and
        the engine does not wait. A request that cannot be stored is an error in the spider's log.
        """
        if self.state.end.has_come:
            self.state.end.drop(request)
            return False
        try:
            self.state.enqueue(request)
        except (Exception, SystemExit) as error:  # a request may hold anything
            self.failed = True
            self.crawler.stats.inc_value("scheduler/unserializable")
            self.spider_logger.error(
                "%s cannot be stored, and is dropped: %s",
                request,
                error,
            )
            return False
        return True

    def next_request(self) -> Request | None:
        request = self.state.next_request()
        if request is not None:
            self.crawler.stats.inc_value("scheduler/dequeued/redis")
        return request

    def has_pending_requests(self) -> bool:
        """False if the spider may be idle. The engine calls this again after `spider_idle`, unless
        another receiver keeps the spider open. At that call the node asks the server whether the
        crawl is done, which may end it. So a node whose `start` has failed closes instead.
        """
        was_idle = self.is_idle
        self.is_idle = False
        if was_idle and self.lacks_starts and not self.state.end.has_come:
            logger.error(
                "start() has failed, so the crawl %r may lack start requests: this node ends, "
                "the crawl goes on. The next node makes them again",
                self.settings.name,
            )
        elif was_idle and not self.state.end.has_come:
            self.state.on_idle()
            return True
        if self.state.end.has_come:
            return False
        # The spider must not be idle while the server is unreachable: it may have requests.
        return self.state.has_pending or self.session.is_away or self.restart is not None

    def _spider_idle(self) -> None:
        self.is_idle = True
        asyncio.get_running_loop().call_soon(self._after_idle)

    def _after_idle(self) -> None:
        if not self.is_idle:
            return
        self.is_idle = False
        if self.state.end.has_come:  # ended by an operator: no more requests will come
            self.engine.close_soon("finished")
        else:
            self.state.on_held_open()

    # A node that cannot take part ---------------------------------------------------------------

    def _on_mismatch(self, error: Exception) -> None:
        """End this node, as it would fail with other requests, too."""
        if not self.is_mismatch:
            self._log_mismatch(error)
            self.engine.close_soon("unreadable_request")

    def _log_mismatch(self, error: Exception) -> None:
        self.failed = self.is_mismatch = True
        if isinstance(error, (OtherVersionError, OtherRunError)):
            log_error("%s%s", str(error)[:1].upper(), str(error)[1:])
        elif isinstance(error, OtherCrawlError):
            log_error(
                "The crawl %r differs from this one: %s. Choose another name in CRAWL; or, where "
                "both can read each other's requests, set CRAWL_VERSION to that of the crawl",
                self.settings.name,
                differences(self.identity, error.identity),
            )
        elif isinstance(error, OtherBudgetsError):
            log_error(
                "The nodes of the crawl %r have other budgets: %s. Set the same on all nodes; or "
                "start this node when those have left, and the crawl goes on with this node's",
                self.settings.name,
                differences(self.settings.budgets, error.budgets),
            )
        elif isinstance(error, WrongTypeError):
            log_error(
                "CRAWL_START_KEY = %r: allowed is the name of a list, a set, a sorted set or a "
                "stream; the type of this key is %s",
                self.settings.start_key,
                error,
            )
        else:
            log_error(
                "This node cannot read a request of the crawl, gives it back and ends: %s", error
            )

    # A crawl that the server has lost -----------------------------------------------------------

    def _start_over(self) -> None:
        if self.restart is not None:
            self.restart.cancel()  # the requests that it has queued are lost, too
        self.state.codec.begin_anew()
        if self.state.prefetch.is_closing:
            return  # the next node makes them
        if self.state.start.is_feed and self.engine.reads_start:
            return  # the feed goes on
        self.restart = asyncio.create_task(self._enqueue_start_requests())

    async def _enqueue_start_requests(self) -> None:
        try:
            await self.engine.crawl_start_requests(partial(self._starts, self.client.run))
        except Exception:
            logger.exception("Error while reading the start requests once more")
        finally:
            if self.restart is asyncio.current_task():
                self.restart = None
                self.engine.wake()
