"""From a response to feedback on its permit.

A refusal is a response with a status in `SEMAPHORE_BACKOFF_CODES`, a verdict of the user's
`SEMAPHORE_BACKOFF_WHEN`, or a connection closed by a site that refuses this way. It concerns the
whole site; where the site is known to refuse some pages, however many requests there are, a page's
second refusal concerns the page alone. Only 5xx, except 509, teach no interval. Through a proxy,
where proxies are scopes, it concerns the site through this proxy; all of the site if it names a
time, or if another proxy is refused, too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, cast

from scrapy import Request
from scrapy.downloadermiddlewares.httpcompression import HttpCompressionMiddleware
from scrapy.exceptions import NotConfigured
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.response import response_status_message

from semaphore_middleware.core.observer import FAILURES
from semaphore_middleware.core.permit import Permit, PermitSet
from semaphore_middleware.model.asked_pauses import (
    FIELDS,
    Fields,
    IgnoredPauses,
    pause_asked,
    quota_interval,
)
from semaphore_middleware.model.events import CountedEvent
from semaphore_middleware.model.feedback import MAX_STATUS, teaches_interval
from semaphore_middleware.model.hosts import VIA
from semaphore_middleware.model.validation import LONGEST_S, shown
from semaphore_middleware.scrapy.download_errors import PROXY_REFUSES, may_be_idle
from semaphore_middleware.scrapy.forbidden import ForbiddenShares
from semaphore_middleware.scrapy.retries import (
    REFUSED_AT_KEY,
    Retries,
    note_refusal,
    refusals_of,
)
from semaphore_middleware.scrapy.scopes import host_of

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from semaphore_middleware.scrapy.admission import Admission
    from semaphore_middleware.scrapy.refused_proxies import RefusedProxies

logger = logging.getLogger(__name__)

TOO_MANY_REQUESTS = 429


@dataclass(frozen=True, slots=True)
class RequestRefused(CountedEvent):
    """A site refused a request, by the status of its response, the user's function, or by closing
    the connection.
    """

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
        except FAILURES as error:
            logger.error("SEMAPHORE_BACKOFF_WHEN raised %s for %s.", shown(error), response)
            return None
        if verdict is None or isinstance(verdict, bool):
            return 0.0 if verdict else None
        if isinstance(verdict, int | float) and verdict >= 0:
            return float(min(verdict, LONGEST_S)) or None
        is_number = isinstance(verdict, int | float)
        what = shown(verdict) if is_number else type(verdict).__name__
        logger.error(
            "SEMAPHORE_BACKOFF_WHEN returned %s for %s: allowed is True, False or a number of "
            "seconds >= 0.",
            what,
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

    `backoff_codes` are the statuses of refusals.
    """

    def __init__(
        self,
        backoff_codes: frozenset[int],
        refusal_check: RefusalCheck | None,
        retries: Retries,
        proxies: RefusedProxies,
    ) -> None:
        self._backoff_codes = backoff_codes
        self._retries = retries
        self._proxies = proxies
        self._refusal_check = refusal_check
        self._forbidden = ForbiddenShares(backoff_codes)
        self._ignored_pauses = IgnoredPauses()

    async def record_response(
        self, permits: PermitSet, admission: Admission, response: Response
    ) -> bool:
        """Note on the permits how the site, or its proxy, responded. True if it refused the
        request.
        """
        request, status, site = admission.request, response.status, permits.site_permit
        is_refused = status in self._backoff_codes
        if status == PROXY_REFUSES and request.meta.get("proxy"):
            if record_proxy_refusal(permits, request):
                if is_refused:
                    self._decide(admission, status)
                return True
            if not is_refused:
                return False
        if site is None:
            return False
        check = self._refusal_check
        found = check.refusal(request, response) if check is not None else None
        is_refused |= found is not None
        asked = self._pause_asked(request, response, is_refused)
        pause = found or asked or 0.0
        if not is_refused:
            self._record_answer(site, request, status, pause)
            return False
        via = permits.of_kind(VIA)
        if site.refuses_pages and not pause and _answers_others(via or site, request):
            site.answered(None)
            self._decide(admission, status)
            logger.debug(
                "%s was refused again (%s), though its site answers other requests: no other "
                "request waits for it.",
                request,
                response_status_message(status),
            )
            return True
        if via and not pause and not await self._proxies.add(site, via):
            site.answered(None)  # it is there, and no more is known
            self._record_refusal(via, admission, response, 0.0, is_metered=False)
        else:
            is_metered = found is not None or asked is not None or teaches_interval(status)
            self._record_refusal(site, admission, response, pause, is_metered)
        return True

    def _record_answer(self, site: Permit, request: Request, status: int, pause: float) -> None:
        is_page = not _is_robotstxt(request)
        is_good = status < 500 and is_page
        if is_page:
            self._forbidden.note(host_of(request), status)
        if is_good:
            self._proxies.note_answer(site)
        site.answered(_latency(site, request) if is_good else None, pause)

    def _pause_asked(self, request: Request, response: Response, is_refused: bool) -> float | None:
        """Seconds that the site asked for; None if it did not."""
        if FIELDS.isdisjoint(response.headers):
            return None
        ignored: list[str] = []
        pause = pause_asked(_fields_of(response), is_refused, ignored)
        self._ignored_pauses.warn(host_of(request), ignored)
        return pause

    def _record_refusal(
        self,
        permit: Permit,
        admission: Admission,
        response: Response,
        pause: float,
        is_metered: bool,
    ) -> None:
        """Note a refusal, which teaches an interval if it `is_metered`: it is not one that may be
        about a broken page, or a proxy.
        """
        request, status = admission.request, response.status
        ignored: list[str] = []
        interval = quota_interval(_fields_of(response), ignored) if is_metered else 0.0
        self._ignored_pauses.warn(host_of(request), ignored)
        most = None
        try:
            most = self._decide(admission, status, permit.no_retry)
        finally:  # bad values of the project's must not hide the refusal
            cause = _refusal_text(request, status, most)
            known = status if 0 <= status <= MAX_STATUS else 0  # a site may answer any number
            permit.refused(pause, cause, known, is_metered, interval)

    def record_closing(self, site: Permit, admission: Admission) -> bool:
        """Note on the site's permit that it has closed the connection before any response. True if
        the request is retried like a refused one.
        """
        request = admission.request
        if site.refuses_pages and _answers_others(site, request):
            return False  # it closes this page's connections however many there are
        page = f"{request.method} {request.url}"
        what = f"closed the connection of {_request_text(request)} without a response"
        is_repeated = site.closed(page, what, may_be_idle(request))
        if is_repeated:
            self._decide(admission, None, site.no_retry)
        return is_repeated

    def _decide(self, admission: Admission, status: int | None, no_retry: str = "") -> int | None:
        """Note who retries a refused request. Returns how many refusals the add-on retries."""
        most = self._retries.decide(admission.request, status, no_retry)
        admission.retries_most = most
        if most is None:
            admission.is_left_to_others = True
            note_refusal(admission.request)
        return most


def _fields_of(response: Response) -> Fields:
    headers = response.headers
    return lambda name: [value.decode("latin-1") for value in headers.getlist(name)]


def record_proxy_refusal(permits: PermitSet, request: Request) -> bool:
    """Note that a proxy did not let a request through, which says nothing of the site. False if the
    request has no permit for it.
    """
    permit = permits.of_kind("proxy") or permits.of_kind(VIA)
    if permit is not None:
        text = _refusal_text(request, PROXY_REFUSES, None)
        permit.refused(0.0, text, PROXY_REFUSES, is_metered=False)
    return permit is not None


def _answers_others(permit: Permit, request: Request) -> bool:
    """True if a request begun after this one's first refusal has been answered well."""
    refused_at = request.meta.get(REFUSED_AT_KEY)
    if not isinstance(refused_at, float):
        return False  # it is the first refusal
    age = max(0.0, time.time() - refused_at)
    return permit.site_answered_at > asyncio.get_running_loop().time() - age


def _refusal_text(request: Request, status: int, retries_most: int | None) -> str:
    """A refusal in the words of the log: `answered 503 to GET /page (try 1 of 3)`. Only tries by
    the add-on are counted.
    """
    text = f"answered {status} to {_request_text(request)}"
    if retries_most is None:
        return text
    refusals = refusals_of(request)
    return f"{text} (try {refusals + 1} of {max(retries_most, refusals) + 1})"


def _is_robotstxt(request: Request) -> bool:
    """True if the answer says nothing about pages: sites answer it that refuse all of these."""
    return bool(urlparse_cached(request).path == "/robots.txt")


def _request_text(request: Request) -> str:
    url = urlparse_cached(request)
    return f"{request.method} {url.path or '/'}{f'?{url.query}' if url.query else ''}"


def _latency(permit: Permit, request: Request) -> float:
    latency = request.meta.get("download_latency")
    if isinstance(latency, int | float) and 0 <= latency <= LONGEST_S:
        return float(latency)
    # The handler does not measure it, or somebody has changed it.
    return asyncio.get_running_loop().time() - permit.granted_at
