"""Requests in a crawl's downloader: how they get their permits, and give them back.

`acquire` waits for a request's permits, and `transfer` downloads under them. The permits go back
when `Admissions.move` ends the request: after its transfer, or at the latest at the end of Scrapy's
`fetch`. Every path leads to that end, whatever middlewares do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ReferenceType, ref

from scrapy import Request, signals
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response
from twisted.python.failure import Failure

from semaphore_middleware.core.permit import PermitSet
from semaphore_middleware.errors import HostDownError, SemaphoreError, SettingsError
from semaphore_middleware.model.validation import check_priority
from semaphore_middleware.scrapy.admission import (
    ANSWERED,
    ASKING,
    ON_THE_WIRE,
    OVER,
    READY,
    SHARED_KEY,
    Admission,
    Admissions,
)
from semaphore_middleware.scrapy.closing import SpiderClosing, current_page
from semaphore_middleware.scrapy.crawl_delays import CrawlDelayFound, CrawlDelays
from semaphore_middleware.scrapy.download_errors import (
    error_number,
    is_closing,
    is_of_proxy,
    is_without_response,
)
from semaphore_middleware.scrapy.engine import Engine, SpiderClosingError, wrap_downloads
from semaphore_middleware.scrapy.network import Network
from semaphore_middleware.scrapy.refused_proxies import RefusedProxies
from semaphore_middleware.scrapy.responses import (
    RefusalCheck,
    RequestRefused,
    ResponseClassifier,
    record_proxy_refusal,
)
from semaphore_middleware.scrapy.retries import GIVEN_UP, Retries, forget_refusals
from semaphore_middleware.scrapy.scopes import (
    SCOPE_KEY,
    ScopeFinder,
    Scopes,
    chosen_slot,
    drop_scope_of_other_host,
    host_of,
)
from semaphore_middleware.scrapy.versions import robots_parsed

if TYPE_CHECKING:
    from scrapy.core.downloader import Downloader
    from scrapy.crawler import Crawler
    from scrapy.robotstxt import RobotParser
    from twisted.internet.defer import Deferred

    from semaphore_middleware.core.semaphore import FairSemaphore
    from semaphore_middleware.scrapy.settings import SemaphoreSettings
    from semaphore_middleware.scrapy.slots import OpenSlot

logger = logging.getLogger(__name__)

PERMIT_IDLE_TIMEOUT_S = 0.5
"""How long a permit may wait for a slot of CONCURRENT_REQUESTS: busy nodes free one sooner."""
PERMIT_OF_PROBE_S = 1.0
"""How long a test of this node's network waits for a permit."""
NO_PERMITS = PermitSet(())

_fetching: ContextVar[ReferenceType[Admission] | None] = ContextVar("_fetching", default=None)
"""The record of the request whose `fetch` runs in this task, or has begun it. Weak, as connections
opened there keep the context.
"""


class NotAllowedError(SemaphoreError, IgnoreRequest):
    """A request is not made, because its meta, or a function in `SEMAPHORE_SCOPES`, gives an
    invalid value.
    """


class SharedRequest(Protocol):
    """A request whose response all nodes reuse, so that few of them make it."""

    async def known_response(self, request: Request) -> Response | None:
        """The response, if it is known by now. Called when the request has its permits."""

    def received(self, response: Response) -> Response:
        """The response for other middlewares. Raises an error if it cannot be used."""

    def on_response(self, response: Response) -> None:
        """Share the response, as the middlewares have left it, before the permits go back."""


class Downloads:
    """Takes a crawl's requests through the downloader, each under its permits."""

    def __init__(
        self,
        crawler: Crawler,
        engine: Engine,
        settings: SemaphoreSettings,
        scopes: ScopeFinder,
        semaphore: FairSemaphore,
        opened: Callable[[], Awaitable[object]],
    ) -> None:
        self._crawler = crawler
        self._engine = engine
        self._settings = settings
        self._scopes = scopes
        self._semaphore = semaphore
        self._opened = opened
        """Waits until the semaphore is open, or cannot be opened."""
        self._downloader: Downloader | None = None
        """The downloader wrapped by `wrap_transfers`."""
        self.slot_of: Callable[[Request], OpenSlot] | None = None
        """Finds a request's slot in the add-on's downloader."""
        self.admissions = Admissions(self._scopes, settings.concurrent_requests, engine.wake_soon)
        function = settings.backoff_when
        refusal_check = RefusalCheck(function, crawler) if function else None
        self.retries = Retries(crawler, settings.backoff_times)
        proxies = RefusedProxies(lambda: semaphore.cache)
        self._responses = ResponseClassifier(
            settings.backoff_codes, refusal_check, self.retries, proxies
        )
        user_agent = str(crawler.settings["USER_AGENT"])
        self._network = Network(settings.backoff, semaphore.emit, self._probe, user_agent)
        self._crawl_delays = CrawlDelays(crawler.settings, settings.max_crawl_delay)
        crawler.signals.connect(self._robots_parsed, robots_parsed)
        crawler.signals.connect(self._headers_received, signals.headers_received)
        self.closing = SpiderClosing(self.admissions, semaphore)
        self._has_warned_of_slot = False

    def fetch(
        self, fetch: Callable[[Request], Deferred[Response | Request]], request: Request
    ) -> Deferred[Response | Request]:
        """Take a request through the downloader's `fetch`.

        The engine calls this in a plain callback for the scheduler's requests; for others,
        `engine.download_async` calls it in a task. If that is the task of another request's
        `fetch`, a middleware waits there for the result, such as a robots.txt.
        """
        if "download_slot" in request.meta and not self._has_warned_of_slot:
            self._warn_of_slot(request)
        is_scheduled = asyncio.current_task() is None
        outer = None if is_scheduled else _fetching.get()
        needed_by = outer() if outer else None
        admission = self.admissions.enter_fetch(request, is_scheduled, needed_by)
        token = _fetching.set(ref(admission))
        page_token = current_page.set(request.url) if is_scheduled else None
        try:
            return fetch(request).addBoth(self._fetched, request)
        finally:
            _fetching.reset(token)
            if page_token is not None:
                current_page.reset(page_token)

    def _warn_of_slot(self, request: Request) -> None:
        """Warn if the user has named a request's slot as a host. Scrapy sets it to the host; after
        a redirect, it is that of the previous request.
        """
        slot = request.meta["download_slot"]
        is_known = self._downloader is not None and slot in self._downloader.slots
        is_expected = "redirect_urls" in request.meta or SCOPE_KEY in request.meta
        if is_known or is_expected or slot == host_of(request) or chosen_slot(request):
            return
        self._has_warned_of_slot = True
        logger.warning(
            "%s: meta['download_slot'] = %r has no effect, as a host: to limit such requests "
            "together, name the slot unlike a host.",
            request,
            slot,
        )

    def _fetched(self, result: Any, request: Request) -> Any:
        """End a request's `fetch`. Returns the result for the engine."""
        if admission := self.admissions.admission_of(request):
            try:
                if admission.state is ANSWERED and isinstance(result, Response):
                    shared: SharedRequest = request.meta[SHARED_KEY]
                    shared.on_response(result)
            finally:
                self.admissions.leave_fetch(admission)
            if isinstance(result, Failure) and isinstance(result.value, SpiderClosingError):
                # The closing spider refused a request that a middleware made for this one.
                result = copy_for_scheduler(request) if admission.is_scheduled else result
        forget_refusals(request)
        if isinstance(result, Request):
            if result.meta.get("dont_retry") == GIVEN_UP:  # a middleware's copy, given up
                forget_refusals(result)
            drop_scope_of_other_host(result, request)
        return result

    async def acquire(self, request: Request) -> Request | Response | None:
        """Wait for a request's permits, if it needs any, and for a slot of this node's
        CONCURRENT_REQUESTS. Runs in the task of the request's `fetch`.

        Returns the response of a shared request if it is known by now: then no permit is needed. If
        the spider is closing, returns a copy of the request for the scheduler, or raises
        `SpiderClosingError` if the request bypassed it. Raises `AcquireTimeoutError`,
        `HostDownError`, `NotAllowedError`.
        """
        admission = self.admissions.admission_of(request)
        if admission is None:
            admission = self.admissions.enter_fetch(request)
            admission.has_left = True
        if admission.state in (ANSWERED, OVER):  # a middleware fetches it once more
            self.admissions.move(admission, ASKING)
        if admission.state is not ASKING:
            raise SemaphoreError(f"{request} is being fetched already; yield a copy of it")
        if not self.closing.may_ask(admission):
            return self.return_to_scheduler(request)
        admission.task = asyncio.current_task()
        try:
            response = await self._admit(admission)
            if response is not None:
                self.admissions.move(admission, OVER)
            return response
        except BaseException as error:
            self.admissions.move(admission, OVER)
            if isinstance(error, SettingsError):
                logger.error("%s: %s", request, error)
                raise NotAllowedError(f"{request}: {error}") from None  # Scrapy logs no traceback
            if self.closing.has_cancelled(error):
                return self.return_to_scheduler(request)
            if isinstance(error, HostDownError) and self.closing.has_begun:
                return self.return_to_scheduler(request, f"{error}.")
            raise
        finally:
            admission.task = None

    def begin(self, request: Request) -> None:
        """Count the request's start now, before its transfer."""
        admission = self.admissions.admission_of(request)
        if admission is not None and admission.permits is not None:
            admission.permits.begin()

    async def _admit(self, admission: Admission) -> Response | None:
        """Take permits, again if necessary, until the request may begin, or its response is
        known.
        """
        request = admission.request
        # Found again, as middlewares may have changed the request.
        self.admissions.update(admission, self._scopes.find_scopes(request))
        if self.slot_of is not None:
            self.admissions.enter_slot(admission, self.slot_of(request))
        scopes = self._crawl_delays.apply(admission.scopes, request)
        if scopes.limits:
            await self._opened()
        check_priority(request.priority, "priority")
        permits = self.admissions.take_over(admission)
        while True:
            if permits is None:
                permits = await self._take_permits(admission, scopes)
            self.admissions.move(admission, READY, permits)
            shared: SharedRequest | None = request.meta.get(SHARED_KEY)
            if shared is not None and (known := await shared.known_response(request)) is not None:
                return known
            if await self._may_begin(admission, permits):
                return None
            permits = None
            await self._wait_without_permits(admission)

    async def _take_permits(self, admission: Admission, scopes: Scopes) -> PermitSet:
        if not scopes.limits:
            return NO_PERMITS
        return await self._semaphore.acquire_all(
            scopes.limits,
            self._settings.acquire_timeout,
            priority=admission.priority,
            on_progress=partial(self.admissions.follow, admission),
        )

    async def _may_begin(self, admission: Admission, permits: PermitSet) -> bool:
        """Wait for a slot of CONCURRENT_REQUESTS, unless the permits' starts count. False if the
        permits must go back: no slot is free, the site has refused a request meanwhile, or no site
        responds to this node.
        """
        if not self.admissions.has_slot(admission):
            # If it does not wait for a slot, it gave its permits back for a request that it needs.
            if admission.slot is not None and not permits.starts_count:
                await asyncio.wait([admission.slot], timeout=PERMIT_IDLE_TIMEOUT_S)
            if permits.starts_count or not self.admissions.has_slot(admission):
                return False
        needs_network = bool(host_of(admission.request))
        return not permits.must_not_start and (not needs_network or self._network.may_begin())

    async def _wait_without_permits(self, admission: Admission) -> None:
        """Give a request's permits back, and wait until it is useful to take permits again."""
        self.admissions.move(admission, ASKING)
        if host_of(admission.request):
            await self._network.wait()
        if not self.admissions.has_slot(admission) and admission.slot is not None:
            await admission.slot

    async def transfer(
        self, download: Callable[[Request], Awaitable[Response]], request: Request
    ) -> Response:
        """Download under the request's permits. The loss of one cancels the transfer, and raises
        `PermitLostError`.
        """
        admission = self.admissions.admission_of(request)
        if admission is None or admission.state is not READY:
            # Its `fetch` was cancelled, and Scrapy goes on; or it gave its permits back, as another
            # request was fetched for it.
            instead = await self.acquire(request)
            if isinstance(instead, Response):
                return instead
            if instead is not None:
                raise SpiderClosingError("the spider is closing")
            admission = self.admissions.admission_of(request)
        assert admission is not None, "it has its permits"
        permits = admission.permits
        assert permits is not None, "it is ready"
        permits.begin()
        self.admissions.move(admission, ON_THE_WIRE)
        admission.task = asyncio.current_task()
        admission.has_headers = False
        ending = OVER
        needs_network = bool(host_of(request))
        is_try = needs_network and self._network.begin()
        status, size = 0, 0  # no response
        try:
            with permits.until_lost():
                response = await download(request)
            if needs_network:
                self._network.answered(request)
            status, size = response.status, len(response.body)
            if await self._responses.record_response(permits, admission, response):
                self._semaphore.emit(RequestRefused)
            shared: SharedRequest | None = request.meta.get(SHARED_KEY)
            if shared is not None:
                response = shared.received(response)
                ending = OVER if admission.has_left else ANSWERED
            return response
        except Exception as error:
            admission.task = None  # the crawl's end must not cancel the rest
            await self._note_failure(permits, admission, error, is_try)
            raise
        except asyncio.CancelledError as error:
            if self.closing.has_cancelled(error):
                raise self.closing.error_of(admission) from None
            raise
        finally:
            admission.task = None
            permits.received(status, size)
            if is_try:
                self._network.end_try()
            self.admissions.move(admission, ending)

    async def _note_failure(
        self, permits: PermitSet, admission: Admission, error: Exception, is_try: bool
    ) -> None:
        """Record that a site has not responded, unless no site responds to this node. Through a
        proxy, which may be at fault, record only refusals by the proxy itself.
        """
        request, site = admission.request, permits.site_permit
        if is_of_proxy(error):
            record_proxy_refusal(permits, request)
        is_closed = not admission.has_headers and is_closing(error, request)
        if request.meta.get("proxy") or not (is_closed or is_without_response(error)):
            return
        if await self._network.failed(request, error_number(error), is_try, is_closed):
            admission.is_nodes_fault = True
        elif is_closed and site is not None:
            if self._responses.record_closing(site, admission):
                self._semaphore.emit(RequestRefused)
        elif site is not None:
            site.failed()

    def _headers_received(self, request: Request) -> None:
        if admission := self.admissions.admission_of(request):
            admission.has_headers = True

    @asynccontextmanager
    async def _probe(self, request: Request) -> AsyncIterator[None]:
        """Hold the permits of a request by which this node tests its network. Raises
        `AcquireTimeoutError` where they are in use: those requests test it as well.
        """
        limits = self._crawl_delays.apply(self._scopes.find_scopes(request), request).limits
        timeout = PERMIT_OF_PROBE_S
        permits = await self._semaphore.acquire_all(limits, timeout) if limits else NO_PERMITS
        try:
            permits.begin()
            yield
        finally:
            permits.release()

    def give_back(self, request: Request) -> Admission | None:
        """End a request, unless it is still on the wire, as a cancelled one may be, or keeps its
        permits until its `fetch` ends. Returns its record, if it has one.
        """
        admission = self.admissions.admission_of(request)
        if admission is not None and admission.state not in (ON_THE_WIRE, ANSWERED, OVER):
            self.admissions.move(admission, OVER)
        return admission

    def return_to_scheduler(self, request: Request, reason: str = "") -> Request:
        """A copy of a request, for the scheduler to keep.

        Raises `SpiderClosingError`, with this reason, if the request bypassed the scheduler.
        """
        admission = self.admissions.admission_of(request)
        if admission is not None and not admission.is_scheduled:
            raise self.closing.error_of(admission, reason)
        return copy_for_scheduler(request)

    def _robots_parsed(self, robotparser: RobotParser, request: Request) -> None:
        if self._crawl_delays.record(robotparser, request):
            self._semaphore.emit(CrawlDelayFound)

    # The end of the crawl -----------------------------------------------------------------------

    async def close(self) -> None:
        """End all requests. Scrapy continues the transfer of a cancelled `fetch`, even after the
        end of the crawl.
        """
        self.closing.end()
        tasks = [admission.task for admission in self.admissions]
        transfers = [task for task in tasks if task is not None]
        for transfer in transfers:
            transfer.cancel()
        await asyncio.gather(*transfers, return_exceptions=True)
        for admission in self.admissions:  # without a task, nothing can cancel the transfer
            self.admissions.move(admission, OVER)

    def wrap_transfers(self, downloader: Downloader) -> None:
        """Make this downloader's transfers by `transfer`. Raises `SettingsError` if it has no
        handlers to wrap.
        """
        wrap_downloads(downloader, self.transfer)
        self._downloader = downloader

    def wrap_downloader(self) -> None:
        """Use `fetch` and `transfer` in any downloader except the add-on's, which already does.

        Raises `SettingsError` as `wrap_transfers` does.
        """
        downloader = self._crawler.engine.downloader
        if downloader is not self._downloader:
            self.wrap_transfers(downloader)
            self._engine.wrap_fetch(self.fetch)
        else:
            self._engine.count_waiting_for_spiders()


def copy_for_scheduler(request: Request) -> Request:
    """A copy of a request that passes the dupefilter."""
    return request.replace(dont_filter=True)
