"""Permits for a crawler's requests: each crawler has one throttler.

`acquire` waits for a request's permits, and `transfer` downloads under them. The permits go back
when `Admissions.move` ends the request: after its transfer, or at the latest at the end of Scrapy's
`fetch`. Every path leads to that end, whatever middlewares do.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, ref

from scrapy import Request, signals
from scrapy.downloadermiddlewares.cookies import CookiesMiddleware
from scrapy.downloadermiddlewares.stats import DownloaderStats
from scrapy.exceptions import CannotResolveHostError, CloseSpider, IgnoreRequest
from twisted.python.failure import Failure

from semaphore_middleware.core.observer import Observer, Observers
from semaphore_middleware.core.permit import Permit, PermitSet
from semaphore_middleware.core.robotstxt import SharedRobotsTxt
from semaphore_middleware.errors import SemaphoreError, ServerUnreachableError, SettingsError
from semaphore_middleware.redis import embedded
from semaphore_middleware.redis.keys import Keys
from semaphore_middleware.redis.location import Server
from semaphore_middleware.scrapy.addresses import Addresses
from semaphore_middleware.scrapy.admission import (
    ASKING,
    ON_THE_WIRE,
    OVER,
    READY,
    Admission,
    Admissions,
)
from semaphore_middleware.scrapy.crawl_delays import CrawlDelayFound, CrawlDelays
from semaphore_middleware.scrapy.engine import Engine, check_reactor, end_crawl
from semaphore_middleware.scrapy.node import Node, node_for
from semaphore_middleware.scrapy.responses import (
    GIVEN_UP,
    Judge,
    RequestRefused,
    ResponseClassifier,
    forget_refusals,
)
from semaphore_middleware.scrapy.scopes import ScopeFinder, drop_scope_of_other_host
from semaphore_middleware.scrapy.settings import SemaphoreSettings, log_start, warn_of_mistakes
from semaphore_middleware.scrapy.throttling import delay_of, has_waited
from semaphore_middleware.telemetry.long_waits import LongWaits
from semaphore_middleware.telemetry.stats import SemaphoreStats
from semaphore_middleware.telemetry.stricter_limits import StricterLimits

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from scrapy.robotstxt import RobotParser
    from twisted.internet.defer import Deferred

    from semaphore_middleware.core.admin import Admin

logger = logging.getLogger(__name__)

STOP_CHECK_INTERVAL_S = 0.5
"""Between two checks for a stop, while a crawl waits for its server."""
EXIT_TIMEOUT_S = 3.0
"""How long an ending process may take to give its permits back."""
PERMIT_IDLE_TIMEOUT_S = 0.5
"""How long a permit may wait for a slot of CONCURRENT_REQUESTS: busy nodes free one sooner."""
ROBOTSTXT_CALL_TIMEOUT_S = 5.0
"""For a round trip about a robots.txt: no lease waits for it."""
NO_PERMITS = PermitSet(())

ATTRIBUTE = "_semaphore_throttler"
"""The crawler's attribute with its throttler. As they refer to each other, a collection of all
throttlers would keep the throttlers of crawls that fail before they begin.
"""

_fetching: ContextVar[ReferenceType[Admission] | None] = ContextVar("_fetching", default=None)
"""In the task of a `fetch`, and in the tasks it begins: the request's record. Weak, as connections
opened there keep the context.
"""


def throttler_of(crawler: Crawler) -> Throttler:
    """The throttler of this crawler, made by the first call. Invalid settings end the crawl."""
    throttler: Throttler | None = vars(crawler).get(ATTRIBUTE)
    if throttler is None:
        try:
            throttler = Throttler(crawler)
        except SemaphoreError as error:
            end_crawl(error)
        vars(crawler)[ATTRIBUTE] = throttler
    return throttler


class SpiderClosingError(SemaphoreError, IgnoreRequest):
    """A waiting request is not made, because the spider is closing."""


class NotAllowedError(SemaphoreError, IgnoreRequest):
    """A request is not made, because its meta, or a function in `SEMAPHORE_SCOPES`, gives an
    invalid value.
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
        self._scopes = ScopeFinder(settings.scopes, settings.limits, addresses)
        self.admissions = Admissions(
            self._scopes, crawler.settings.getint("CONCURRENT_REQUESTS"), self._engine.wake_soon
        )
        judge = Judge(settings.backoff_when, crawler) if settings.backoff_when else None
        self._responses = ResponseClassifier(
            crawler, settings.backoff_codes, settings.backoff_times, judge
        )
        self._crawl_delays = CrawlDelays(crawler.settings, settings.max_crawl_delay)
        observers = self._make_observers()  # first: it may find invalid settings
        self._embedded = None
        if settings.url is None:
            self._embedded = embedded.start_or_join(settings.prefix)
        self.url = self._embedded.url if self._embedded else settings.url
        self.robotstxt: SharedRobotsTxt | None = None
        """The robots.txt files shared by all nodes; None: each node reads its own."""
        if settings.robotstxt_shared and self.url is not None:
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
        self._is_closing = False
        self._failed = False
        self._is_retry_enabled = crawler.settings.getbool("RETRY_ENABLED")
        connect = crawler.signals.connect
        connect(self._open, signals.spider_opened)
        connect(self._close, signals.spider_closed)
        if settings.obey_crawl_delay:
            connect(self._robots_parsed, signals.robots_parsed)

    def _make_observers(self) -> list[Observer]:
        # The crawler has no stats yet when the add-on makes the throttler.
        stats = SemaphoreStats(lambda: self._crawler.stats)
        observers: list[Observer] = [self.admissions, stats, LongWaits(), StricterLimits()]
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

    # A request ----------------------------------------------------------------------------------

    def fetch(
        self, fetch: Callable[[Request], Deferred[Response | Request]], request: Request
    ) -> Deferred[Response | Request]:
        """Take a request through the downloader's `fetch`.

        The engine fetches the scheduler's requests in a plain callback. `engine.download_async`
        fetches in a task. In the task of another request's `fetch`, a middleware waits for the
        result, as for a robots.txt.
        """
        is_scheduled = asyncio.current_task() is None
        outer = None if is_scheduled else _fetching.get()
        needed_by = outer() if outer else None
        admission = self.admissions.enter(request, self, is_scheduled, needed_by)
        token = _fetching.set(ref(admission))
        try:
            return fetch(request).addBoth(self._fetched, request)
        finally:
            _fetching.reset(token)

    def _fetched(self, result: Any, request: Request) -> Any:
        """End a request's `fetch`. Returns the result for the engine."""
        if admission := self.admissions.of(request):
            self.admissions.leave(admission)
            if isinstance(result, Failure) and isinstance(result.value, SpiderClosingError):
                # A middleware's request for it was not made any more.
                result = _copy_for_scheduler(request) if admission.is_scheduled else result
        forget_refusals(request)
        if isinstance(result, Request):
            if result.meta.get("dont_retry") == GIVEN_UP:  # a middleware's copy of one given up
                forget_refusals(result)
            drop_scope_of_other_host(result, request)
        return result

    async def acquire(self, request: Request) -> Request | None:
        """Wait for a request's permits, if it needs any, and for a slot of this node's
        CONCURRENT_REQUESTS. Runs in the task of the request's `fetch`.

        Returns a copy of the request for the scheduler if the spider is closing. Raises
        `AcquireTimeoutError`, `HostDownError`, `NotAllowedError`; and `SpiderClosingError` if the
        request does not come from the scheduler.
        """
        admission = self.admissions.of(request) or self.admissions.enter(request, self)
        if admission.state is OVER:  # a middleware fetches it once more
            self.admissions.move(admission, ASKING)
        if admission.state is not ASKING:
            raise SemaphoreError(f"{request} is being fetched already; yield a copy of it")
        if self._is_closing:
            return self.return_to_scheduler(request)
        admission.task = task = asyncio.current_task()
        try:
            await self._admit(admission)
        except BaseException as error:
            self.admissions.move(admission, OVER)
            if isinstance(error, SettingsError):
                logger.error("%s", error)
                raise NotAllowedError(str(error)) from None  # Scrapy logs no traceback for it
            is_cancelled = isinstance(error, asyncio.CancelledError)
            if is_cancelled and self._is_closing and task is not None and not task.uncancel():
                return self.return_to_scheduler(request)  # it was cancelled by `_drain` alone
            raise
        finally:
            admission.task = None
        return None

    async def _admit(self, admission: Admission) -> None:
        request = admission.request
        if delay := delay_of(request):  # meanwhile its site has room for others
            self.admissions.move(admission, OVER)
            await asyncio.sleep(delay)
            has_waited(request)
            self.admissions.move(admission, ASKING)
        if self._scopes.looks_up:
            try:
                admission.address = await self._scopes.resolve(request)
            except CannotResolveHostError as error:
                admission.failure = error
        # Once more: middlewares may have changed the request.
        self.admissions.update(admission, self._scopes.find(request))
        scopes = self._crawl_delays.apply(admission.scopes, request)
        if scopes.limits:
            await self._opened.wait()
        timeout, priority = self.settings.acquire_timeout, admission.priority
        while True:
            permits = NO_PERMITS
            if scopes.limits:
                permits = await self._node.semaphore.acquire_all(
                    scopes.limits, timeout, admission, priority
                )
            self.admissions.move(admission, READY, permits)
            if await self._may_begin(admission, permits):
                return
            self.admissions.move(admission, ASKING)  # its permits go to other nodes
            if not self.admissions.has_place(admission) and admission.place is not None:
                await admission.place

    async def _may_begin(self, admission: Admission, permits: PermitSet) -> bool:
        """Wait for a slot of CONCURRENT_REQUESTS, but not if the permits' starts count. False if
        the permits must go back: no slot is free, or the site has refused a request meanwhile.
        """
        if not self.admissions.has_place(admission):
            assert admission.place is not None, "who is ready and has no place stands in line"
            if not permits.starts_count:
                await asyncio.wait([admission.place], timeout=PERMIT_IDLE_TIMEOUT_S)
            if permits.starts_count or not self.admissions.has_place(admission):
                return False
        return not permits.withdrawn

    async def transfer(
        self, download: Callable[[Request], Awaitable[Response]], request: Request
    ) -> Response:
        """Download under the request's permits. The loss of one cancels the transfer, and raises
        `PermitLostError`.
        """
        admission = self.admissions.of(request)
        if admission is None or admission.state is not READY:
            # It gave its permits back, as another request was fetched for it.
            if await self.acquire(request) is not None:
                raise SpiderClosingError("the spider is closing")
            admission = self.admissions.of(request)
            assert admission is not None, "it has its permits"
        permits = self._start(admission)
        admission.task = asyncio.current_task()
        try:
            if admission.failure is not None:
                raise admission.failure
            with permits.until_lost():
                response = await download(request)
            self._note_response(admission, response)
            return response
        except Exception as error:
            permits.received(0, 0)
            if permits.site_permit is not None:
                self._responses.record_failure(permits.site_permit, request, error)
            raise
        finally:
            admission.task = None
            self.admissions.move(admission, OVER)

    def _start(self, admission: Admission) -> PermitSet:
        assert admission.permits is not None, "it is ready"
        admission.permits.begin()
        self.admissions.move(admission, ON_THE_WIRE)
        return admission.permits

    def _note_response(self, admission: Admission, response: Response) -> None:
        """Note the site's response on the request's permits."""
        permits = admission.permits
        if permits is None:
            return
        permits.received(response.status, len(response.body))
        permit = permits.site_permit
        if permit and self._responses.record_response(permit, admission, response):
            self.emit(RequestRefused())

    def give_back(self, request: Request) -> Admission | None:
        """End a request, unless it is still on the wire, as a cancelled one may be. Returns its
        record, if it has one.
        """
        admission = self.admissions.of(request)
        if admission is not None and admission.state not in (ON_THE_WIRE, OVER):
            self.admissions.move(admission, OVER)
        return admission

    def end(self, request: Request, response: Response) -> Response | Request:
        """End a request by its response. Returns a copy of the request, to be made later, if the
        site has refused it and a retry is allowed.
        """
        admission, spider = self.give_back(request), self._crawler.spider
        if not self._is_retry_enabled or spider is None or admission is None:
            return response
        retry = self._responses.retry(admission, response, spider)
        if retry is None:
            return response
        # No further middleware sees the response.
        if stats := self._crawler.get_downloader_middleware(DownloaderStats):
            stats.process_response(request, response)
        if cookies := self._crawler.get_downloader_middleware(CookiesMiddleware):
            cookies.process_response(request, response)
        return retry

    def return_to_scheduler(self, request: Request) -> Request:
        """A copy for the scheduler to keep under JOBDIR; a shared frontier has the request already.

        Raises `SpiderClosingError` if the request does not come from the scheduler.
        """
        admission = self.admissions.of(request)
        if admission is not None and not admission.is_scheduled:
            raise SpiderClosingError("the spider is closing")
        return _copy_for_scheduler(request)

    # Without the add-on's downloader ------------------------------------------------------------

    def watch_transfers(self) -> None:
        """Learn of transfers from Scrapy's signals. A transfer cannot be ended this way."""
        connect = self._crawler.signals.connect
        connect(self._wrap_fetch, signals.spider_opened)
        connect(self._transfer_begun, signals.request_reached_downloader)
        connect(self._response_downloaded, signals.response_downloaded)
        connect(self._transfer_ended, signals.request_left_downloader)

    def _wrap_fetch(self) -> None:
        self._engine.wrap_fetch(self.fetch)

    def _transfer_begun(self, request: Request) -> None:
        admission = self.admissions.of(request)
        if admission is not None and admission.state is READY:
            self._start(admission)

    def _response_downloaded(self, request: Request, response: Response) -> None:
        if admission := self.admissions.of(request):
            self._note_response(admission, response)

    def _transfer_ended(self, request: Request) -> None:
        if admission := self.admissions.of(request):
            self.admissions.move(admission, OVER)

    # The crawl ----------------------------------------------------------------------------------

    @property
    def node(self) -> str:
        """This node's name, the same for all crawls of this process with these settings."""
        return self._node.semaphore.node

    @property
    def admin(self) -> Admin:
        """The operators' interface to the server."""
        return self._node.semaphore.admin

    def permits(self) -> Collection[Permit]:
        """The permits of this crawl's requests, held or waited for."""
        return [
            one
            for one in self._node.semaphore.permits()
            if getattr(one.owner, "crawl", None) is self
        ]

    def limit_of(self, scope: str) -> int | None:
        """How many requests may hold a permit of `scope`, as last heard; None if not known."""
        return self._node.semaphore.limit_of(scope)

    @property
    def _server(self) -> str:
        """The server's address, without a password."""
        return str(Server(self.url or "", 1))

    async def opened(self) -> None:
        """Wait until the crawl has reached its server, or has given up."""
        await self._opened.wait()

    def _robots_parsed(self, robotparser: RobotParser, request: Request) -> None:
        if self._crawl_delays.learn(robotparser, request):
            self.emit(CrawlDelayFound())

    async def _open(self) -> None:
        self._engine.before_close(self._drain)
        if not self._crawler.crawling:  # `scrapy shell`, whose process just ends
            atexit.register(self._close_at_exit, asyncio.get_running_loop())
        limits = self.settings.limits
        warn_of_mistakes(self._crawler.settings, limits, self.settings.scopes)
        try:
            await self._open_unless_stopped()
            log_start(self.node, self._server, self._embedded is not None, limits)
        except SemaphoreError as error:
            logger.error("%s", error)
            self._failed = True
            raise CloseSpider("semaphore_error") from None
        finally:
            self._opened.set()

    async def _open_unless_stopped(self) -> None:
        """Wait for the server. A stop of the crawl sends no signal now, so check regularly.

        Raises `ServerUnreachableError` after `SEMAPHORE_START_TIMEOUT`, counted from the beginning
        of the crawl: a shared frontier has waited before.
        """
        crawling = self._crawler.crawling  # not in `scrapy shell`
        timeout = self.settings.start_timeout
        opening = asyncio.ensure_future(self._join_node())
        while not opening.done():
            if crawling and not self._crawler.crawling:
                opening.cancel()
                raise CloseSpider("shutdown")
            await asyncio.wait({opening}, timeout=STOP_CHECK_INTERVAL_S)
            is_late = timeout is not None and time.monotonic() - self._made_at > timeout
            if is_late and not opening.done():
                opening.cancel()
                raise ServerUnreachableError(
                    f"cannot use {self._server} (for longer than SEMAPHORE_START_TIMEOUT, "
                    f"{timeout:g} s): a warning before says why"
                )
        await opening

    def _find_node(self) -> Node:
        arguments = self._engine.spider_arguments() or {}
        job = arguments.get("_job", "")  # as Scrapyd gives it
        return node_for(self.settings, self.url, self._crawler.spidercls.name, job)

    async def _join_node(self) -> None:
        self._node = self._find_node()  # the first may have been closed
        try:
            await self._observers.open(self)
            await self._node.join(self)
        except BaseException:
            await self._observers.close()
            raise

    def _drain(self) -> None:
        """Send requests that wait for permits back to the scheduler. A closing spider waits for its
        downloads: these requests would hold it up, and be lost under JOBDIR.
        """
        if self._is_closing:
            return
        self._is_closing = True
        if self.robotstxt is not None:
            self.robotstxt.drain()
        for admission in self.admissions:
            if admission.task is not None and admission.state is not ON_THE_WIRE:
                admission.task.cancel()

    def _close_at_exit(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close at the end of a process whose loop still runs in another thread."""
        if loop.is_running():
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(self._close(), loop).result(EXIT_TIMEOUT_S)

    async def _close(self) -> None:
        atexit.unregister(self._close_at_exit)
        # Scrapy goes on with the transfer of a cancelled fetch, even past the end of the crawl.
        transfers = [one.task for one in self.admissions if one.task is not None]
        for transfer in transfers:
            transfer.cancel()
        await asyncio.gather(*transfers, return_exceptions=True)
        for admission in self.admissions:  # without a task, nothing can cancel the transfer
            self.admissions.move(admission, OVER)
        try:
            await self._node.leave(self)
        finally:
            await self._observers.close()
        if self._embedded is not None:
            self._embedded.leave()
        if self._failed:
            self._engine.end_with_failure()
        vars(self._crawler).pop(ATTRIBUTE, None)


def _copy_for_scheduler(request: Request) -> Request:
    return request.replace(dont_filter=True)
