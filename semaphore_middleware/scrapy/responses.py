"""What a site's answers say of how much it can take, and what becomes of requests it refused."""

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

NO_ANSWER = (
    DownloadTimeoutError,
    DownloadConnectionRefusedError,
    TimeoutError,
    ConnectionRefusedError,
)
REFUSALS = "semaphore_refusals"  # in a request's meta: how often the site said "not now" to it


@dataclass(frozen=True, slots=True)
class RequestRefused(Event):
    """A site answered a request that it has too much to do."""

    counter = "refused"


class Answers:
    """`codes` are the statuses that mean "not now"; a request they meet is made again `times`."""

    def __init__(self, codes: frozenset[int], times: int) -> None:
        self._codes = codes
        self._times = times
        self._refused: WeakSet[Request] = WeakSet()
        self._given_up: WeakSet[Request] = WeakSet()

    def hear(self, permit: Permit, request: Request, response: Response) -> None:
        """Note on the permit what the site answered."""
        if response.status in self._codes:
            permit.refused(retry_after(response))
            self._refused.add(request)
        elif response.status < 500:  # how soon an error comes says nothing of the site's pace
            latency = request.meta.get("download_latency")
            if latency is None:  # a handler that does not measure it
                latency = asyncio.get_running_loop().time() - permit.granted_at
            permit.answered(latency)

    def hear_failure(self, permit: Permit, error: Exception) -> None:
        if isinstance(error, NO_ANSWER):
            permit.failed()

    def refused(self, request: Request) -> bool:
        """Whether the site itself said "not now" to it; an answer from a cache says nothing."""
        return request in self._refused

    def again(self, request: Request) -> Request | None:
        """The request to make in place of one that was told "not now", if it may be made again.

        Scrapy's retry middleware hears nothing of it: that the site had too much was our doing.
        What was refused too often goes to the spider as it came.
        """
        refusals = request.meta.get(REFUSALS, 0) + 1
        if request.meta.get("dont_retry"):
            return None
        if refusals > self._times:
            logger.warning(
                "%s was told 'not now' %d times; here is what it was told.", request, refusals
            )
            request.meta["dont_retry"] = True  # for Scrapy's retry middleware, until `received`
            self._given_up.add(request)
            return None
        again = request.replace(dont_filter=True)
        again.meta[REFUSALS] = refusals
        return again

    def received(self, request: Request) -> None:
        """All middlewares have seen its answer. What the spider makes of a request that was given
        up, or of its meta, is not to be given up at once.
        """
        if request in self._given_up:
            self._given_up.remove(request)
            for mark in ("dont_retry", REFUSALS):
                request.meta.pop(mark, None)


def retry_after(response: Response) -> float:
    """Seconds that a response asks for with `Retry-After`; 0 if it does not, or not sensibly.

    A date is taken by the site's own clock (its `Date` header), where it tells that.
    """
    value = (response.headers.get(b"Retry-After") or b"").decode("latin-1").strip()
    if value.isascii() and value.isdigit():
        return float(value) if len(value) < 16 else math.inf
    date = _seconds(value)
    if date is None:
        return 0.0
    now = _seconds((response.headers.get(b"Date") or b"").decode("latin-1"))
    return max(0.0, date - (time.time() if now is None else now))


def _seconds(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
