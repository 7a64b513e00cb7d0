"""Scrapy's engine, and where its insides are known (2.19): what is private is touched here only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scrapy.utils.asyncio import is_asyncio_available

from semaphore_middleware.errors import SettingsError

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.pqueues import DownloaderAwarePriorityQueue

    from semaphore_middleware.scrapy.backpressure import Waiters

ASYNCIO_REACTOR = "twisted.internet.asyncioreactor.AsyncioSelectorReactor"


class Engine:
    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    def wake_soon(self) -> None:
        """Have the scheduler asked again. What has just got its permit is to begin first: it does
        in the loop's next turn.
        """
        asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        """By itself the engine would look in 5 s. Scrapy 2.19 has no public way; the slot is None
        before the spider is open and after it is closed.
        """
        slot = self._crawler.engine._slot
        if slot is not None:
            slot.nextcall.schedule()

    def before_close(self, do: Callable[[], None]) -> None:
        """Call `do` when the spider begins to close. Scrapy 2.19 has no signal for that."""
        engine = self._crawler.engine
        close_spider = engine.close_spider_async

        async def close_spider_async(*args: Any, **kwargs: Any) -> None:
            do()
            await close_spider(*args, **kwargs)

        setattr(engine, "close_spider_async", close_spider_async)  # noqa: B010

    def end_with_failure(self) -> None:
        """Scrapy's commands exit with 1 if a crawl ends without a spider (bootstrap_failed), and
        have no other word for a crawl that could not begin.
        """
        self._crawler.spider = None


def pass_over_full_sites(queue: DownloaderAwarePriorityQueue, waiters: Waiters) -> None:
    """Have the scheduler's queue ask our waiters what it asks Scrapy's downloader. Scrapy 2.19
    keeps what it asks in a private attribute.
    """
    queue._downloader_interface = waiters  # type: ignore[assignment]


def check_reactor(crawler: Crawler) -> None:
    try:
        available = is_asyncio_available()
    except RuntimeError:  # no reactor yet, and no loop: Scrapy is about to install this one
        available = crawler.settings["TWISTED_REACTOR"] == ASYNCIO_REACTOR
    if not available:
        raise SettingsError(
            f"TWISTED_REACTOR: the semaphore needs asyncio; allowed is {ASYNCIO_REACTOR!r} "
            "(Scrapy's default), or TWISTED_REACTOR_ENABLED = False"
        )
