"""From a response to feedback on its permit, and to a retry if the site refused the request.

A refusal is a response with one of the statuses in `SEMAPHORE_BACKOFF_CODES`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from weakref import WeakSet

from scrapy.exceptions import DownloadConnectionRefusedError, DownloadTimeoutError

from semaphore_middleware.core.observer import Event
from semaphore_middleware.core.permit import Permit

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.http import Response

logger = logging.getLogger(__name__)

NO_RESPONSE = (
    DownloadTimeoutError,
    DownloadConnectionRefusedError,
    TimeoutError,
    ConnectionRefusedError,
)
"""Errors that say that the site is overloaded or down."""
REFUSALS_KEY = "semaphore_refusals"
"""In a request's meta: how often the site has refused it."""


@dataclass(frozen=True, slots=True)
class RequestRefused(Event):
    """A site refused a request, by the status of its response."""

    counter = "refused"


class ResponseClassifier:
    """Tells refusals from ordinary responses. `backoff_codes` are the statuses of refusals; a
    refused request is made again at most `backoff_times` times.
    """

    def __init__(self, backoff_codes: frozenset[int], backoff_times: int) -> None:
        self._backoff_codes = backoff_codes
        self._backoff_times = backoff_times
        self._refused: WeakSet[Request] = WeakSet()
        self._given_up: WeakSet[Request] = WeakSet()

    def record_response(self, permit: Permit, request: Request, response: Response) -> None:
        """Note on the permit how the site responded."""
        if response.status in self._backoff_codes:
            permit.refused(retry_after(response))
            self._refused.add(request)
        elif response.status < 500:  # the time that an error took says nothing of the site's pace
            latency = request.meta.get("download_latency")
            if latency is None:  # a handler that does not measure it
                latency = asyncio.get_running_loop().time() - permit.granted_at
            permit.answered(latency)

    def record_failure(self, permit: Permit, error: Exception) -> None:
        """Note on the permit that the site did not respond."""
        if isinstance(error, NO_RESPONSE):
            permit.failed()

    def was_refused(self, request: Request) -> bool:
        """True if the site itself refused it. A refusal that comes from a cache does not count."""
        return request in self._refused

    def retry_request(self, request: Request) -> Request | None:
        """A copy of a refused request, to be made later; None if it was refused too often.

        Scrapy's retry middleware does not see these retries, so they do not use up its own: the
        request is not at fault, we asked too much of the site. A request that was refused too often
        goes to the spider with its last response.
        """
        refusals = request.meta.get(REFUSALS_KEY, 0) + 1
        if request.meta.get("dont_retry"):
            return None
        if refusals > self._backoff_times:
            logger.warning("Gave up %s: the site refused it %d times.", request, refusals)
            request.meta["dont_retry"] = True  # for Scrapy's retry middleware, until `forget`
            self._given_up.add(request)
            return None
        retry = request.replace(dont_filter=True)
        retry.meta[REFUSALS_KEY] = refusals
        return retry

    def forget(self, request: Request) -> None:
        """Clean up the meta of a request that was given up, when all middlewares have seen its
        response: a request that the spider makes from it starts afresh.
        """
        if request in self._given_up:
            self._given_up.remove(request)
            for key in ("dont_retry", REFUSALS_KEY):
                request.meta.pop(key, None)


def retry_after(response: Response) -> float:
    """Seconds that a response asks for with `Retry-After`; 0 if it has none, or none that can be
    read. A date is compared with the response's `Date` if there is one, else with our clock.
    """
    value = (response.headers.get(b"Retry-After") or b"").decode("latin-1").strip()
    if value.isascii() and value.isdigit():
        return float(value) if len(value) < 16 else math.inf
    date = _timestamp(value)
    if date is None:
        return 0.0
    now = _timestamp((response.headers.get(b"Date") or b"").decode("latin-1"))
    return max(0.0, date - (time.time() if now is None else now))


def _timestamp(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
