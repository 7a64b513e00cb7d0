"""Scrapy's downloader: waiting requests take no room; a lost permit ends its transfer."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from scrapy.core.downloader import Downloader
from twisted.internet.defer import Deferred, inlineCallbacks

from semaphore_middleware.gate import Gate, gate_of

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.core.downloader.handlers import DownloadHandlers
    from scrapy.crawler import Crawler
    from scrapy.http import Response


class SemaphoreDownloader(Downloader):
    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        gate = gate_of(crawler)
        self._waiters = gate.waiters
        self.handlers = WatchedHandlers(self.handlers, gate)  # type: ignore[assignment]

    @inlineCallbacks
    def fetch(  # type: ignore[override]  # Scrapy's has an argument that it no longer passes
        self, request: Request
    ) -> Generator[Deferred[Any], Any, Response | Request]:
        with self._waiters.expecting(request):
            result: Response | Request = yield super().fetch(request)
        return result

    def needs_backout(self) -> bool:
        """Whether the scheduler is to be left alone. Scrapy's `active` counts the waiters too: with
        them one full site would take up all of CONCURRENT_REQUESTS, and stall all others.
        """
        at_work = len(self.active) - self._waiters.taking_no_room
        return 0 < self.total_concurrency <= at_work or self._waiters.too_many


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
        with self._gate.watch(request):
            return await self._handlers.download_request_async(request)
