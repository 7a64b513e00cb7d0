"""Who retries a refused request: the add-on, unless the project handles the status itself.

A project does so by a setting that passes the status to its callbacks, such as
`handle_httpstatus_list`, or by leaving it out of `RETRY_HTTP_CODES`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Container
from typing import TYPE_CHECKING

from scrapy.downloadermiddlewares.retry import get_retry_request
from scrapy.http.request import NO_CALLBACK
from scrapy.settings import default_settings

from semaphore_middleware.scrapy.admission import SHARED_KEY
from semaphore_middleware.scrapy.engine import belongs_to_a_command
from semaphore_middleware.scrapy.versions import give_up_log_level

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

    from semaphore_middleware.scrapy.admission import Admission

logger = logging.getLogger(__name__)

REFUSALS_KEY = "semaphore_refusals"
"""In a request's meta: how often the site has refused it."""
REFUSED_AT_KEY = "semaphore_refused_at"
"""In a request's meta: when the site first refused it, as Unix time."""
GIVEN_UP = "refused too often"
"""The add-on's value of `dont_retry` in a request's meta, different from any user's value."""
SCRAPYS_CODES = frozenset(default_settings.RETRY_HTTP_CODES)


class Retries:
    """Decides who retries a refused request, and makes the add-on's copies: at most `times`."""

    def __init__(self, crawler: Crawler, times: int) -> None:
        self._crawler = crawler
        self._times = times
        self._is_explained = False
        self._warned_of: set[int] = set()

    @property
    def are_enabled(self) -> bool:
        """Whether the project wants retries. Another add-on may change it later."""
        return self._crawler.settings.getbool("RETRY_ENABLED")

    def decide(self, request: Request, status: int | None, no_retry: str = "") -> int | None:
        """How many refusals of a request the add-on retries; None: the response goes on to the
        project. Logs the first decision. `status` is that of the refusal; None: its connection was
        closed. `no_retry`: the reason not to retry it, as its site has refused others.
        """
        most, text = self._decide(request, status, no_retry)
        if not self._is_explained:
            self._is_explained = True
            how = "a closed connection" if status is None else status
            logger.info("This crawl's first refusal: %s for %s. %s", how, request, text)
        return most

    def _decide(
        self, request: Request, status: int | None, no_retry: str
    ) -> tuple[int | None, str]:
        """The decision, and its text for the log, with the setting that changes it."""
        settings = self._crawler.settings
        if no_retry:
            return 0, f"It is not retried: {no_retry}."
        if not self.are_enabled:
            return 0, "It is not retried: RETRY_ENABLED is off."
        if request.meta.get("dont_retry"):
            return 0, "It is not retried: its meta has dont_retry."
        if belongs_to_a_command(self._crawler):
            return 0, "It is not retried: this Scrapy command retries no refusals."
        if status is not None and SHARED_KEY not in request.meta:  # a robots.txt has no callback
            scrapys = {int(code) for code in settings.getlist("RETRY_HTTP_CODES")}
            if handled_by := self._handled_by(request, status):
                if status in scrapys:  # against Scrapy's retries, until `fetch` ends
                    request.meta["dont_retry"] = GIVEN_UP
                return None, f"As {handled_by} has {status}, your callback gets it at once."
            if status in SCRAPYS_CODES - scrapys:
                if status not in self._warned_of:
                    self._warned_of.add(status)
                    logger.warning(
                        "%d is not in your RETRY_HTTP_CODES: these pages are not retried. Add it "
                        "there, or to handle_httpstatus_list if you handle these pages yourself.",
                        status,
                    )
                return None, (
                    "The add-on does not retry it; your own middlewares and callback get it: "
                    f"{status} is not in RETRY_HTTP_CODES."
                )
        if not self._times:
            return 0, "It is not retried: SEMAPHORE_BACKOFF_TIMES is 0."
        text = f"The add-on retries it, at most {self._times} times (SEMAPHORE_BACKOFF_TIMES)."
        if status is not None:
            text += (
                f" To handle {status} yourself, name it in handle_httpstatus_list, or leave it out "
                "of RETRY_HTTP_CODES."
            )
        return self._times, text

    def _handled_by(self, request: Request, status: int) -> str | None:
        """Where the project asks for responses with this status, in Scrapy's order of precedence;
        None: nowhere. A callback gets a 2xx in any case.

        A request without a callback belongs to a pipeline: Scrapy's media pipelines set
        `handle_httpstatus_all`, but do not handle refusals.
        """
        if 200 <= status < 300 or request.callback is NO_CALLBACK:
            return None
        spider = self._crawler.spider
        settings = self._crawler.settings
        name = "handle_httpstatus_list"
        if request.meta.get("handle_httpstatus_all"):
            return "meta['handle_httpstatus_all']"
        if name in request.meta:
            return f"meta['{name}']" if _has(request.meta[name], status) else None
        if settings.getbool("HTTPERROR_ALLOW_ALL"):
            return "HTTPERROR_ALLOW_ALL"
        if getattr(spider, "handle_httpstatus_all", False):
            return "the spider's handle_httpstatus_all"
        if (codes := getattr(spider, name, None)) is not None:
            return f"the spider's {name}" if _has(codes, status) else None
        allowed = settings.getlist("HTTPERROR_ALLOWED_CODES")
        return "HTTPERROR_ALLOWED_CODES" if status in allowed else None

    def make(self, admission: Admission, reason: str | Exception) -> Request | None:
        """A copy of a refused request, for a later retry; None if its site has not refused it, or
        too often, or if the project decides. A refusal from a cache does not count. `reason` is the
        response's status, or the error of a closed connection.

        The copy is logged and counted as one of Scrapy's retries, but does not use up
        `RETRY_TIMES`: our crawls were too fast, the request is not at fault. After too many
        refusals, the spider gets the request's last response or error.
        """
        request, spider = admission.request, self._crawler.spider
        if spider is None or not self.are_enabled or admission.is_left_to_others:
            return None
        if admission.retries_most is None:
            forget_refusals(request)
            return None
        if request.meta.get("dont_retry"):
            return None
        counted = request.replace(meta={**request.meta, "retry_times": refusals_of(request)})
        retry = get_retry_request(
            counted,
            spider=spider,
            reason=reason,
            max_retry_times=admission.retries_most,
            priority_adjust=request.meta.get("priority_adjust"),
            logger=logger,
            **give_up_log_level(request),
        )
        if retry is None:
            # Against Scrapy's retry middleware, until `fetch` ends.
            request.meta["dont_retry"] = GIVEN_UP
            return None
        # The HTTP cache keeps a stale response in this key until it gets a new one, and it does not
        # get this refusal. A shared crawl could not store the stale response with the request.
        retry.meta.pop("cached_response", None)
        retry.meta[REFUSALS_KEY] = retry.meta.pop("retry_times")
        note_refusal(retry)
        if "retry_times" in request.meta:
            retry.meta["retry_times"] = request.meta["retry_times"]
        return retry


def _has(codes: object, status: int) -> bool:
    return isinstance(codes, Container) and status in codes


def refusals_of(request: Request) -> int:
    """How often the site has refused a request; 0 if the value in its meta is not ours."""
    refusals = request.meta.get(REFUSALS_KEY, 0)
    return refusals if type(refusals) is int and 0 <= refusals < 1000 else 0


def note_refusal(request: Request) -> None:
    """Keep the time of a request's first refusal in its meta, for its copies."""
    request.meta.setdefault(REFUSED_AT_KEY, time.time())


def forget_refusals(request: Request) -> None:
    """Remove the traces of refusals from a request's meta: a copy starts afresh."""
    meta = request.meta
    meta.pop(REFUSALS_KEY, None)
    meta.pop(REFUSED_AT_KEY, None)
    if meta.get("dont_retry") == GIVEN_UP:
        del meta["dont_retry"]
