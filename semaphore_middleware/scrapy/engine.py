"""Scrapy's engine: all private parts of Scrapy that are used, each with its reason (2.19)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Set
from typing import TYPE_CHECKING, Any, NoReturn

from scrapy import Request, signals
from scrapy.exceptions import CloseSpider
from scrapy.utils.asyncio import is_asyncio_available

from semaphore_middleware.errors import SettingsError

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.pqueues import DownloaderAwarePriorityQueue

    from semaphore_middleware.scrapy.backpressure import Waiters

logger = logging.getLogger(__name__)

ASYNCIO_REACTOR = "twisted.internet.asyncioreactor.AsyncioSelectorReactor"


class Engine:
    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    def wake(self) -> None:
        """Have the scheduler asked again at once: by itself the engine looks every 5 s only.

        Private, because Scrapy 2.19 has no public way. The slot is None before the spider is open
        and after it is closed.
        """
        engine = self._crawler.engine
        if engine.running and engine._slot is not None:
            engine._slot.nextcall.schedule()

    def wake_soon(self) -> None:
        """Have the scheduler asked again. What has just got its permit is to begin first: it does
        in the loop's next turn.
        """
        asyncio.get_running_loop().call_soon(self.wake)

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

    @property
    def in_progress(self) -> Set[Request]:
        """The requests that the engine has not finished with.

        Private, because Scrapy 2.19 has no signal for that: `request_left_downloader` is sent
        before the callback, and none is sent after it.
        """
        slot = self._crawler.engine._slot
        assert slot is not None, "a scheduler is used while its spider is open"
        return slot.inprogress

    def tell_of_drop(self, request: Request) -> None:
        """Send `request_dropped`. The engine does so only if `enqueue_request` returns False."""
        self._crawler.signals.send_catch_log(
            signals.request_dropped, request=request, spider=self._crawler.spider
        )

    def close_when_opened(self, reason: str) -> None:
        """Close the spider as soon as it is open. `CloseSpider` raised by a scheduler's `open()`
        would be logged with a traceback.
        """

        def close_spider() -> None:
            raise CloseSpider(reason)

        self._crawler.signals.connect(close_spider, signals.spider_opened, weak=False)

    async def start_again(self) -> None:
        """Schedule the spider's start requests once more."""
        engine = self._crawler.engine
        start = await engine.scraper.spidermw.process_start()
        assert start is not None
        async for request in start:
            if isinstance(request, Request):
                engine.crawl(request)
                await asyncio.sleep(0)


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


def end_crawl(error: Exception) -> NoReturn:
    """Raise `error` so that Scrapy ends the crawl with exit status 1 after one clear line.

    Scrapy keeps the crawl in an asyncio task that nobody awaits: an error in it is reported as
    "never retrieved", with a traceback that hides the one line a user needs. So the line is logged
    here, and the task's error is marked as seen.
    """
    logger.error("%s", error)
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no running loop: a reactor that is not asyncio's
        task = None
    if task is not None:
        task.add_done_callback(_see_error)
    raise error


def _see_error(task: asyncio.Task[object]) -> None:
    if not task.cancelled():
        task.exception()
