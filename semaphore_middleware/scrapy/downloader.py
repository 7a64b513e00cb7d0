"""Scrapy's downloader, which does not count waiting requests and ends transfers of lost permits."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, ref

from scrapy.core.downloader import Downloader

from semaphore_middleware.scrapy.engine import connections_per_host, open_local_slots
from semaphore_middleware.scrapy.throttler import Throttler, throttler_of

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.core.downloader.handlers import DownloadHandlers
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from twisted.internet.defer import Deferred


_fetching: ContextVar[ReferenceType[Request] | None] = ContextVar("_fetching", default=None)
"""In the task of a `fetch`, and in tasks that it begins: its request. Weak, as connections that are
opened there keep the context.
"""

NO_CONCURRENCY_LIMIT = 1000
"""Connections that are kept to a host where CONCURRENT_REQUESTS sets no limit."""


class SemaphoreDownloader(Downloader):
    """The add-on's `DOWNLOADER`.

    Its slots are open: a slot comes after the middlewares, so a request that waits there would hold
    its permit while nothing is on the wire. What CONCURRENT_REQUESTS_PER_DOMAIN, DOWNLOAD_DELAY and
    DOWNLOAD_SLOTS say holds for all nodes, by the permits.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._throttler = throttler_of(crawler)
        at_once = crawler.settings.getint("CONCURRENT_REQUESTS") or NO_CONCURRENCY_LIMIT
        largest = max(self._throttler.settings.limits.largest, at_once)
        with connections_per_host(crawler, largest):
            super().__init__(crawler)
        open_local_slots(self, largest)
        self.handlers = ThrottledHandlers(  # type: ignore[assignment]
            self.handlers, self._throttler
        )

    def fetch(  # type: ignore[override]  # Scrapy's has an argument that it no longer passes
        self, request: Request
    ) -> Deferred[Response | Request]:
        """Take a request through the downloader middlewares and download it.

        The engine fetches what comes from its scheduler in a plain callback. In a task it is
        `engine.download_async` that fetches: in that of another request's `fetch` for a middleware,
        which waits for the result, as for a robots.txt.
        """
        is_scheduled = asyncio.current_task() is None
        outer = None if is_scheduled else _fetching.get()
        needed_by = outer() if outer else None
        if needed_by is not None:
            self._throttler.suspend(needed_by)
        self._throttler.backpressure.enter(request, is_scheduled, needed_by)
        token = _fetching.set(ref(request))
        try:
            return super().fetch(request).addBoth(self._fetched, request)
        finally:
            _fetching.reset(token)

    def _fetched(self, result: Any, request: Request) -> Any:
        self._throttler.backpressure.leave(request)
        self._throttler.responses.forget(request)
        return self._throttler.fetched(result, request)

    def needs_backout(self) -> bool:
        """True if the engine should take no request from the scheduler.

        Scrapy counts `active`, to which requests belong that only wait for a permit: one full site
        would use up CONCURRENT_REQUESTS, and hold up all others.
        """
        backpressure = self._throttler.backpressure
        at_work = len(self.active) - backpressure.exempt_from_concurrency
        is_full = 0 < self.total_concurrency <= at_work
        return is_full or backpressure.is_full or self._throttler.local_concurrency.is_short


class ThrottledHandlers:
    """Scrapy's download handlers, with each transfer run by the throttler.

    Cancelling a handler's coroutine closes its connection (seen with Scrapy 2.19's HTTP/1.1 and
    aiohttp handlers).
    """

    def __init__(self, handlers: DownloadHandlers, throttler: Throttler) -> None:
        self._handlers = handlers
        self._throttler = throttler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handlers, name)

    async def download_request_async(self, request: Request) -> Response:
        """Download a request under its permit."""
        return await self._throttler.transfer(request, self._handlers.download_request_async)
