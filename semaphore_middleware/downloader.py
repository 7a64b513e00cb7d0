"""Scrapy's downloader, whose transfers end when their permits are lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy.core.downloader import Downloader

from semaphore_middleware.gate import Gate, gate_of

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.core.downloader.handlers import DownloadHandlers
    from scrapy.crawler import Crawler
    from scrapy.http import Response


class SemaphoreDownloader(Downloader):
    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self.handlers = WatchedHandlers(self.handlers, gate_of(crawler))  # type: ignore[assignment]


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
