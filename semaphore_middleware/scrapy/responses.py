"""From a response to feedback on its permit, and to a retry if the site refused the request.

A refusal is a response with a status in `SEMAPHORE_BACKOFF_CODES`, or a verdict of the user's
`SEMAPHORE_BACKOFF_WHEN`. It concerns the whole site if it is such a verdict, a 429, or asks for a
pause. Any other does so only until the site answers other requests well and refuses this one again.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, cast

from scrapy import Request
from scrapy.downloadermiddlewares.httpcompression import HttpCompressionMiddleware
from scrapy.downloadermiddlewares.retry import get_retry_request
from scrapy.exceptions import (
    CannotResolveHostError,
    DownloadConnectionRefusedError,
    DownloadTimeoutError,
    NotConfigured,
)
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.response import response_status_message
from twisted.internet.error import ConnectBindError, ConnectError

from semaphore_middleware.core.observer import CountedEvent
from semaphore_middleware.core.permit import Permit
from semaphore_middleware.model.validation import LONGEST_S
from semaphore_middleware.scrapy.asked_pauses import FIELDS, quota_gap, quota_reset, retry_after
from semaphore_middleware.scrapy.engine import belongs_to_a_command

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from semaphore_middleware.scrapy.admission import Admission

logger = logging.getLogger(__name__)

NO_RESPONSE = (
    DownloadTimeoutError,
    DownloadConnectionRefusedError,
    CannotResolveHostError,
    ConnectError,
    TimeoutError,
    ConnectionRefusedError,
    socket.gaierror,
)
"""Errors of an overloaded or unreachable site."""
NO_ROUTE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN}
TOO_MANY_REQUESTS = 429

REFUSALS_KEY = "semaphore_refusals"
"""In a request's meta: how often the site has refused it."""
REFUSED_AT_KEY = "semaphore_refused_at"
"""In a request's meta: when the site first refused it, as Unix time."""
GIVEN_UP = "refused too often"
"""The add-on's value of `dont_retry` in a request's meta, different from any user's value."""


@dataclass(frozen=True, slots=True)
class RequestRefused(CountedEvent):
    """A site refused a request, by the status of its response or the user's function."""

    counter = "refused"


class RefusalCheck:
    """The user's `SEMAPHORE_BACKOFF_WHEN`: it finds refusals in disguise, such as a CAPTCHA."""

    def __init__(self, function: Callable[[Response], object], crawler: Crawler) -> None:
        self._function = function
        self._crawler = crawler

    def refusal(self, request: Request, response: Response) -> float | None:
        """Seconds of pause in the function's verdict; 0: a refusal without a time; None: no
        refusal. An exception in the function, or a nonsensical verdict, is logged and counts as
        None.
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
        middleware.stats = None  # Scrapy's own middleware counts the response
        return middleware


class ResponseClassifier:
    """Distinguishes refusals from ordinary responses.

    `backoff_codes` are the statuses of refusals. A refused request is made again at most
    `backoff_times` times.
    """

    def __init__(
        self,
        crawler: Crawler,
        backoff_codes: frozenset[int],
        backoff_times: int,
        refusal_check: RefusalCheck | None,
    ) -> None:
        self._crawler = crawler
        self._backoff_codes = backoff_codes
        self._backoff_times = backoff_times
        self._refusal_check = refusal_check

    def record_response(self, permit: Permit, admission: Admission, response: Response) -> bool:
        """Note on the permit how the site responded. True if it refused the request."""
        request = admission.request
        reset = None
        asked = None
        if not FIELDS.isdisjoint(response.headers):
            reset = quota_reset(response)
            asked = retry_after(response)
        pause = reset if asked is None else asked
        check = self._refusal_check
        found = check.refusal(request, response) if check is not None else None
        is_refused = response.status in self._backoff_codes
        is_of_site = found is not None or response.status == TOO_MANY_REQUESTS or pause is not None
        if found is not None or (
            is_refused and (is_of_site or not _answers_others(permit, request))
        ):
            retries = self._retries_most(admission, is_of_site)
            if permit.site_is_walled:
                retries = 0
            admission.retries_most = retries
            refusals = request.meta.get(REFUSALS_KEY, 0)
            cause = _refusal_text(request, response, refusals + 1, max(retries, refusals) + 1)
            gap = quota_gap(response) if is_of_site else 0.0
            permit.refused(found or pause or 0.0, cause, response.status, is_of_site, gap)
            return True
        admission.is_own_trouble = is_refused
        is_good = not is_refused and response.status < 500 and not _is_robotstxt(request)
        latency = _latency(permit, request) if is_good else None
        permit.answered(latency, 0.0 if reset is None else pause or 0.0)
        return is_refused

    def _retries_most(self, admission: Admission, is_of_site: bool) -> int:
        """The number of refusals of a request until the spider gets the response.

        None are retried in `scrapy fetch`, `shell` and `parse`, where a person waits. If the site
        is asked for nothing else, only this page may be in trouble, so `RETRY_TIMES` counts, too.
        """
        settings = self._crawler.settings
        meta = admission.request.meta
        if not settings.getbool("RETRY_ENABLED") or meta.get("dont_retry"):
            return 0
        if belongs_to_a_command(self._crawler):
            return 0
        if is_of_site or not admission.is_alone:
            return self._backoff_times
        retry_times = meta.get("max_retry_times")
        if retry_times is None:
            retry_times = settings.getint("RETRY_TIMES")
        return min(self._backoff_times, int(retry_times))

    def retry(self, admission: Admission, response: Response, spider: Spider) -> Request | None:
        """A copy of a refused request, to be made later; None if its site has not refused it, or
        refused it too often. A refusal from a cache does not count.

        The copy is logged and counted as one of Scrapy's retries, but does not use up
        `RETRY_TIMES`: the request is not at fault, we asked too much of the site. After too many
        refusals, the spider gets the request's last response.
        """
        request = admission.request
        if admission.is_own_trouble:
            logger.debug(
                "%s was refused again (%s), though its site answers other requests: Scrapy's retry "
                "middleware decides about it.",
                request,
                response_status_message(response.status),
            )
            return None
        if admission.retries_most is None:
            forget_refusals(request)
            return None
        if request.meta.get("dont_retry"):
            return None
        counted = request.replace(
            meta={**request.meta, "retry_times": request.meta.get(REFUSALS_KEY, 0)}
        )
        retry = get_retry_request(
            counted,
            spider=spider,
            reason=response_status_message(response.status),
            max_retry_times=admission.retries_most,
            priority_adjust=request.meta.get("priority_adjust"),
            logger=logger,
            give_up_log_level=request.meta.get("give_up_log_level"),
        )
        if retry is None:
            # For Scrapy's retry middleware, until `fetch` ends.
            request.meta["dont_retry"] = GIVEN_UP
            return None
        # The HTTP cache keeps a stale response here until it sees the new one, and it does not see
        # this refusal. A shared crawl could not store the stale response with the request.
        retry.meta.pop("cached_response", None)
        retry.meta[REFUSALS_KEY] = retry.meta.pop("retry_times")
        retry.meta.setdefault(REFUSED_AT_KEY, time.time())
        if "retry_times" in request.meta:
            retry.meta["retry_times"] = request.meta["retry_times"]
        return retry


def is_without_response(error: BaseException) -> bool:
    """True if this error means that the site did not respond."""
    if isinstance(error, ConnectBindError):
        return False
    return isinstance(error, NO_RESPONSE) or error_number(error) in NO_ROUTE


def error_number(error: BaseException | None) -> int | None:
    """The system's number of the error that this one comes from, if there is one."""
    while error is not None:
        number = getattr(error, "osError", None) or getattr(error, "errno", None)
        if isinstance(number, int):
            return number
        error = error.__cause__ or error.__context__
    return None


def _answers_others(permit: Permit, request: Request) -> bool:
    """True if a request begun after this one's first refusal has been answered well."""
    refused_at = request.meta.get(REFUSED_AT_KEY)
    if not isinstance(refused_at, float):
        return False  # it is the first refusal
    age = max(0.0, time.time() - refused_at)
    return permit.site_answered_at > asyncio.get_running_loop().time() - age


def _refusal_text(request: Request, response: Response, tries: int, most: int) -> str:
    """A refusal in the words of the log: `answered 503 to GET /page (try 1 of 3)`."""
    url = urlparse_cached(request)
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    return f"answered {response.status} to {request.method} {path} (try {tries} of {most})"


def _is_robotstxt(request: Request) -> bool:
    """True if the answer says nothing about pages: sites answer it that refuse all of these."""
    return bool(urlparse_cached(request).path == "/robots.txt")


def _latency(permit: Permit, request: Request) -> float:
    latency = request.meta.get("download_latency")
    if latency is None:  # a handler that does not measure it
        return asyncio.get_running_loop().time() - permit.granted_at
    return float(latency)


def forget_refusals(request: Request) -> None:
    """Remove the traces of refusals from a request's meta: a copy starts afresh."""
    meta = request.meta
    meta.pop(REFUSALS_KEY, None)
    meta.pop(REFUSED_AT_KEY, None)
    if meta.get("dont_retry") == GIVEN_UP:
        del meta["dont_retry"]
