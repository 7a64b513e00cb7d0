"""A crawl as a node: its settings, observers and semaphore, from start to end."""

from __future__ import annotations

import asyncio
import atexit
import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from scrapy import signals
from scrapy.exceptions import CloseSpider

from semaphore_middleware.core.observer import Observer
from semaphore_middleware.core.semaphore import FairSemaphore
from semaphore_middleware.errors import SemaphoreError
from semaphore_middleware.link import embedded, stderr
from semaphore_middleware.link.environment import default_node
from semaphore_middleware.link.location import Server
from semaphore_middleware.observers.stats import SemaphoreStats
from semaphore_middleware.operators.long_waits import INTERACTIVE_WAIT_S, StricterLimits
from semaphore_middleware.operators.progress import Progress
from semaphore_middleware.scrapy.downloads import Downloads
from semaphore_middleware.scrapy.engine import (
    Engine,
    belongs_to_a_command,
    check_reactor,
    end_crawl,
    log_interval,
    spider_name,
)
from semaphore_middleware.scrapy.scopes import ScopeFinder
from semaphore_middleware.scrapy.settings import (
    SemaphoreSettings,
    log_origin_of_server,
    log_start,
    warn_of_mistakes,
)
from semaphore_middleware.scrapy.versions import close_opened

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)

EXIT_TIMEOUT_S = 3.0
"""How long an ending process may take to give its permits back."""

ATTRIBUTE = "_semaphore_crawl"
"""The crawler's attribute that holds its crawl. As both refer to each other, a collection of all
crawls would keep those that fail before they begin.
"""


def crawl_of(crawler: Crawler) -> Crawl:
    """The crawl of this crawler, made by the first call. Invalid settings end the crawl."""
    crawl: Crawl | None = vars(crawler).get(ATTRIBUTE)
    if crawl is None:
        try:
            crawl = Crawl(crawler)
        except SemaphoreError as error:
            end_crawl(error, crawler)
        vars(crawler)[ATTRIBUTE] = crawl
    return crawl


class Crawl:
    """One crawler's use of the semaphore; its requests are in `downloads`."""

    def __init__(self, crawler: Crawler) -> None:
        check_reactor(crawler)
        settings = SemaphoreSettings.read(crawler.settings)
        self.settings = settings
        self._crawler = crawler
        self._engine = Engine(crawler)
        name = spider_name(crawler)
        options = settings.semaphore_options(name)
        arguments = self._engine.spider_arguments() or {}
        job = arguments.get("_job", "")  # as Scrapyd passes it
        if belongs_to_a_command(crawler):
            options["explain_waits"] = INTERACTIVE_WAIT_S
        self.semaphore = FairSemaphore(
            settings.url,
            node=settings.node or default_node(name, job),
            url_from=settings.url_from,
            observers=self._make_observers(),
            **options,
        )
        self._embedded: embedded.EmbeddedServer | None = None
        self._opening: asyncio.Task[str | None] | None = None
        scopes = ScopeFinder(settings.scopes, settings.limits)
        self.downloads = Downloads(
            crawler, self._engine, settings, scopes, self.semaphore, self.opened
        )
        self._failed = False
        self._pages = 0
        crawler.signals.connect(self._count_page, signals.response_received)
        crawler.signals.connect(self._spider_opened, signals.spider_opened)
        crawler.signals.connect(self._close, signals.spider_closed)

    def _make_observers(self) -> list[Observer]:
        # The crawler has no stats yet when the add-on makes the crawl.
        stats = SemaphoreStats(lambda: self._crawler.stats)
        progress = Progress(partial(log_interval, self._crawler), lambda: self._pages)
        observers: list[Observer] = [stats, progress, StricterLimits()]
        with suppress(ImportError):  # without opentelemetry-api
            from semaphore_middleware.observers.spans import WaitSpans

            observers.append(WaitSpans())
        return observers

    def _count_page(self) -> None:
        self._pages += 1

    def join_server(self) -> str:
        """Start or join the embedded server, if the settings name no server. Blocks for a moment.
        Returns the server's address.

        Raises `ServerRefusedError` if the embedded server cannot be used.
        """
        if self.semaphore.url is None:
            self._embedded = embedded.start_or_join(self.settings.prefix)
            self.semaphore.url = self._embedded.url
        return self.semaphore.url

    async def opened(self) -> None:
        """Wait until the crawl has reached its server, or has given up.

        The first call starts this, as the signal `spider_opened` comes only after the
        `open_spider` of item pipelines, which may fetch pages.
        """
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open())
        if not self._opening.done():
            await asyncio.wait([self._opening])

    async def _spider_opened(self) -> None:
        await self.opened()
        if self._opening is not None and (reason := self._opening.result()) is not None:
            close_opened(self._crawler, reason)

    async def _open(self) -> str | None:
        """Reach the server. If that fails, returns the reason to close the spider."""
        self._engine.before_close(self._begin_to_close)
        if not self._crawler.crawling:  # `scrapy shell`: no signal comes when its process ends
            atexit.register(self._close_at_exit, asyncio.get_running_loop())
        warn_of_mistakes(self._crawler.settings, self.settings)
        log_origin_of_server(self._crawler.settings, self.settings.url_from)
        if self._engine.closes_when_opened:  # the scheduler has logged why
            return None
        try:
            self.downloads.wrap_downloader()
            server = str(Server(self.join_server(), 1))  # without a password
            timeout = self.settings.start_timeout
            await self._engine.reach(
                server, self.semaphore.open(), timeout, lambda: self.semaphore.problem
            )
            is_embedded = self._embedded is not None
            prefix = self.settings.prefix
            log_start(self.semaphore.node, server, prefix, is_embedded, self.settings)
        except SemaphoreError as error:
            stderr.log(logger, logging.ERROR, "%s", error)
            self._failed = True
            return "semaphore_error"
        except CloseSpider as stop:
            return stop.reason
        return None

    def _begin_to_close(self) -> None:
        if self._opening is not None:  # not over yet if a component could not be opened
            self._opening.cancel()
        self.downloads.closing.begin()

    def _close_at_exit(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close when the process ends, if its loop still runs in another thread."""
        if loop.is_running():
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(self._close(), loop).result(EXIT_TIMEOUT_S)

    async def _close(self) -> None:
        atexit.unregister(self._close_at_exit)
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        await self.downloads.close()
        await self.semaphore.close()
        if self._embedded is not None:
            self._embedded.leave()
        if self._failed:
            self._engine.end_with_failure()
        vars(self._crawler).pop(ATTRIBUTE, None)
