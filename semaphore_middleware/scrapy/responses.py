"""From a response to feedback on its permit, and to a retry if the site refused the request.

A refusal is a response with one of the statuses in `SEMAPHORE_BACKOFF_CODES`, or one that the
user's `SEMAPHORE_BACKOFF_WHEN` takes for one. It speaks for the site if it is a 429 or says for how
long; else only until the site answers other requests well, and refuses this one again.
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
from scrapy.utils.response import response_status_message
from twisted.internet.error import ConnectBindError, ConnectError

from semaphore_middleware.core.observer import Event
from semaphore_middleware.core.permit import Permit
from semaphore_middleware.model.validation import LONGEST_S
from semaphore_middleware.scrapy.asked_pauses import quota_reset, retry_after

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
"""Errors that say that the site is overloaded or down."""
NO_ROUTE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN}
TOO_MANY_REQUESTS = 429

REFUSALS_KEY = "semaphore_refusals"
"""In a request's meta: how often the site has refused it."""
REFUSED_AT_KEY = "semaphore_refused_at"
"""In a request's meta: when the site first refused it, as Unix time."""
GIVEN_UP = "refused too often"
"""The add-on's `dont_retry` in a request's meta: no value that a user sets."""


@dataclass(frozen=True, slots=True)
class RequestRefused(Event):
    """A site refused a request, by the status of its response or the user's judge."""

    counter = "refused"


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


class ResponseClassifier:
    """Tells refusals from ordinary responses. `backoff_codes` are the statuses of refusals; a
    refused request is made again at most `backoff_times` times.
    """

    def __init__(
        self, backoff_codes: frozenset[int], backoff_times: int, judge: Judge | None = None
    ) -> None:
        self._backoff_codes = backoff_codes
        self._backoff_times = backoff_times
        self._judge = judge

    def record_response(self, permit: Permit, admission: Admission, response: Response) -> bool:
        """Note on the permit how the site responded. Returns whether it refused the request."""
        request = admission.request
        reset, asked = quota_reset(response), retry_after(response)
        pause = reset if asked is None else asked
        judged = self._judge.refusal(request, response) if self._judge else None
        is_refused = response.status in self._backoff_codes
        is_of_site = response.status == TOO_MANY_REQUESTS or pause is not None
        if judged is not None or (
            is_refused and (is_of_site or not _answers_others(permit, request))
        ):
            permit.refused(judged or pause or 0.0)
            admission.is_refused = True
            return True
        admission.is_own_trouble = is_refused
        latency = None if is_refused or response.status >= 500 else _latency(permit, request)
        permit.answered(latency, 0.0 if reset is None else pause or 0.0)
        return is_refused

    def record_failure(self, permit: Permit, request: Request, error: Exception) -> None:
        """Note on the permit that the site did not respond. Behind a proxy nobody knows which of
        the two it was.
        """
        is_silent = isinstance(error, NO_RESPONSE) and not isinstance(error, ConnectBindError)
        has_no_route = isinstance(error, OSError) and error.errno in NO_ROUTE
        if (is_silent or has_no_route) and not request.meta.get("proxy"):
            permit.failed()

    def retry(self, admission: Admission, response: Response, spider: Spider) -> Request | None:
        """A copy of a refused request, to be made later; None if its site has not refused it, or
        refused it too often. A refusal that comes from a cache does not count.

        It is logged and counted as one of Scrapy's retries, but does not use up `RETRY_TIMES`: the
        request is not at fault, we asked too much of the site. A request that was refused too often
        goes to the spider with its last response.
        """
        request = admission.request
        if admission.is_own_trouble:
            logger.debug(
                "%s was refused again (%s), though its site has answered others well: it is left "
                "to Scrapy's retry middleware.",
                request,
                response_status_message(response.status),
            )
            return None
        if not admission.is_refused:
            _forget_refusals(request)
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
            max_retry_times=self._backoff_times,
            priority_adjust=request.meta.get("priority_adjust"),
            logger=logger,
            give_up_log_level=request.meta.get("give_up_log_level"),
        )
        if retry is None:
            request.meta["dont_retry"] = GIVEN_UP  # for Scrapy's retry middleware, until `forget`
            return None
        # The HTTP cache keeps here what it asks for anew, until it sees the response: not this one.
        # A shared crawl could not store that with the request.
        retry.meta.pop("cached_response", None)
        retry.meta[REFUSALS_KEY] = retry.meta.pop("retry_times")
        retry.meta.setdefault(REFUSED_AT_KEY, time.time())
        if "retry_times" in request.meta:
            retry.meta["retry_times"] = request.meta["retry_times"]
        return retry

    def forget(self, request: Request) -> None:
        """Clean up the meta of a request that was refused, when all middlewares have seen its
        response: a request that the spider makes from it starts afresh.
        """
        _forget_refusals(request)
        if request.meta.get("dont_retry") == GIVEN_UP:
            request.meta.pop("dont_retry", None)

    def forget_given_up(self, result: object) -> None:
        """Clean up the meta of a `fetch`'s result, if that is a request which a middleware has made
        from one that was given up: it starts afresh, too.
        """
        if isinstance(result, Request) and result.meta.get("dont_retry") == GIVEN_UP:
            self.forget(result)


def _answers_others(permit: Permit, request: Request) -> bool:
    """Whether a request that began after this one was first refused has been answered well."""
    refused_at = request.meta.get(REFUSED_AT_KEY)
    if not isinstance(refused_at, float):
        return False  # for the first time
    age = max(0.0, time.time() - refused_at)
    return permit.site_answered_at > asyncio.get_running_loop().time() - age


def _latency(permit: Permit, request: Request) -> float:
    latency = request.meta.get("download_latency")
    if latency is None:  # a handler that does not measure it
        return asyncio.get_running_loop().time() - permit.granted_at
    return float(latency)


def _forget_refusals(request: Request) -> None:
    for key in (REFUSALS_KEY, REFUSED_AT_KEY):
        request.meta.pop(key, None)
