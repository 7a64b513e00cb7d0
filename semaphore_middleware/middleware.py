"""The downloader middleware: a request asks for its permit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from scrapy.exceptions import NotConfigured

from semaphore_middleware.scrapy.settings import is_enabled
from semaphore_middleware.scrapy.throttler import Gate, gate_of

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response


class SemaphoreMiddleware:
    """Holds each request until its site has room for it, counted over all nodes.

    Its place in `DOWNLOADER_MIDDLEWARES` is 950: after the HTTP cache (900), so that a hit takes no
    permit, and next to the downloader, so that a permit is held for little but the transfer. The
    gate gives it back.
    """

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Raises as the add-on's does."""
        if not is_enabled(crawler.settings):
            raise NotConfigured("SEMAPHORE_ENABLED is off")
        return cls(gate_of(crawler))

    async def process_request(self, request: Request) -> Request | None:
        """Wait for the permit. A request that is returned goes back to the scheduler: the spider is
        closing. Raises `AcquireTimeoutError`, and `IgnoreRequest` once that was done.
        """
        return await self._gate.enter(request)

    def process_response(self, request: Request, response: Response) -> Response | Request:
        """What a middleware after this one has answered holds no permit from here on: one before
        may want to ask the same site. What the site refused is to be made again later.
        """
        self._gate.answered(request)
        return self._gate.again(request) or response

    def process_exception(self, request: Request, exception: Exception) -> None:  # noqa: ARG002
        """Give the permit back, unless its transfer is still under way."""
        self._gate.answered(request)
