"""One a crawler: where its requests get their permits, and where Scrapy's insides are known.

The way of a request: the middleware calls `enter`, which waits for a permit; the transfer runs in
`transfer`, which ends it if the permit is lost. The permit goes back at whichever comes first: the
end of the transfer, or the end of Scrapy's `fetch`. That one comes on every path, whatever other
middlewares do, so nothing can leak. Where the middleware is used without the add-on's downloader, a
signal tells of the one, and the end of the task that `fetch` runs in of the other.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from scrapy import signals
from scrapy.exceptions import CloseSpider, IgnoreRequest
from scrapy.utils.asyncio import is_asyncio_available

from semaphore_middleware import embedded
from semaphore_middleware.collector import spare_the_collector
from semaphore_middleware.errors import (
    AcquireTimeoutError,
    ClosedError,
    SemaphoreError,
    SettingsError,
    end_crawl,
)
from semaphore_middleware.hands import Hands
from semaphore_middleware.limits import Limit
from semaphore_middleware.permit import Permit
from semaphore_middleware.scopes import scope_finder
from semaphore_middleware.semaphore import FairSemaphore
from semaphore_middleware.settings import SemaphoreSettings
from semaphore_middleware.stats import GateStats
from semaphore_middleware.waiters import Waiters

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from scrapy.pqueues import DownloaderAwarePriorityQueue

logger = logging.getLogger(__name__)

ASYNCIO_REACTOR = "twisted.internet.asyncioreactor.AsyncioSelectorReactor"

_gates: WeakKeyDictionary[Crawler, Gate] = WeakKeyDictionary()


def gate_of(crawler: Crawler) -> Gate:
    """The gate of this crawler, made when first asked for. Bad settings end the crawl here."""
    if crawler not in _gates:
        try:
            _gates[crawler] = Gate(crawler)
        except SemaphoreError as error:
            end_crawl(error)
    return _gates[crawler]


class Gate:
    def __init__(self, crawler: Crawler) -> None:
        _check_reactor(crawler)
        self.settings = SemaphoreSettings.read(crawler.settings)
        self._crawler = crawler
        self._stats: GateStats | None = None
        self.scope_of = scope_finder(self.settings.scope)
        self.waiters = Waiters(self.scope_of, self.settings.limits, self._room_made)
        self._lodger = embedded.lodge() if self.settings.url is None else None
        self.url = self._lodger.url if self._lodger else self.settings.url
        self._semaphore = FairSemaphore(
            self.url,
            node=self.settings.node,
            lease=self.settings.lease,
            recovery_wait=self.settings.recovery_wait,
            prefix=self.settings.prefix,
            url_from=self.settings.url_from,
            on_event=self._on_event,
        )
        self.node = self._semaphore.node
        self.sees_transfers = False
        """Whether `transfer` is used; else signals tell."""
        self.hands = Hands(crawler.settings.getint("CONCURRENT_REQUESTS"))
        self._permits: dict[Request, Permit] = {}
        self._on_wire: dict[Request, asyncio.Task[Any] | None] = {}
        """What ends the transfer; None where only signals tell of it."""
        self._sent_back: WeakSet[Request] = WeakSet()
        self._opened = asyncio.Event()
        self._failed = False
        connect = crawler.signals.connect
        connect(self._open, signals.spider_opened)
        connect(self._close, signals.spider_closed)

    # A request's way ----------------------------------------------------------------------------

    async def enter(self, request: Request) -> Request | None:
        """Wait for this request's permit. Returns a request when it is to go back to the scheduler.

        Raises `AcquireTimeoutError`, and `IgnoreRequest` once the spider is closing.
        """
        scope = self.scope_of(request)
        limit = self.settings.limits.of(scope) if scope is not None else None
        if scope is None or limit is None:
            return None
        await self._opened.wait()
        try:
            permit = await self._take(request, scope, limit)
        except AcquireTimeoutError:
            self._on_event("timeouts")
            raise
        except ClosedError:
            return self._send_back(request)
        if request in self._permits:
            permit.release()
            self.hands.free()
            raise SemaphoreError(f"{request} is being fetched already; yield a copy of it")
        self._permits[request] = permit
        self.waiters.got_permit(request)
        self.stats.acquired(permit)
        if not self.sees_transfers:
            task = asyncio.current_task()
            assert task is not None, "Scrapy runs each fetch in a task of its own"
            task.add_done_callback(lambda _: self.answered(request))
        return None

    async def _take(self, request: Request, scope: str, limit: Limit) -> Permit:
        """A permit, and a hand of this node's to use it. CONCURRENT_REQUESTS holds for those who
        come out of a line as well: a permit that would have to wait for it long goes to others.
        """
        in_line = functools.partial(self._stands_in_line, request)
        timeout = self.settings.acquire_timeout
        while True:
            permit = await self._semaphore.acquire(scope, limit, timeout, in_line)
            try:
                if await self.hands.take():
                    return permit
            except BaseException:
                permit.release()
                raise
            permit.release()
            await self.hands.wait()

    def _stands_in_line(self, request: Request) -> None:
        self.waiters.stands_in_line(request)
        self.hands.call_one()  # this one may have been called, and has no use for free hands

    async def transfer(
        self, request: Request, download: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        """Download under the request's permit, if it has one. The transfer is cancelled, and raises
        `PermitLostError`, with the permit, which goes back at its end.
        """
        permit = self._permits.get(request)
        if permit is None:
            return await download(request)
        self._on_wire[request] = asyncio.current_task()
        try:
            with permit.until_lost():
                return await download(request)
        finally:
            self._left_wire(request)

    def _reached_wire(self, request: Request) -> None:
        self._on_wire[request] = None

    def _left_wire(self, request: Request) -> None:
        self._on_wire.pop(request, None)
        self._give_back(request)

    def answered(self, request: Request) -> None:
        """Give the permit back unless something is on the wire, as it is after a cancellation."""
        if request not in self._on_wire:
            self._give_back(request)

    def _give_back(self, request: Request) -> None:
        permit = self._permits.pop(request, None)
        if permit is not None:
            permit.release()
            self.waiters.gave_back(request)
            self.stats.released()
            self.hands.free()

    def _send_back(self, request: Request) -> Request:
        """To the scheduler, which keeps it under JOBDIR or in a shared frontier.

        `engine.download_async` would fetch it again at once instead: it gets it only once.
        """
        if request in self._sent_back:
            raise IgnoreRequest("the spider is closing")
        again = request.replace(dont_filter=True)
        self._sent_back.add(again)
        return again

    # The crawl's way ----------------------------------------------------------------------------

    @property
    def stats(self) -> GateStats:
        if self._stats is None:  # the crawler has none yet when an add-on makes the gate
            self._stats = GateStats(self._crawler.stats)
        return self._stats

    def pass_over_full_sites(self, queue: DownloaderAwarePriorityQueue) -> None:
        """Have the scheduler's queue ask our waiters what it asks Scrapy's downloader. Scrapy 2.19
        keeps what it asks in a private attribute.
        """
        queue._downloader_interface = self.waiters  # type: ignore[assignment]

    def _room_made(self) -> None:
        """Let what has just got its permit begin first: it does in the loop's next turn."""
        asyncio.get_running_loop().call_soon(self._wake_engine)

    def _wake_engine(self) -> None:
        """Have the scheduler asked again at once: by itself the engine would look in 5 s. Scrapy
        2.19 has no public way; the slot is None before the spider is open and after it is closed.
        """
        slot = self._crawler.engine._slot
        if slot is not None:
            slot.nextcall.schedule()

    def _on_event(self, name: str) -> None:
        self.stats.count(name)

    async def _open(self) -> None:
        if not self.sees_transfers:
            connect = self._crawler.signals.connect
            connect(self._reached_wire, signals.request_reached_downloader)
            connect(self._left_wire, signals.request_left_downloader)
        self._drain_when_closing()
        spare_the_collector()
        try:
            await self._open_while_wanted()
        except SemaphoreError as error:
            logger.error("%s", error)
            self._failed = True
            raise CloseSpider("semaphore_error") from None
        finally:
            self._opened.set()

    async def _open_while_wanted(self) -> None:
        """A crawl that is stopped before it has begun sends no signal, so look now and then."""
        crawling = self._crawler.crawling  # not in `scrapy shell`
        opening = asyncio.ensure_future(self._semaphore.open())
        while not opening.done():
            if crawling and not self._crawler.crawling:
                opening.cancel()
                raise CloseSpider("shutdown")
            await asyncio.wait({opening}, timeout=0.5)
        await opening

    def _drain_when_closing(self) -> None:
        """A spider that closes waits for its downloads. Those that wait for a permit would hold it
        up, and be lost under JOBDIR. Scrapy 2.19 has no signal for the beginning of a close.
        """
        engine = self._crawler.engine
        close_spider = engine.close_spider_async

        async def close_spider_async(*args: Any, **kwargs: Any) -> None:
            self._semaphore.drain()
            self.hands.refuse_all(ClosedError("the spider is closing"))
            await close_spider(*args, **kwargs)

        setattr(engine, "close_spider_async", close_spider_async)  # noqa: B010

    async def _close(self) -> None:
        # Scrapy goes on with the transfer of a cancelled fetch, even past the end of the crawl.
        transfers = [task for task in self._on_wire.values() if task is not None]
        for task in transfers:
            task.cancel()
        await asyncio.gather(*transfers, return_exceptions=True)
        for request in list(self._permits):  # those that are not watched: no add-on
            self._give_back(request)
        await self._semaphore.close()
        if self._lodger is not None:
            self._lodger.leave()
        self.stats.close()
        if self._failed:
            # Scrapy's commands exit with 1 if a crawl ends without a spider (bootstrap_failed), and
            # have no other word for a crawl that could not begin.
            self._crawler.spider = None
        _gates.pop(self._crawler, None)


def _check_reactor(crawler: Crawler) -> None:
    try:
        available = is_asyncio_available()
    except RuntimeError:  # no reactor yet, and no loop: Scrapy is about to install this one
        available = crawler.settings["TWISTED_REACTOR"] == ASYNCIO_REACTOR
    if not available:
        raise SettingsError(
            f"TWISTED_REACTOR: the semaphore needs asyncio; allowed is {ASYNCIO_REACTOR!r} "
            "(Scrapy's default), or TWISTED_REACTOR_ENABLED = False"
        )
