"""The add-on's `THROTTLER`, for a Scrapy that has this setting (its pull request 6931, open)."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Self

from scrapy import signals

from semaphore_middleware.model.limits import LIMITLESS, Limit
from semaphore_middleware.scrapy.downloader import ThrottledHandlers
from semaphore_middleware.scrapy.settings import is_enabled
from semaphore_middleware.scrapy.throttler import Throttler, throttler_of

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)

MAX_EXEMPT = 1000
"""Requests that wait for permits and take up no CONCURRENT_REQUESTS, at most: the scheduler's would
all come here.
"""


class SemaphoreThrottler:
    """Implements Scrapy's `ThrottlerProtocol`. In the place of the add-on's downloader and queue.

    `SemaphoreMiddleware` still waits for the permits: after the other middlewares, next to the
    wire. So `acquire` holds nothing up, a request that waits for another one (for its robots.txt,
    or for what a middleware fetches) holds no permit meanwhile, and a hit of the cache takes none.
    """

    def __init__(self, crawler: Crawler, throttler: Throttler) -> None:
        self._crawler = crawler
        self._throttler = throttler
        self._concurrency = crawler.settings.getint("CONCURRENT_REQUESTS")
        self._has_warned = False
        crawler.signals.connect(self._spider_opened, signals.spider_opened)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Scrapy's own throttler, if `SEMAPHORE_ENABLED` is off. Raises errors as the add-on's."""
        if not is_enabled(crawler.settings):
            from scrapy.throttler import (  # type: ignore[import-not-found]
                Throttler as ScrapyThrottler,
            )

            return ScrapyThrottler.from_crawler(crawler)  # type: ignore[no-any-return]
        return cls(crawler, throttler_of(crawler))

    def _spider_opened(self) -> None:
        downloader = self._crawler.engine.downloader
        downloader.handlers = ThrottledHandlers(  # type: ignore[assignment]
            downloader.handlers, self._throttler
        )
        self._throttler.watch_fetches()

    # A request's way ----------------------------------------------------------------------------

    async def acquire(self, request: Request, *, unscheduled: bool = False) -> None:
        """A request is about to be fetched. `unscheduled`: by `engine.download_async`."""
        self._throttler.backpressure.enter(request, is_scheduled=not unscheduled)
        self._make_room()

    def release(self, request: Request) -> None:
        """A request's fetch is over."""
        self._throttler.release_for(request)
        self._throttler.backpressure.leave(request)
        self._throttler.responses.forget(request)
        self._make_room()

    def _make_room(self) -> None:
        """Requests that only wait for permits do not count in CONCURRENT_REQUESTS: else a full site
        would hold up the others. Permits are used in no more places than these.
        """
        if self._concurrency:
            waiting = min(MAX_EXEMPT, self._throttler.backpressure.exempt_from_concurrency)
            self._crawler.engine.downloader.total_concurrency = self._concurrency + waiting

    def download_handler_blocked(self, request: Request) -> bool:  # noqa: ARG002 - Scrapy's
        """False: a request that comes so far has its permits."""
        return False

    # Scopes -------------------------------------------------------------------------------------

    def get_scopes(self, request: Request) -> list[str]:
        """The names of the scopes that a request needs permits of."""
        return list(self._throttler.scopes.slot_names(request))

    get_applied_scopes = get_scopes

    def get_scopes_key(self, request: Request) -> str:
        """The names as one text, by which Scrapy's queue groups requests."""
        scopes = sorted(self.get_scopes(request))
        return scopes[0] if len(scopes) == 1 else json.dumps(scopes)

    def get_scope_load(self, scope_id: str) -> float:
        """Requests of a scope that wait or run here, as a share of its limit. Scrapy's queue takes
        its next request from the scope with the lowest.
        """
        return self._throttler.backpressure.load_of(scope_id)

    def get_scope_manager(self, scope_id: str) -> ScopeManager:
        """The limit of a scope, to be read."""
        return ScopeManager(self, scope_id)

    def limit_of(self, scope_id: str) -> Limit | None:
        """The limit of a scope by the settings, None if it has none."""
        return self._throttler.settings.limits.of(scope_id)

    def warn_of_change(self) -> None:
        """Log once that limits are not changed here."""
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "A component changes a scope's delay or concurrency by Scrapy's throttler. That "
                "does nothing: set it for all nodes, with 'scrapy semaphore limit' or "
                "Admin.configure."
            )


class ScopeManager:
    """A scope's limit, as Scrapy's `ThrottlingScopeManager` shows it."""

    def __init__(self, throttler: SemaphoreThrottler, scope_id: str) -> None:
        self._throttler = throttler
        self._limit = throttler.limit_of(scope_id)

    def get_base_delay(self) -> float:
        """The delay between two starts, in seconds."""
        return self._limit.delay if self._limit else 0.0

    def get_concurrency(self) -> int:
        """Requests at once, of all nodes; the largest number where there is no limit."""
        return self._limit.concurrency if self._limit else LIMITLESS

    def set_base_delay(self, delay: float, *, only_increase: bool = True) -> None:  # noqa: ARG002
        """Changes nothing, and logs that once."""
        self._throttler.warn_of_change()

    def set_concurrency(self, concurrency: int) -> None:  # noqa: ARG002 - Scrapy's
        """Changes nothing, and logs that once."""
        self._throttler.warn_of_change()
