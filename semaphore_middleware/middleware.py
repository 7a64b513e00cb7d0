"""The downloader middleware: each request waits for its permits."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from scrapy.downloadermiddlewares.cookies import CookiesMiddleware
from scrapy.downloadermiddlewares.stats import DownloaderStats
from scrapy.exceptions import NotConfigured
from scrapy.utils.response import response_status_message

from semaphore_middleware.scrapy.crawl import crawl_of
from semaphore_middleware.scrapy.downloads import copy_for_scheduler
from semaphore_middleware.scrapy.settings import is_enabled

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from semaphore_middleware.scrapy.downloads import Downloads


class SemaphoreMiddleware:
    """Makes each request wait for its permits, so that all nodes together keep a site's limit.

    Its position in `DOWNLOADER_MIDDLEWARES` is 950: after the HTTP cache (900), as cached responses
    need no permit, and next to the downloader, so that a permit is held little longer than its
    transfer.
    """

    def __init__(self, crawler: Crawler, downloads: Downloads) -> None:
        self._crawler = crawler
        self._downloads = downloads

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Raises `NotConfigured` and `SettingsError` as the add-on's does."""
        if not is_enabled(crawler):
            raise NotConfigured("SEMAPHORE_ENABLED is off")
        return cls(crawler, crawl_of(crawler).downloads)

    async def process_request(self, request: Request) -> Request | Response | None:
        """Wait for the permits. Returns a copy of the request for the scheduler if the spider is
        closing, or the response if another node has shared it. Raises `AcquireTimeoutError`,
        `HostDownError`; `IgnoreRequest` if the request cannot go back to the scheduler.
        """
        returned = await self._downloads.acquire(request)
        if returned is None and self._is_followed:
            self._downloads.begin(request)
        return returned

    @cached_property
    def _is_followed(self) -> bool:
        """True if another middleware's `process_request` runs after this one: it may send the
        request itself, as a browser's does, so the request counts as begun now.
        """
        downloader: Any = self._crawler.engine and self._crawler.engine.downloader
        *_, last = downloader.middleware.methods["process_request"]
        return bool(last != self.process_request)

    def process_response(self, request: Request, response: Response) -> Response | Request:
        """Give the permits back: the middlewares that get the response next may request the same
        site. Returns a copy of the request for a later retry if the site refused it and a retry is
        allowed.
        """
        admission = self._downloads.give_back(request)
        reason = response_status_message(response.status)
        retry = self._downloads.retries.make(admission, reason) if admission is not None else None
        if retry is None:
            return response
        # The response goes to no other middleware, so these two get it here.
        if stats := self._crawler.get_downloader_middleware(DownloaderStats):
            stats.process_response(request, response)
        if cookies := self._crawler.get_downloader_middleware(CookiesMiddleware):
            cookies.process_response(request, response)
        return retry

    def process_exception(self, request: Request, exception: Exception) -> Request | None:
        """Give the permits back, unless the transfer is still under way. Returns a copy of the
        request for a later retry, which does not count as one of Scrapy's, if no site responds to
        this node, or if its site has refused the request by closing the connection.
        """
        downloads = self._downloads
        admission = downloads.give_back(request)
        if admission is None or request.meta.get("dont_retry") or downloads.closing.has_begun:
            return None
        if admission.is_nodes_fault and downloads.retries.are_enabled:
            return copy_for_scheduler(request)
        is_refused = admission.retries_most is not None
        return downloads.retries.make(admission, exception) if is_refused else None
