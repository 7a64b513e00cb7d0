"""A crawl and its part in the fleet: settings, observers, its node, from opening to closing."""

from __future__ import annotations

import asyncio
import atexit
import logging
from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING

from scrapy import signals
from scrapy.exceptions import CloseSpider

from semaphore_middleware.core.observer import Observer, Observers
from semaphore_middleware.core.permit import Permit
from semaphore_middleware.core.robotstxt import SharedRobotsTxt
from semaphore_middleware.errors import SemaphoreError, SettingsError
from semaphore_middleware.redis import embedded
from semaphore_middleware.redis.keys import Keys
from semaphore_middleware.redis.location import Server
from semaphore_middleware.scrapy.downloads import Downloads
from semaphore_middleware.scrapy.engine import Engine, check_reactor, end_crawl, spider_name
from semaphore_middleware.scrapy.node import Node, node_for
from semaphore_middleware.scrapy.settings import SemaphoreSettings, log_start, warn_of_mistakes
from semaphore_middleware.telemetry.long_waits import LongWaits, StricterLimits
from semaphore_middleware.telemetry.stats import SemaphoreStats

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from semaphore_middleware.core.admin import Admin
    from semaphore_middleware.core.semaphore import FairSemaphore

logger = logging.getLogger(__name__)

EXIT_TIMEOUT_S = 3.0
"""How long an ending process may take to give its permits back."""
ROBOTSTXT_CALL_TIMEOUT_S = 5.0
"""For a round trip about a robots.txt: no lease waits for it."""

ATTRIBUTE = "_semaphore_crawl"
"""The crawler's attribute with its crawl. As they refer to each other, a collection of all crawls
would keep those that fail before they begin.
"""


def crawl_of(crawler: Crawler) -> Crawl:
    """The crawl of this crawler, made by the first call. Invalid settings end it."""
    crawl: Crawl | None = vars(crawler).get(ATTRIBUTE)
    if crawl is None:
        try:
            crawl = Crawl(crawler)
        except SemaphoreError as error:
            end_crawl(error)
        vars(crawler)[ATTRIBUTE] = crawl
    return crawl


class Crawl:
    """One crawler's use of the semaphore; its requests are in `downloads`."""

    def __init__(self, crawler: Crawler) -> None:
        check_reactor(crawler)
        self.settings = settings = SemaphoreSettings.read(crawler.settings)
        self._crawler = crawler
        self._engine = Engine(crawler)
        self.downloads = Downloads(self, crawler, self._engine)
        observers = self._make_observers()  # first: it may find invalid settings
        self._embedded = None
        if (url := settings.url) is None:
            self._embedded = embedded.start_or_join(settings.prefix)
            url = self._embedded.url
        self.url = url
        self.robotstxt: SharedRobotsTxt | None = None
        """The robots.txt files shared by all nodes; None: each node reads its own."""
        if settings.robotstxt_shared:
            server = Server(self.url, ROBOTSTXT_CALL_TIMEOUT_S, settings.url_from, settings.prefix)
            self.robotstxt = SharedRobotsTxt(
                server, Keys(settings.prefix), settings.lease, settings.history
            )
            observers.append(self.robotstxt)
        self._observers = Observers(observers)
        self.emit = self._observers.emit
        """Passes an event to all observers of this crawl."""
        self._node = self._find_node()
        self._opened = asyncio.Event()
        self._failed = False
        crawler.signals.connect(self._open, signals.spider_opened)
        crawler.signals.connect(self._close, signals.spider_closed)

    def _make_observers(self) -> list[Observer]:
        # The crawler has no stats yet when the add-on makes this.
        stats = SemaphoreStats(lambda: self._crawler.stats)
        observers: list[Observer] = [self.downloads.admissions, stats]
        observers += [LongWaits(), StricterLimits()]
        with suppress(ImportError):  # without opentelemetry-api
            from semaphore_middleware.telemetry.spans import WaitSpans

            observers.append(WaitSpans())
        if (port := self.settings.metrics_port) is not None:
            try:
                from semaphore_middleware.telemetry.prometheus import Metrics
            except ImportError:
                raise SettingsError(
                    f"SEMAPHORE_METRICS_PORT = {port}: this needs prometheus-client; "
                    "install it with: pip install 'scrapy-semaphore[metrics]'"
                ) from None
            observers.append(Metrics(self.settings.metrics_host, port, stats.acquired_of))
        return observers

    @property
    def semaphore(self) -> FairSemaphore:
        """That of this process's crawls with these settings."""
        return self._node.semaphore

    @property
    def node(self) -> str:
        """This node's name, the same for all crawls of this process with these settings."""
        return self.semaphore.node

    @property
    def admin(self) -> Admin:
        """The operators' interface to the server."""
        return self.semaphore.admin

    def permits(self) -> Collection[Permit]:
        """The permits of this crawl's requests, held or waited for."""
        permits = self.semaphore.permits()
        return [one for one in permits if getattr(one.owner, "crawl", None) is self]

    def limit_of(self, scope: str) -> int | None:
        """How many requests may hold a permit of `scope`, as last heard; None if not known."""
        return self.semaphore.limit_of(scope)

    @property
    def _server(self) -> str:
        """The server's address, without a password."""
        return str(Server(self.url, 1))

    async def opened(self) -> None:
        """Wait until the crawl has reached its server, or has given up."""
        await self._opened.wait()

    async def _open(self) -> None:
        self._engine.before_close(self._drain)
        if not self._crawler.crawling:  # `scrapy shell`, whose process just ends
            atexit.register(self._close_at_exit, asyncio.get_running_loop())
        limits = self.settings.limits
        warn_of_mistakes(self._crawler.settings, limits, self.settings.scopes)
        if self._engine.closes_when_opened:  # a shared frontier has said why
            self._opened.set()
            return
        try:
            self.downloads.wrap_downloader()
            timeout = self.settings.start_timeout
            await self._engine.reach(
                self._server, self._join_node(), timeout, lambda: self.semaphore.problem
            )
            log_start(self.node, self._server, self._embedded is not None, limits)
        except SemaphoreError as error:
            logger.error("%s", error)
            self._failed = True
            raise CloseSpider("semaphore_error") from None
        finally:
            self._opened.set()

    def _find_node(self) -> Node:
        arguments = self._engine.spider_arguments() or {}
        job = arguments.get("_job", "")  # as Scrapyd gives it
        return node_for(self.settings, self.url, spider_name(self._crawler), job)

    async def _join_node(self) -> None:
        self._node = self._find_node()  # the first may have been closed
        try:
            await self._observers.open(self)
            await self._node.join(self)
        except BaseException:
            await self._observers.close()
            raise

    def _drain(self) -> None:
        if self.robotstxt is not None:
            self.robotstxt.drain()
        self.downloads.drain()

    def _close_at_exit(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close at the end of a process whose loop still runs in another thread."""
        if loop.is_running():
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(self._close(), loop).result(EXIT_TIMEOUT_S)

    async def _close(self) -> None:
        atexit.unregister(self._close_at_exit)
        await self.downloads.close()
        try:
            await self._node.leave(self)
        finally:
            await self._observers.close()
        if self._embedded is not None:
            self._embedded.leave()
        if self._failed:
            self._engine.end_with_failure()
        vars(self._crawler).pop(ATTRIBUTE, None)
