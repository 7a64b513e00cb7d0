"""A user's own judge of responses: `SEMAPHORE_BACKOFF_WHEN`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, cast

from scrapy.downloadermiddlewares.httpcompression import HttpCompressionMiddleware
from scrapy.exceptions import NotConfigured

from semaphore_middleware.model.validation import LONGEST_S

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response

logger = logging.getLogger(__name__)


class Judge:
    """Asks a user's function whether a response is a refusal in disguise, such as a CAPTCHA."""

    def __init__(self, function: Callable[[Response], object], crawler: Crawler) -> None:
        self._function = function
        self._crawler = crawler

    def refusal(self, request: Request, response: Response) -> float | None:
        """Seconds for which the function says that the site refused; 0: it does not say for how
        long; None: no refusal. A function that raises, or returns nonsense, is logged, and the
        response is what it seems.
        """
        try:
            verdict = self._function(self._decompressed(request, response))
        except Exception as error:
            logger.error("SEMAPHORE_BACKOFF_WHEN raised %r for %s.", error, response)
            return None
        if verdict is None or isinstance(verdict, bool):
            return 0.0 if verdict else None
        if isinstance(verdict, int | float) and verdict >= 0:
            return float(min(verdict, LONGEST_S)) or None
        shown = verdict if isinstance(verdict, float) else type(verdict).__name__
        logger.error(
            "SEMAPHORE_BACKOFF_WHEN returned %s for %s: allowed is True, False or a number of "
            "seconds >= 0.",
            shown,
            response,
        )
        return None

    def _decompressed(self, request: Request, response: Response) -> Response:
        """The response as spiders get it: Scrapy decompresses it only later."""
        if self._compression is None or "Content-Encoding" not in response.headers:
            return response
        return cast("Response", self._compression.process_response(request, response.copy()))

    @cached_property
    def _compression(self) -> HttpCompressionMiddleware | None:
        try:
            middleware = HttpCompressionMiddleware.from_crawler(self._crawler)
        except NotConfigured:
            return None
        middleware.stats = None  # Scrapy's own counts the response
        return middleware
