"""One a crawler: where its requests get their permits, and give them back.

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

from semaphore_middleware.core.permit import Permit
from semaphore_middleware.core.semaphore import FairSemaphore
from semaphore_middleware.errors import AcquireTimeoutError, ClosedError, SemaphoreError
from semaphore_middleware.model.limits import Limit
from semaphore_middleware.redis import embedded
from semaphore_middleware.scrapy.backpressure import Waiters
from semaphore_middleware.scrapy.collector import spare_the_collector
from semaphore_middleware.scrapy.concurrency import Hands
from semaphore_middleware.scrapy.engine import Engine, check_reactor, end_crawl
from semaphore_middleware.scrapy.responses import REFUSALS, Answers
from semaphore_middleware.scrapy.robotstxt import CrawlDelays
from semaphore_middleware.scrapy.scopes import scope_finder
from semaphore_middleware.scrapy.settings import SemaphoreSettings
from semaphore_middleware.scrapy.startup import introduce, warn_of_mistakes
from semaphore_middleware.scrapy.watch import Watch
from semaphore_middleware.telemetry.stats import GateStats

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from scrapy.robotstxt import RobotParser

logger = logging.getLogger(__name__)

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
        check_reactor(crawler)
        self.settings = SemaphoreSettings.read(crawler.settings)
        self._crawler = crawler
        self._engine = Engine(crawler)
        self._watch = Watch(self.settings)
        self.scope_of = scope_finder(self.settings.scope)
        self.waiters = Waiters(self.scope_of, self.settings.limits, self._engine.wake_soon)
        self.answers = Answers(self.settings.backoff_codes, self.settings.backoff_times)
        self._delays = CrawlDelays(crawler.settings, self.settings.max_crawl_delay)
        self._embedded = embedded.start_or_join() if self.settings.url is None else None
        self.url = self._embedded.url if self._embedded else self.settings.url
        self._semaphore = FairSemaphore(
            self.url,
            node=self.settings.node,
            lease=self.settings.lease,
            recovery_wait=self.settings.recovery_wait,
            prefix=self.settings.prefix,
            backoff=self.settings.backoff,
            url_from=self.settings.url_from,
            on_event=self._on_event,
            on_round_trip=self._watch.on_round_trip,
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
        self._retries = crawler.settings.getbool("RETRY_ENABLED")
        connect = crawler.signals.connect
        connect(self._open, signals.spider_opened)
        connect(self._close, signals.spider_closed)
        if self.settings.obey_crawl_delay:
            connect(self._robots_parsed, signals.robots_parsed)

    # A request's way ----------------------------------------------------------------------------

    async def enter(self, request: Request) -> Request | None:
        """Wait for this request's permit. Returns a request when it is to go back to the scheduler.

        Raises `AcquireTimeoutError`, and `IgnoreRequest` once the spider is closing.
        """
        scope = self.scope_of(request)
        limit = self._limit_of(request, scope)
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
        self.stats.acquired(permit, self._semaphore.limit_of(scope))
        if not self.sees_transfers:
            task = asyncio.current_task()
            assert task is not None, "Scrapy runs each fetch in a task of its own"
            task.add_done_callback(lambda _: self.answered(request))
        return None

    def _limit_of(self, request: Request, scope: str | None) -> Limit | None:
        limit = self.settings.limits.of(scope) if scope is not None else None
        return self._delays.applied_to(limit, request) if limit is not None else None

    async def _take(self, request: Request, scope: str, limit: Limit) -> Permit:
        """A permit, and a hand of this node's to use it. CONCURRENT_REQUESTS holds for those who
        come out of a line as well: a permit that would have to wait for it long goes to others.
        """
        in_line = functools.partial(self._stands_in_line, request, scope)
        timeout = self.settings.acquire_timeout
        while True:
            permit = await self._semaphore.acquire(scope, limit, timeout, in_line)
            try:
                if await self.hands.take():
                    if not permit.withdrawn:
                        return permit
                    self.hands.free()
                    permit.release()
                    continue
            except BaseException:
                permit.release()
                raise
            permit.release()
            await self.hands.wait()

    def _stands_in_line(self, request: Request, scope: str) -> None:
        self.waiters.stands_in_line(request)
        self._watch.stands_in_line(scope)
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
                response = await download(request)
            self.answers.hear(permit, request, response)
            return response
        except Exception as error:
            self.answers.hear_failure(permit, error)
            raise
        finally:
            self._left_wire(request)

    def _reached_wire(self, request: Request) -> None:
        self._on_wire[request] = None

    def _downloaded(self, request: Request, response: Response) -> None:
        if permit := self._permits.get(request):
            self.answers.hear(permit, request, response)

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

    def again(self, request: Request) -> Request | None:
        """The request to make later in place of one that the site refused, if any."""
        if not self.answers.refused(request):
            request.meta.pop(REFUSALS, None)
            return None
        self.stats.count("refused")
        return self.answers.again(request) if self._retries else None

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

    @functools.cached_property  # the crawler has none yet when an add-on makes the gate
    def stats(self) -> GateStats:
        return self._watch.stats(self._crawler.stats)

    def _robots_parsed(self, robotparser: RobotParser, request: Request) -> None:
        if self._delays.heard(robotparser, request):
            self.stats.count("crawl_delays")

    def _on_event(self, name: str) -> None:
        self.stats.count(name)

    async def _open(self) -> None:
        if not self.sees_transfers:
            connect = self._crawler.signals.connect
            connect(self._reached_wire, signals.request_reached_downloader)
            connect(self._downloaded, signals.response_downloaded)
            connect(self._left_wire, signals.request_left_downloader)
            connect(self.answers.received, signals.response_received)
        self._engine.before_close(self._drain)
        spare_the_collector()
        introduce(self.node, self.url or "", self._embedded is not None, self.settings.limits)
        warn_of_mistakes(self._crawler.settings, self.settings.limits)
        await self._watch.open(self._semaphore, self.stats)
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

    def _drain(self) -> None:
        """A spider that closes waits for its downloads. Those that wait for a permit would hold it
        up, and be lost under JOBDIR.
        """
        self._semaphore.drain()
        self.hands.refuse_all(ClosedError("the spider is closing"))

    async def _close(self) -> None:
        await self._watch.close()
        # Scrapy goes on with the transfer of a cancelled fetch, even past the end of the crawl.
        transfers = [task for task in self._on_wire.values() if task is not None]
        for task in transfers:
            task.cancel()
        await asyncio.gather(*transfers, return_exceptions=True)
        for request in list(self._permits):  # those that are not watched: no add-on
            self._give_back(request)
        await self._semaphore.close()
        if self._embedded is not None:
            self._embedded.leave()
        self.stats.close()
        if self._failed:
            self._engine.end_with_failure()
        _gates.pop(self._crawler, None)
