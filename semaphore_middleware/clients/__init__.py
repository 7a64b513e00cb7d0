"""Permits for HTTP clients: transports for httpx in `httpx.py`, an adapter for requests in
`requests.py`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from semaphore_middleware.errors import SettingsError
from semaphore_middleware.model.asked_pauses import (
    Fields,
    IgnoredPauses,
    pause_asked,
    quota_interval,
)
from semaphore_middleware.model.feedback import teaches_interval
from semaphore_middleware.model.hosts import normal_host
from semaphore_middleware.model.settings import check_statuses
from semaphore_middleware.model.validation import not_allowed

if TYPE_CHECKING:
    from semaphore_middleware.core.permit import Permit

BACKOFF_CODES = (429, 503)
PAGES_MAX = 1000
"""The number of pages remembered, those refused last."""


def scope_of(url: str) -> str:
    """The scope of a request: its host, spelt as in crawls. Raises `SettingsError`."""
    host = urlsplit(url).hostname
    if not host:
        raise SettingsError(f"the URL {url!r} has no host; allowed is one like https://example.com")
    return normal_host(host)


def check_semaphore(given: object, kind: type) -> None:
    """Raise `SettingsError` if it is not of the kind that this client needs."""
    if not isinstance(given, kind):
        raise not_allowed(given, "semaphore", f"a {kind.__name__}")


class Answers:
    """Reports to each permit how its site has answered, as crawls do.

    `backoff_codes` are the statuses of refusals; without any, nothing is reported. Raises
    `SettingsError` for anything that is no status.
    """

    def __init__(self, backoff_codes: Iterable[int]) -> None:
        self._codes = check_statuses(backoff_codes, "backoff_codes")
        self._ignored_pauses = IgnoredPauses()
        self._refused_at: OrderedDict[tuple[str, str], float] = OrderedDict()
        """By method and URL, when the page was first refused since its last good answer, on the
        loop's clock.
        """

    def report(
        self, permit: Permit, method: str, url: str, status: int, fields: Fields, latency: float
    ) -> None:
        """Report a response, whose headers came after `latency` seconds. A 5xx except 509 counts as
        a refusal only if it names a time: otherwise it may be of its page alone. The same holds for
        a page's second refusal, where the site is known to refuse some pages.
        """
        is_listed = status in self._codes
        is_of_proxy = status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED and not is_listed
        if not self._codes or is_of_proxy:
            return
        ignored: list[str] = []
        path = urlsplit(url).path or "/"
        pause = pause_asked(fields, is_listed, ignored)
        page = (method, url)
        if is_listed and (pause is not None or teaches_interval(status)):
            is_again = self._is_refused_again(page, permit, latency)
            if permit.refuses_pages and is_again and not pause:
                permit.answered(None)  # it is there, and no more is known
            else:
                interval = quota_interval(fields, ignored)
                what = f"answered {status} to {method} {path}"
                permit.refused(pause or 0.0, what, status, quota_interval=interval)
        else:
            is_good = status < 500 and path != "/robots.txt"  # which answers where no page does
            if is_good:
                self._refused_at.pop(page, None)
            permit.answered(latency if is_good else None, pause or 0.0)
        self._ignored_pauses.warn(permit.scope, ignored)

    def _is_refused_again(self, page: tuple[str, str], permit: Permit, latency: float) -> bool:
        """Note that a page is refused. True if it was before, and the site has answered a request
        that began after that.
        """
        before = self._refused_at.pop(page, None)
        self._refused_at[page] = permit.granted_at + latency if before is None else before
        if len(self._refused_at) > PAGES_MAX:
            self._refused_at.popitem(last=False)
        return before is not None and permit.site_answered_at > before

    def report_failure(self, permit: Permit) -> None:
        """Report that the site has not responded."""
        if self._codes:
            permit.failed()
