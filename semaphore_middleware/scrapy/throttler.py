"""Permits for a crawler's requests: each crawler has one throttler.

`acquire_for` waits for a request's permit, and `transfer` downloads under it. A permit goes back
through one of two doors, whichever comes first:

- `end_transfer`, when the transfer has ended;
- `release_for`, when Scrapy's `fetch` is over: that comes on every path, whatever middlewares do.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from scrapy import signals
from scrapy.downloadermiddlewares.cookies import CookiesMiddleware
from scrapy.downloadermiddlewares.stats import DownloaderStats
from scrapy.exceptions import CannotResolveHostError, CloseSpider, IgnoreRequest
from twisted.python.failure import Failure

from semaphore_middleware.core.observer import Event, Observer
from semaphore_middleware.core.permit_set import PermitSet
from semaphore_middleware.core.robotstxt import SharedRobotsTxt
from semaphore_middleware.errors import (
    ClosedError,
    SemaphoreError,
    ServerUnreachableError,
    SettingsError,
)
from semaphore_middleware.model.hosts import site_index
from semaphore_middleware.redis import embedded
from semaphore_middleware.redis.keys import Keys
from semaphore_middleware.redis.location import Server
from semaphore_middleware.scrapy.addresses import Addresses
from semaphore_middleware.scrapy.backpressure import Backpressure
from semaphore_middleware.scrapy.concurrency import LocalConcurrency
from semaphore_middleware.scrapy.crawl_delays import CrawlDelayFound, CrawlDelays
from semaphore_middleware.scrapy.engine import Engine, check_reactor, end_crawl
from semaphore_middleware.scrapy.judge import Judge
from semaphore_middleware.scrapy.responses import RequestRefused, ResponseClassifier
from semaphore_middleware.scrapy.scopes import ScopeFinder, Scopes, drop_scope_of_other_host
from semaphore_middleware.scrapy.settings import SemaphoreSettings
from semaphore_middleware.scrapy.sharing import CrawlSemaphore
from semaphore_middleware.scrapy.startup import log_start, warn_of_mistakes
from semaphore_middleware.scrapy.throttling import RequestDelays
from semaphore_middleware.telemetry.long_waits import LongWaits
from semaphore_middleware.telemetry.stats import SemaphoreStats

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from scrapy.robotstxt import RobotParser

logger = logging.getLogger(__name__)

STOP_CHECK_INTERVAL_S = 0.5
"""How often a crawl that waits for its server looks whether it was stopped."""
EXIT_TIMEOUT_S = 3.0
"""How long a process that ends may take to give its permits back."""
PREREQUISITES_FIRST = 2.0**40
"""Added to the priority of requests that others wait for: more than anyone gives to a request."""
PERMIT_IDLE_TIMEOUT_S = 0.5
"""How long a permit may wait here for a free place: in a busy node one is free sooner."""

ROBOTSTXT_CALL_TIMEOUT_S = 5.0
"""For a round trip about a robots.txt, which no lease waits for."""

ATTRIBUTE = "_semaphore_throttler"
"""The crawler's, that keeps its throttler. As each refers to the other, a collection of all
throttlers would keep those of crawls that fail before they begin.
"""


def throttler_of(crawler: Crawler) -> Throttler:
    """The throttler of this crawler, made by the first call. Bad settings end the crawl here."""
    throttler: Throttler | None = vars(crawler).get(ATTRIBUTE)
    if throttler is None:
        try:
            throttler = Throttler(crawler)
        except SemaphoreError as error:
            end_crawl(error)
        vars(crawler)[ATTRIBUTE] = throttler
    return throttler


class SpiderClosingError(SemaphoreError, IgnoreRequest):
    """A request that waited for a permit is not made, because the spider is closing."""


class NotAllowedError(SemaphoreError, IgnoreRequest):
    """A request is not made, because its meta, or a function in `SEMAPHORE_SCOPES`, gives what is
    not allowed.
    """


class Throttler:
    """Gets permits for a crawler's requests, and gives them back."""

    def __init__(self, crawler: Crawler) -> None:
        check_reactor(crawler)
        self.settings = settings = SemaphoreSettings.read(crawler.settings)
        self._crawler = crawler
        self._made_at = time.monotonic()
        self._engine = Engine(crawler)
        addresses = Addresses(crawler.settings) if "ip" in settings.scopes else None
        self.scopes = ScopeFinder(settings.scopes, settings.limits, addresses)
        self.backpressure = Backpressure(self.scopes, on_room=self._engine.wake_soon)
        self.local_concurrency = LocalConcurrency(crawler.settings.getint("CONCURRENT_REQUESTS"))
        judge = Judge(settings.backoff_when, crawler) if settings.backoff_when else None
        self.responses = ResponseClassifier(settings.backoff_codes, settings.backoff_times, judge)
        self._crawl_delays = CrawlDelays(crawler.settings, settings.max_crawl_delay)
        observers = self._observers()  # first: it may find a setting that is not allowed
        self._embedded = None
        if settings.url is None:
            self._embedded = embedded.start_or_join(settings.prefix)
        self.url = self._embedded.url if self._embedded else settings.url
        self.robotstxt: SharedRobotsTxt | None = None
        """The robots.txt files that all nodes share; None: each node reads its own."""
        if settings.robotstxt_shared and self.url is not None:
            server = Server(self.url, ROBOTSTXT_CALL_TIMEOUT_S, settings.url_from, settings.prefix)
            self.robotstxt = SharedRobotsTxt(server, Keys(settings.prefix), settings.lease)
            observers.append(self.robotstxt)
        self._semaphore = CrawlSemaphore(settings, self.url, observers)
        self._permits: dict[Request, PermitSet] = {}
        self._transfers: dict[Request, asyncio.Task[Any] | None] = {}
        """Requests on the wire, and the tasks that they run in; None: only signals tell of them."""
        self._unresolved: WeakKeyDictionary[Request, Exception] = WeakKeyDictionary()
        """The error to raise in a request's transfer: its address is one of its scopes, and was not
        found.
        """
        self._suspended: WeakSet[Request] = WeakSet()
        """Requests that gave their permits back until their transfers."""
        self._returned: WeakSet[Request] = WeakSet()
        """Copies that went back to the scheduler because the spider is closing."""
        self._delays = RequestDelays()
        self._opened = asyncio.Event()
        self._failed = False
        self._is_retry_enabled = crawler.settings.getbool("RETRY_ENABLED")
        connect = crawler.signals.connect
        connect(self._open, signals.spider_opened)
        connect(self._close, signals.spider_closed)
        if settings.obey_crawl_delay:
            connect(self._robots_parsed, signals.robots_parsed)

    @property
    def node(self) -> str:
        """This node's name: that of the process, for all its crawls with these settings."""
        return self._semaphore.node

    def _observers(self) -> list[Observer]:
        # The crawler has no stats yet when the add-on makes the throttler.
        stats = SemaphoreStats(lambda: self._crawler.stats)
        observers: list[Observer] = [self.backpressure, self.local_concurrency, stats, LongWaits()]
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

    # A request ----------------------------------------------------------------------------------

    async def acquire_for(self, request: Request) -> Request | None:
        """Wait for a request's permits, if it needs any, and for a place in this node's
        CONCURRENT_REQUESTS. Runs in the task of the request's `fetch`.

        Returns a request that is to go back to the scheduler, if the spider is closing. Raises
        `AcquireTimeoutError`, `HostDownError`, `NotAllowedError`; and `SpiderClosingError`, if the
        request went back and was fetched again.
        """
        try:
            await self._delay(request)
        except ClosedError:
            return self.return_to_scheduler(request)
        scopes = await self._scopes_of(request)
        if scopes:
            await self._opened.wait()
        try:
            permits = await self._acquire(request, scopes)
        except ClosedError:
            return self.return_to_scheduler(request)
        if request in self._permits:
            permits.release()
            self.local_concurrency.release()
            raise SemaphoreError(f"{request} is being fetched already; yield a copy of it")
        self._permits[request] = permits
        self.backpressure.acquired(request)
        task = asyncio.current_task()
        assert task is not None, "Scrapy runs each fetch in a task of its own"
        task.add_done_callback(lambda _: self.release_for(request))
        return None

    async def _delay(self, request: Request) -> None:
        """Wait for as long as the request's own meta says. Raises `ClosedError` if the spider
        closes. Its site has room for others meanwhile.
        """
        try:
            delay = self._delays.delay_of(request)
        except SettingsError as error:
            raise _log_not_allowed(error) from None
        if delay:
            is_scheduled = self.backpressure.is_scheduled(request)
            self.backpressure.leave(request)
            try:
                await self._delays.wait(request, delay)
            finally:
                self.backpressure.enter(request, is_scheduled)

    async def _scopes_of(self, request: Request) -> Scopes:
        """Scopes and limits of a request, with what robots.txt asks for."""
        try:
            await self.scopes.resolve(request)
        except CannotResolveHostError as error:
            self._unresolved[request] = error  # to be raised in the place of its transfer
        try:
            scopes = self.scopes.find(request)
        except SettingsError as error:
            raise _log_not_allowed(error) from None
        self.backpressure.update(request, scopes)
        index = site_index([name for name, _ in scopes])
        if index is None:
            return scopes
        name, limit = scopes[index]
        limit = self._crawl_delays.apply(limit, request)
        return (*scopes[:index], (name, limit), *scopes[index + 1 :])

    async def _acquire(self, request: Request, scopes: Scopes) -> PermitSet:
        """Permits, if it needs any, and a place in this node's CONCURRENT_REQUESTS. Permits for
        which there is no place go to other nodes, and the request asks again when it has one.
        """
        places, timeout = self.local_concurrency, self.settings.acquire_timeout
        priority = self._priority_of(request)
        try:
            while True:
                permits = PermitSet(())
                if scopes:
                    permits = await self._semaphore.acquire_all(
                        scopes, timeout=timeout, owner=request, priority=priority
                    )
                if await self._may_begin(request, permits, priority):
                    return permits
                permits.release()
                await places.wait(request, priority=priority)
        except BaseException:
            places.leave(request)
            raise

    def _priority_of(self, request: Request) -> float:
        """A request's priority among this node's. One that bypassed the scheduler comes first: as a
        rule another request waits for it.
        """
        is_scheduled = self.backpressure.is_scheduled(request)
        return request.priority + (0.0 if is_scheduled else PREREQUISITES_FIRST)

    async def _may_begin(self, request: Request, permits: PermitSet, priority: float) -> bool:
        """Wait for a place, if need be. A start that counts is now or not at all: until it begins,
        no other one does. Nothing begins where the site has refused a request since the grant.
        """
        places = self.local_concurrency
        if not places.reserve(request):
            if permits.starts_count:
                return False
            try:
                await places.wait(request, PERMIT_IDLE_TIMEOUT_S, priority)
            except BaseException:
                permits.release()
                raise
            if permits.starts_count:  # an operator has set a delay meanwhile
                return False
        return not permits.withdrawn and places.use(request)

    async def transfer(
        self, request: Request, download: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        """Download under the request's permits, if it has any. If one is lost, the transfer is
        cancelled, and raises `PermitLostError`.
        """
        await self._resume(request)
        if error := self._unresolved.pop(request, None):
            download = partial(_fail, error)
        permits = self._permits.get(request)
        if permits is None:
            return await download(request)
        self.start_transfer(request, asyncio.current_task())
        try:
            with permits.until_lost():
                response = await download(request)
            self.record_response(request, response)
            return response
        except Exception as error:
            if permits.site_permit is not None:
                self.responses.record_failure(permits.site_permit, request, error)
            raise
        finally:
            self.end_transfer(request)

    def start_transfer(self, request: Request, task: asyncio.Task[Any] | None = None) -> None:
        """A request goes on the wire, in a task that can be cancelled if there is one."""
        if request in self._permits:
            self._permits[request].begin()
        self._transfers[request] = task

    def record_response(self, request: Request, response: Response) -> None:
        """The site has responded to a request: note on its permit how."""
        permits = self._permits.get(request)
        permit = permits.site_permit if permits is not None else None
        if permit and self.responses.record_response(permit, request, response):
            self._semaphore.emit(RequestRefused())

    def suspend(self, request: Request) -> None:
        """A request waits for the response to another one, which a middleware fetches: if it has
        its permits already, give them back until its own transfer. The other one may need them.
        """
        if request in self._permits and request not in self._transfers:
            self._permits.pop(request).release()
            self.backpressure.suspend(request)
            self.local_concurrency.release()
            self._suspended.add(request)

    async def _resume(self, request: Request) -> None:
        if request in self._suspended:
            self._suspended.remove(request)
            if await self.acquire_for(request) is not None:
                raise SpiderClosingError("the spider is closing")

    def end_transfer(self, request: Request) -> None:
        """A request's transfer has ended: give its permit back."""
        self._transfers.pop(request, None)
        self._release(request)

    def release_for(self, request: Request) -> None:
        """A request's `fetch` is over: give its permit back, unless it is still on the wire, as it
        is after a cancellation.
        """
        if request not in self._transfers:
            self._release(request)

    def _release(self, request: Request) -> None:
        permits = self._permits.pop(request, None)
        if permits is not None:
            permits.release()
            self.backpressure.released(request)
            self.local_concurrency.release()

    def retry_request(self, request: Request, response: Response) -> Request | None:
        """A copy of a refused request, to be made later; None if its site has not refused it, or if
        there are to be no retries.
        """
        spider = self._crawler.spider
        if not self._is_retry_enabled or spider is None:
            return None
        retry = self.responses.retry_request(request, response, spider)
        if retry is not None:  # no further middleware sees the response
            if stats := self._crawler.get_downloader_middleware(DownloaderStats):
                stats.process_response(request, response)
            if cookies := self._crawler.get_downloader_middleware(CookiesMiddleware):
                cookies.process_response(request, response)
        return retry

    def return_to_scheduler(self, request: Request) -> Request:
        """A copy for the scheduler, which keeps it under JOBDIR. A shared frontier has the request.

        `engine.download_async` fetches the copy at once instead, and so comes here again: then this
        raises `SpiderClosingError`.
        """
        if request in self._returned:
            raise SpiderClosingError("the spider is closing")
        copy = request.replace(dont_filter=True)
        self._returned.add(copy)
        return copy

    def fetched(self, result: Any, request: Request) -> Any:
        """What the engine is given as the result of a request's `fetch`."""
        if isinstance(result, Failure) and isinstance(result.value, SpiderClosingError):
            # What a middleware fetched for it was not made any more, or it waited once more itself.
            result = self.return_to_scheduler(request)
        self.responses.forget_given_up(result)
        return drop_scope_of_other_host(result, request)

    # The crawl ----------------------------------------------------------------------------------

    def _robots_parsed(self, robotparser: RobotParser, request: Request) -> None:
        if self._crawl_delays.learn(robotparser, request):
            self._semaphore.emit(CrawlDelayFound())

    async def opened(self) -> None:
        """Wait until the crawl has reached its server, or has given up."""
        await self._opened.wait()

    def emit(self, event: Event) -> None:
        """Tell all observers of this node."""
        self._semaphore.emit(event)

    def watch_fetches(self) -> None:
        """Do what is left of the add-on's downloader to do, where that is not in its place."""
        self._engine.after_fetch(self.fetched)

    async def _open(self) -> None:
        self._engine.before_close(self._drain)
        if not self._crawler.crawling:  # `scrapy shell`, whose process just ends
            atexit.register(self._close_at_exit, asyncio.get_running_loop())
        limits = self.settings.limits
        warn_of_mistakes(self._crawler.settings, limits, self.settings.scopes)
        try:
            await self._open_unless_stopped()
            log_start(self.node, self.url or "", self._embedded is not None, limits)
        except SemaphoreError as error:
            logger.error("%s", error)
            self._failed = True
            raise CloseSpider("semaphore_error") from None
        finally:
            self._opened.set()

    async def _open_unless_stopped(self) -> None:
        """Wait for the server. A crawl that is stopped now sends no signal, so look regularly.

        Raises `ServerUnreachableError` after `SEMAPHORE_START_TIMEOUT`, which counts from the
        beginning: a shared frontier has waited before.
        """
        crawling = self._crawler.crawling  # not in `scrapy shell`
        timeout = self.settings.start_timeout
        opening = asyncio.ensure_future(self._semaphore.open())
        while not opening.done():
            if crawling and not self._crawler.crawling:
                opening.cancel()
                raise CloseSpider("shutdown")
            await asyncio.wait({opening}, timeout=STOP_CHECK_INTERVAL_S)
            is_late = timeout is not None and time.monotonic() - self._made_at > timeout
            if is_late and not opening.done():
                opening.cancel()
                server = Server(self.url or "", 1)  # shows no password
                raise ServerUnreachableError(
                    f"cannot use {server} (for longer than SEMAPHORE_START_TIMEOUT, "
                    f"{timeout:g} s): a warning before says why"
                )
        await opening

    def _drain(self) -> None:
        """Send requests that wait for permits back to the scheduler. A spider that closes waits for
        its downloads: they would hold it up, and be lost under JOBDIR.
        """
        self._delays.close()
        self._semaphore.drain()
        if self.robotstxt is not None:
            self.robotstxt.drain()
        self.local_concurrency.fail_all(ClosedError("the spider is closing"))

    def _close_at_exit(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close, in a process that ends while its loop still runs in another thread."""
        if loop.is_running():
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(self._close(), loop).result(EXIT_TIMEOUT_S)

    async def _close(self) -> None:
        atexit.unregister(self._close_at_exit)
        # Scrapy goes on with the transfer of a cancelled fetch, even past the end of the crawl.
        transfers = [task for task in self._transfers.values() if task is not None]
        for task in transfers:
            task.cancel()
        await asyncio.gather(*transfers, return_exceptions=True)
        for request in list(self._permits):  # without a task, nothing can cancel the transfer
            self.end_transfer(request)
        await self._semaphore.close()
        if self._embedded is not None:
            self._embedded.leave()
        if self._failed:
            self._engine.end_with_failure()
        vars(self._crawler).pop(ATTRIBUTE, None)


async def _fail(error: Exception, _: Request) -> Response:
    raise error


def _log_not_allowed(error: SettingsError) -> NotAllowedError:
    """Log in one line that a request's meta is not allowed. Returns the error of the request."""
    logger.error("%s", error)
    return NotAllowedError(str(error))  # for which Scrapy adds no traceback to the log
