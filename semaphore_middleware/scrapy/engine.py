"""Scrapy's engine, and the private parts of Scrapy 2.19 used in this folder, with reasons."""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import time
from asyncio import FIRST_COMPLETED
from collections.abc import Awaitable, Callable, Iterator, Sized
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from weakref import WeakKeyDictionary

from pydispatch.dispatcher import getAllReceivers, liveReceivers
from scrapy import Request, Spider, signals
from scrapy.core.engine import ExecutionEngine
from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider, IgnoreRequest
from scrapy.extensions.logstats import LogStats
from scrapy.signalmanager import SignalManager
from scrapy.utils.asyncio import is_asyncio_available
from scrapy.utils.python import global_object_name

from semaphore_middleware.errors import SemaphoreError, ServerUnreachableError, SettingsError
from semaphore_middleware.link import stderr
from semaphore_middleware.model.validation import LONGEST_S, not_allowed
from semaphore_middleware.scrapy.versions import close_opened, fail_start

if TYPE_CHECKING:
    from scrapy.core.downloader import Downloader
    from scrapy.pqueues import DownloaderAwarePriorityQueue

logger = logging.getLogger(__name__)

ASYNCIO_REACTOR = "twisted.internet.asyncioreactor.AsyncioSelectorReactor"

CLOSES = "_semaphore_closes_when_opened"
"""An attribute of a crawler, as each of its components has its own `Engine`."""

T = TypeVar("T")

_spider_arguments: WeakKeyDictionary[Crawler, dict[str, Any]] = WeakKeyDictionary()


class RobotsTxtUnreadableError(IgnoreRequest):
    """A request is dropped, as its site's robots.txt cannot be read; it may be fetched later."""


class SpiderClosingError(SemaphoreError, IgnoreRequest):
    """A waiting request is not made, because the spider is closing."""


class PageIncompleteError(SpiderClosingError):
    """A request that an answered page needs is not made, because the spider is closing."""


class EngineSignals(SignalManager):
    """The signals that an engine sends; `scheduler_empty` only if its scheduler is empty."""

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._crawler = crawler

    def send_catch_log(self, signal: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        if signal is signals.scheduler_empty:
            slot = self._crawler.engine._slot
            receivers = liveReceivers(getAllReceivers(self.sender, signal))
            if next(receivers, None) is None or (slot and slot.scheduler.has_pending_requests()):
                return []
        return super().send_catch_log(signal, **kwargs)


class Engine:
    """A crawler's engine: actions for which Scrapy 2.19 has no public API."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._is_waking = False
        self._made_at = time.monotonic()
        self._can_be_stopped = crawler.crawling  # False in `scrapy shell`

    def wake(self) -> None:
        """Make the engine ask its scheduler for requests now. Otherwise the engine asks after
        responses and every 5 s.

        Private: `_slot`, the engine's state while a spider is open, otherwise None.
        """
        self._is_waking = False
        engine = self._crawler.engine
        if engine.running and engine._slot is not None:
            engine._slot.nextcall.schedule()

    def wake_soon(self) -> None:
        """Wake the engine in the next iteration of the event loop: by then, a request with a new
        permit has begun its transfer.
        """
        if not self._is_waking:
            self._is_waking = True
            asyncio.get_running_loop().call_soon(self.wake)

    def spider_arguments(self) -> dict[str, Any] | None:
        """The spider's arguments from the user, positional ones by number. None if
        `keep_spider_arguments` was not called in time.
        """
        return _spider_arguments.get(self._crawler)

    def before_close(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the spider begins to close, before the engine waits for downloads.

        `close_spider_async` is replaced: the signal `spider_closed` comes only after that wait.
        """
        engine = self._crawler.engine
        close_spider = engine.close_spider_async

        async def close_spider_async(*args: Any, **kwargs: Any) -> None:
            callback()
            await close_spider(*args, **kwargs)

        setattr(engine, "close_spider_async", close_spider_async)  # noqa: B010

    def wrap_fetch(self, wrapper: Callable[[Callable[..., Any], Request], Any]) -> None:
        """Let `wrapper` make each call of the downloader's `fetch`.

        `fetch` is replaced: no signal is sent for a request that a middleware returns. If `fetch`
        has a parameter for the spider, Scrapy 2.19 passes it, too.
        """
        downloader = self._crawler.engine.downloader
        fetch = downloader.fetch

        def wrapped(request: Request, *spider: Spider) -> Any:
            return wrapper(lambda request: fetch(request, *spider), request)

        setattr(downloader, "fetch", wrapped)  # noqa: B010

    def count_waiting_for_spiders(self) -> None:
        """Count waiting requests, in the downloader and in the scheduler, when a spider checks
        `needs_backout` or `scheduler_empty` to decide whether to yield more.

        The engine itself calls `needs_backout` to see whether any request may start. Private: the
        caller's module, to tell these calls apart, and `engine.signals`: the engine also sends
        `scheduler_empty` if the scheduler only passes over full sites.
        """
        engine = self._crawler.engine
        most = self._crawler.settings.getint("CONCURRENT_REQUESTS")
        needs_backout = engine.needs_backout

        def needs_backout_of_spider() -> bool:
            is_engine = sys._getframe(1).f_globals["__name__"] == ExecutionEngine.__module__
            if is_engine or engine._slot is None or needs_backout():
                return needs_backout()
            scheduler = engine._slot.scheduler
            queued = len(scheduler) if isinstance(scheduler, Sized) else 0
            return 0 < most <= len(engine.downloader.active) + queued

        setattr(engine, "needs_backout", needs_backout_of_spider)  # noqa: B010
        engine.signals = EngineSignals(self._crawler)

    def end_with_failure(self) -> None:
        """Make Scrapy's commands exit with status 1, when the crawl has ended.

        `spider` is set to None: a crawl without a spider is the only failure checked by the
        commands (`bootstrap_failed`).
        """
        self._crawler.spider = None

    async def reach(
        self,
        server: object,
        attempts: Awaitable[T],
        timeout: float | None,
        why: Callable[[], Exception | None],
    ) -> T:
        """Await the attempts to reach a server while the crawl is being opened.

        Raises `CloseSpider` after a stop or CLOSESPIDER_TIMEOUT, which Scrapy counts only when the
        spider is open; and `ServerUnreachableError` `timeout` seconds after the beginning of the
        crawl. `why()` is the error of the last attempt.
        """
        now = time.monotonic()
        give_up_in = math.inf if timeout is None else max(0.0, self._made_at + timeout - now)
        close_in = self._crawler.settings.getfloat("CLOSESPIDER_TIMEOUT") or math.inf
        stopped = self._end_of_opening()
        task = asyncio.ensure_future(attempts)
        try:
            longest = min(give_up_in, close_in, LONGEST_S)
            waited_for: set[asyncio.Future[Any]] = {task, stopped}
            await asyncio.wait(waited_for, timeout=longest, return_when=FIRST_COMPLETED)
            if stopped.done():
                raise CloseSpider(stopped.result())
            if task.done():
                return await task
            if close_in < give_up_in:
                raise CloseSpider("closespider_timeout")
            raise ServerUnreachableError(
                f"gave up on {server} after SEMAPHORE_START_TIMEOUT ({timeout:g} s): "
                f"{why() or 'no answer'}"
            )
        finally:
            stopped.cancel()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _end_of_opening(self) -> asyncio.Future[str]:
        """A future of the reason to close the spider before it is open. Calls that stop or close
        the spider return after its end.

        `stop_async` and `close_spider_async` are replaced: the first only stops a running engine,
        so the process would end at once; the second closes a spider while it is being opened.
        """
        crawler, engine = self._crawler, self._crawler.engine
        stop, close = crawler.stop_async, engine.close_spider_async
        stopped: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        closed = asyncio.Event()

        async def end(reason: str) -> None:
            stopped.set_result(reason)
            await closed.wait()

        async def stop_async() -> None:
            await stop()
            if engine.spider is None:  # the engine calls this at the spider's end, too
                closed.set()
            elif not stopped.done():
                await end("shutdown")

        async def close_spider_async(*, reason: str = "cancelled") -> None:
            has_failed = self._can_be_stopped and not crawler.crawling  # so it is never open
            await (close(reason=reason) if has_failed or stopped.done() else end(reason))

        setattr(crawler, "stop_async", stop_async)  # noqa: B010
        setattr(engine, "close_spider_async", close_spider_async)  # noqa: B010
        if self._can_be_stopped and not crawler.crawling:
            stopped.set_result("shutdown")
        return stopped

    def close_when_opened(self, reason: str) -> None:
        """Close the spider as soon as it is open. A `CloseSpider` raised earlier, in a scheduler's
        `open`, leaves a traceback in the log.
        """
        vars(self._crawler)[CLOSES] = True

        def close_spider() -> None:
            close_opened(self._crawler, reason)

        self._crawler.signals.connect(close_spider, signals.spider_opened, weak=False)

    @property
    def closes_when_opened(self) -> bool:
        return CLOSES in vars(self._crawler)

    def close_soon(self, reason: str) -> None:
        task = asyncio.ensure_future(self._crawler.engine.close_spider_async(reason=reason))
        self._closing = task  # asyncio keeps only weak references to tasks


def keep_spider_arguments() -> None:
    """From now on, keep each spider's arguments for `Engine.spider_arguments`.

    Private: `Crawler._create_spider`, as no hook runs between the command line and the spider.
    """
    create = Crawler._create_spider
    if create.__module__ == __name__:
        return

    def _create_spider(crawler: Crawler, *args: Any, **kwargs: Any) -> Spider:
        by_number = {f"{number}": value for number, value in enumerate(args, 1)}
        _spider_arguments[crawler] = {**by_number, **kwargs}
        return create(crawler, *args, **kwargs)

    setattr(Crawler, "_create_spider", _create_spider)  # noqa: B010


def spider_name(crawler: Crawler) -> str:
    """The name of a crawler's spider; empty without a spider, or if it has no name."""
    return getattr(crawler.spider or crawler.spidercls, "name", None) or ""


def log_interval(crawler: Crawler) -> float:
    """Seconds between two lines of Scrapy's `LogStats`; 0: it is off."""
    extension = crawler.get_extension(LogStats)
    return extension.interval if extension is not None else 0.0


def pass_over_saturated_scopes(queue: DownloaderAwarePriorityQueue, slots: Any) -> None:
    """Make a queue pass over saturated scopes: `slots` leaves them out in its method `stats`.

    Private: `_downloader_interface`, from which the queue gets the load of each slot.
    """
    queue._downloader_interface = slots


@contextmanager
def connections_per_host(crawler: Crawler, number: int) -> Iterator[None]:
    """In this context, new download handlers keep up to `number` connections to a host.

    Scrapy 2.19 makes its handlers within `Downloader.__init__`. They take the number from this
    setting, so the setting is changed meanwhile: in `attributes`, as settings are frozen.
    """
    setting = crawler.settings.attributes["CONCURRENT_REQUESTS_PER_DOMAIN"]
    set_by_user, setting.value = setting.value, number
    try:
        yield
    finally:
        setting.value = set_by_user


def wrap_downloads(
    downloader: Downloader, wrapper: Callable[[Callable[..., Any], Request], Any]
) -> None:
    """Let `wrapper` make each call of the handlers' `download_request_async`.

    Cancelling a call closes its connection (seen with Scrapy 2.19's HTTP/1.1 and aiohttp
    handlers). Raises `SettingsError` if the downloader has no such handlers.
    """
    handlers: Any = getattr(downloader, "handlers", None)
    if not hasattr(handlers, "download_request_async"):
        raise not_allowed(
            global_object_name(type(downloader)),
            "DOWNLOADER",
            "a class derived from semaphore_middleware.scrapy.hooks.SemaphoreDownloader, or from "
            "scrapy.core.downloader.Downloader: only its handlers let requests be counted",
        )
    handlers.download_request_async = partial(wrapper, handlers.download_request_async)


def belongs_to_a_command(crawler: Crawler) -> bool:
    """True in `scrapy fetch`, `parse`, `check` and `shell`, which make requests of their own.

    The first three replace the spider's `start`; the last drives its engine without `crawl`.
    """
    start = getattr(crawler.spidercls, "start", None)
    return not crawler.crawling or getattr(start, "__module__", "").startswith("scrapy.commands.")


def check_reactor(crawler: Crawler) -> None:
    """Raise `SettingsError` unless the crawl runs on asyncio, with or without a reactor."""
    try:
        available = is_asyncio_available()
    except RuntimeError:  # no reactor yet, and no loop: Scrapy is about to install this one
        available = crawler.settings["TWISTED_REACTOR"] == ASYNCIO_REACTOR
    if not available:
        raise SettingsError(
            f"TWISTED_REACTOR: the semaphore needs asyncio; allowed is {ASYNCIO_REACTOR!r} "
            "(Scrapy's default), or TWISTED_REACTOR_ENABLED = False"
        )


def end_crawl(error: Exception, crawler: Crawler) -> NoReturn:
    """Log `error` as one line, and raise it: Scrapy ends the crawl with exit status 1.

    Scrapy runs the crawl in an asyncio task that nothing awaits. asyncio would log the error again
    as "never retrieved", with a traceback, so the task's error is marked as retrieved here.
    """
    stderr.log(logger, logging.ERROR, "%s", error)
    fail_start(crawler)
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no running loop: a reactor that is not asyncio's
        task = None
    if task is not None:
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
    raise error
