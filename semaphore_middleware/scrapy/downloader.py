"""Scrapy's downloader: waiting requests take no room; a lost permit ends its transfer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy.core.downloader import Downloader

from semaphore_middleware.scrapy.throttler import Gate, gate_of

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.core.downloader.handlers import DownloadHandlers
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from twisted.internet.defer import Deferred


class SemaphoreDownloader(Downloader):
    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._gate = gate_of(crawler)
        self._gate.sees_transfers = True
        self.handlers = WatchedHandlers(self.handlers, self._gate)  # type: ignore[assignment]

    def fetch(  # type: ignore[override]  # Scrapy's has an argument that it no longer passes
        self, request: Request
    ) -> Deferred[Response | Request]:
        self._gate.waiters.entered(request)
        return super().fetch(request).addBoth(self._fetched, request)

    def _fetched(self, result: Any, request: Request) -> Any:
        self._gate.waiters.left(request)
        self._gate.answered(request)
        self._gate.answers.received(request)
        return result

    def needs_backout(self) -> bool:
        """Whether the scheduler is to be left alone. Scrapy's `active` counts the waiters too: with
        them one full site would take up all of CONCURRENT_REQUESTS, and stall all others.
        """
        waiters = self._gate.waiters
        at_work = len(self.active) - waiters.taking_no_room
        full = 0 < self.total_concurrency <= at_work
        return full or waiters.too_many or self._gate.hands.wanted


class WatchedHandlers:
    """The download handlers, each transfer under the gate's eye.

    Cancelling a handler's coroutine closes its connection (seen with Scrapy 2.19's HTTP/1.1 and
    aiohttp handlers).
    """

    def __init__(self, handlers: DownloadHandlers, gate: Gate) -> None:
        self._handlers = handlers
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handlers, name)

    async def download_request_async(self, request: Request) -> Response:
        return await self._gate.transfer(request, self._handlers.download_request_async)
