"""The throttler without a crawl: each test takes the part of Scrapy, step by step."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest
from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.cookies import CookiesMiddleware
from scrapy.downloadermiddlewares.stats import DownloaderStats
from scrapy.exceptions import CloseSpider, DownloadTimeoutError, IgnoreRequest
from scrapy.http import Response
from scrapy.robotstxt import ProtegoRobotParser
from scrapy.utils.test import get_crawler
from twisted.python.failure import Failure

from semaphore_middleware import (
    AcquireTimeoutError,
    FairSemaphore,
    Permit,
    PermitLostError,
    PermitSet,
    SemaphoreError,
)
from semaphore_middleware.core.permit import Stage
from semaphore_middleware.middleware import SemaphoreMiddleware
from semaphore_middleware.scrapy import throttler
from semaphore_middleware.scrapy.throttler import SpiderClosingError, Throttler, throttler_of
from tests.support.crawls import until
from tests.support.nodes import in_asyncio
from tests.support.servers import RedisServer
from tests.support.visits import Visits

Task = asyncio.Task[Any]
ADD_ON_PARTS = {"DOWNLOADER": "semaphore_middleware.scrapy.downloader.SemaphoreDownloader"}


class Scrapy:
    """As much of Scrapy as a throttler needs, for one crawl with a limit of 1 a site."""

    def __init__(self, server: RedisServer, **settings: Any) -> None:
        ours = {"SEMAPHORE_REDIS_URL": server.url, "CONCURRENT_REQUESTS_PER_DOMAIN": 1}
        none: dict[str, Any] = {"EXTENSIONS_BASE": {}}  # they hear signals, too
        self.crawler: Crawler = get_crawler(settings_dict={**ours, **none, **settings})
        self.crawler.spider = Visits()
        self.crawler.spider.crawler = self.crawler
        assert self.crawler.stats is not None
        self.cookies = CookiesMiddleware.from_crawler(self.crawler)
        others = [DownloaderStats(self.crawler.stats), self.cookies]
        chain = SimpleNamespace(middlewares=others)
        self.crawler.engine = SimpleNamespace(  # type: ignore[assignment]
            running=False,
            close_spider_async=self._close_spider,
            downloader=SimpleNamespace(middleware=chain),
        )
        self.throttler: Throttler = throttler_of(self.crawler)
        self.fetches: list[Task] = []

    async def _close_spider(self) -> None:
        pass

    async def send(self, signal: object, **arguments: Any) -> None:
        """Send a signal; what its receivers raise is raised here."""
        for _, result in await self.crawler.signals.send_catch_log_async(signal, **arguments):
            assert not isinstance(result, BaseException), result

    def fetch(self, request: Request) -> Task:
        """Begin to fetch a request; it waits for its permit."""
        self.throttler.backpressure.enter(request)
        self.fetches.append(asyncio.ensure_future(self._fetch(request)))
        return self.fetches[-1]

    async def _fetch(self, request: Request) -> Any:
        replaced = await self.throttler.acquire_for(request)
        if replaced is not None:
            return replaced
        return await asyncio.Future()  # until it is cancelled

    async def transfer(
        self, request: Request, download: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        """Download in a task of its own, which the end of the crawl may cancel."""
        return await asyncio.ensure_future(self.throttler.transfer(request, download))

    async def begin(self, request: Request) -> Task:
        """Fetch a request until it has its permits."""
        fetch = self.fetch(request)
        await until(lambda: fetch.done() or request in self.throttler._permits)
        return fetch

    def permit_of(self, request: Request) -> Permit | None:
        """The permit that a request holds."""
        permits = self.throttler._semaphore.permits()
        held = (p for p in permits if p.owner is request and p.stage is Stage.HELD)
        return next(held, None)

    @property
    def held(self) -> int:
        """Permits that requests hold."""
        permits = self.throttler._semaphore.permits()
        return sum(permit.stage is Stage.HELD for permit in permits)


@asynccontextmanager
async def opened(server: RedisServer, **settings: Any) -> AsyncIterator[Scrapy]:
    scrapy = Scrapy(server, **settings)
    await scrapy.send(signals.spider_opened)
    try:
        yield scrapy
    finally:
        for fetch in scrapy.fetches:
            fetch.cancel()
        await asyncio.gather(*scrapy.fetches, return_exceptions=True)
        await scrapy.send(signals.spider_closed)


async def turns() -> None:
    for _ in range(5):  # of the loop
        await asyncio.sleep(0)


def page(host: str = "a", number: int = 0, **meta: Any) -> Request:
    return Request(f"http://{host}/{number}", meta=meta)


def failed(error: Exception) -> Failure:
    return Failure(error)  # type: ignore[no-untyped-call]


def answering(status: int = 200, **headers: str) -> Callable[[Request], Awaitable[Response]]:
    async def download(request: Request) -> Response:
        return Response(request.url, status=status, headers=headers)

    return download


# The two doors ----------------------------------------------------------------------------------


@in_asyncio
async def test_the_end_of_a_transfer_gives_the_permit_back(server: RedisServer) -> None:
    async with opened(server) as scrapy:
        await scrapy.begin(request := page())
        assert scrapy.held == 1
        scrapy.throttler.start_transfer(request)
        scrapy.throttler.release_for(request)
        assert scrapy.held == 1, "it is on the wire"
        scrapy.throttler.end_transfer(request)
        assert scrapy.held == 0
        await until(lambda: server.members() == {})


@in_asyncio
async def test_the_end_of_a_fetch_gives_the_permit_back(server: RedisServer) -> None:
    async with opened(server) as scrapy:
        await scrapy.begin(request := page())
        scrapy.throttler.release_for(request)
        assert scrapy.held == 0


@in_asyncio
async def test_a_cancelled_fetch_gives_the_permit_back(server: RedisServer) -> None:
    async with opened(server) as scrapy:
        (await scrapy.begin(page())).cancel()
        await turns()
        assert scrapy.held == 0


@in_asyncio
async def test_a_place_is_given_back_with_the_permit_and_once(server: RedisServer) -> None:
    async with opened(server, CONCURRENT_REQUESTS=1) as scrapy:
        places = scrapy.throttler.local_concurrency
        await scrapy.begin(first := page("a"))
        scrapy.fetch(second := page("b"))
        await until(lambda: places.is_short)
        scrapy.throttler.release_for(first)
        assert not places.is_short
        await turns()
        scrapy.throttler.end_transfer(second)
        scrapy.throttler.release_for(second)
        for host in ("c", "d"):
            scrapy.fetch(page(host))
        await until(lambda: scrapy.held == 2)
        await turns()
        assert places.is_short, "there is one place"


@in_asyncio
async def test_a_permit_that_is_given_back_is_one_that_others_may_get_at_once(
    server: RedisServer,
) -> None:
    async with opened(server) as scrapy:
        backpressure = scrapy.throttler.backpressure
        await scrapy.begin(first := page("a", 1))
        backpressure.enter(page("a", 2))
        assert backpressure.exempt_from_concurrency == 1, "it waits for the first one"
        scrapy.throttler.release_for(first)
        assert backpressure.exempt_from_concurrency == 0, "it may have a permit at once"


@asynccontextmanager
async def without_a_place(server: RedisServer) -> AsyncIterator[tuple[Scrapy, Request, Request]]:
    """A request on the wire, and another one with a permit, but without a place."""
    async with opened(server, CONCURRENT_REQUESTS=1) as scrapy:
        await scrapy.begin(first := page("a"))
        scrapy.fetch(second := page("b"))
        await until(lambda: scrapy.held == 2)
        await turns()
        assert scrapy.throttler.local_concurrency.is_short
        yield scrapy, first, second


@in_asyncio
async def test_a_request_that_is_cancelled_without_a_place_leaves_nothing_behind(
    server: RedisServer,
) -> None:
    async with without_a_place(server) as (scrapy, _, _):
        scrapy.fetches[-1].cancel()
        await turns()
        assert scrapy.held == 1
        assert not scrapy.throttler.local_concurrency.is_short


@in_asyncio
async def test_nothing_begins_under_a_permit_granted_before_a_refusal(server: RedisServer) -> None:
    async with without_a_place(server) as (scrapy, first, second):
        permit = scrapy.permit_of(second)
        assert permit is not None
        permit.withdrawn = True
        scrapy.throttler.release_for(first)
        await turns()
        assert scrapy.permit_of(second) is not permit


@in_asyncio
async def test_a_start_that_counts_is_now_or_not_at_all(server: RedisServer) -> None:
    limits = {"b": {"rate": "100/s"}}
    async with opened(server, CONCURRENT_REQUESTS=1, SEMAPHORE_LIMITS=limits) as scrapy:
        await scrapy.begin(page("a"))
        granted: list[PermitSet] = []
        acquire = FairSemaphore.acquire_all

        async def acquired(*arguments: Any, **options: Any) -> PermitSet:
            granted.append(await acquire(*arguments, **options))
            return granted[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FairSemaphore, "acquire_all", acquired)
            scrapy.fetch(page("b"))
            await until(lambda: granted)
            await turns()
        assert granted[0].permits[0].stage is Stage.RELEASED


# Several scopes ---------------------------------------------------------------------------------

SEVERAL: dict[str, Any] = {
    "SEMAPHORE_SCOPES": ["all", "host"],
    "SEMAPHORE_LIMITS": {"a": {"concurrency": 1, "delay": 0.001}},
}


@in_asyncio
async def test_a_request_with_all_its_permits_begins(server: RedisServer) -> None:
    async with opened(server, **SEVERAL) as scrapy:
        await scrapy.begin(request := page("a"))
        permits = scrapy.throttler._permits[request].permits
        assert [permit.scope for permit in permits] == ["a", "all"]
        assert not any(permit.begins_later for permit in permits)


@in_asyncio
async def test_what_comes_past_the_scheduler_comes_first(server: RedisServer) -> None:
    async with opened(server, **SEVERAL) as scrapy:
        await scrapy.begin(page("a"))
        waiting = [page("a", n).replace(priority=n) for n in range(1, 4)]
        scrapy.throttler.backpressure.enter(waiting[1], is_scheduled=False)
        for request in waiting:
            scrapy.fetch(request)
        await turns()
        priorities = {
            permit.owner: permit.priority for permit in scrapy.throttler._semaphore.permits()
        }
        assert sorted(waiting, key=lambda request: -priorities[request]) == [
            waiting[place] for place in (1, 2, 0)
        ]


@in_asyncio
async def test_who_waits_for_another_request_lends_it_the_permits(server: RedisServer) -> None:
    async with opened(server, CONCURRENT_REQUESTS=1, **SEVERAL) as scrapy:
        await scrapy.begin(request := page("a"))
        scrapy.throttler.suspend(request)
        scrapy.throttler.suspend(request)
        assert scrapy.held == 0
        places = scrapy.throttler.local_concurrency
        assert places.reserve(request), "its place is free, too"
        places.leave(request)
        await scrapy.begin(needed := page("a", 1))
        assert await scrapy.transfer(needed, answering()) is not None
        response = await scrapy.transfer(request, answering())
        assert response.url == request.url
        await until(lambda: server.members() == {})


@pytest.mark.parametrize("meta", [{"semaphore_scope": 5}, {"semaphore_skip": "False"}])
@in_asyncio
async def test_a_meta_that_is_not_allowed_ends_the_request_alone(
    server: RedisServer, meta: dict[str, Any]
) -> None:
    async with opened(server) as scrapy:
        with pytest.raises(IgnoreRequest, match="semaphore_"):
            await scrapy.throttler.acquire_for(page(**meta))


@in_asyncio
async def test_a_request_that_is_being_fetched_is_not_fetched_again(server: RedisServer) -> None:
    async with opened(server, CONCURRENT_REQUESTS_PER_DOMAIN=2, CONCURRENT_REQUESTS=2) as scrapy:
        await scrapy.begin(request := page())
        with pytest.raises(SemaphoreError, match="is being fetched already; yield a copy of it"):
            await scrapy.throttler.acquire_for(request)
        assert scrapy.held == 1
        places, other = scrapy.throttler.local_concurrency, page("b")
        assert places.reserve(other), "one of the two is free"
        places.leave(other)


@in_asyncio
async def test_a_request_waits_no_longer_than_it_may(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def acquire(*_: Any, timeout: float | None, **__: Any) -> PermitSet:
        assert timeout == 0.01
        raise AcquireTimeoutError

    monkeypatch.setattr(FairSemaphore, "acquire_all", acquire)
    async with opened(server, SEMAPHORE_ACQUIRE_TIMEOUT=0.01) as scrapy:
        with pytest.raises(AcquireTimeoutError):
            await scrapy.throttler.acquire_for(page())


@in_asyncio
async def test_a_crawl_waits_for_its_server_no_longer_than_it_may(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttler, "STOP_CHECK_INTERVAL_S", 0.01)
    nowhere = {"SEMAPHORE_REDIS_URL": "unix:///nowhere", "SEMAPHORE_START_TIMEOUT": 0.01}
    scrapy = Scrapy(server, **nowhere)
    send = scrapy.crawler.signals.send_catch_log_async
    opening = asyncio.ensure_future(send(signals.spider_opened, dont_log=CloseSpider))
    await asyncio.wait({opening}, timeout=5)
    assert opening.done()
    assert [result.reason for _, result in await opening] == ["semaphore_error"]
    await scrapy.send(signals.spider_closed)
    assert scrapy.crawler.spider is None  # by which Scrapy's commands exit with status 1


@in_asyncio
async def test_a_delay_of_robots_txt_is_asked_for(server: RedisServer) -> None:
    async with opened(server, ROBOTSTXT_OBEY=True, DOWNLOAD_DELAY_JITTER=0) as scrapy:
        robots = ProtegoRobotParser(b"User-agent: *\nCrawl-delay: 7", None)
        await scrapy.send(signals.robots_parsed, robotparser=robots, request=page())
        await scrapy.begin(request := page())
        permit = scrapy.permit_of(request)
        assert permit is not None
        assert permit.limit.delay == 7


# Transfers --------------------------------------------------------------------------------------


@in_asyncio
async def test_a_transfer_ends_with_its_permit_given_back(server: RedisServer) -> None:
    async with opened(server) as scrapy:
        await scrapy.begin(request := page())
        permit = scrapy.permit_of(request)
        assert permit is not None

        async def download(_: Request) -> Response:
            scrapy.throttler.release_for(request)  # Scrapy cancels a fetch, and not its transfer
            assert scrapy.held == 1
            return Response(request.url, status=429, headers={"Retry-After": "0"})

        response = await scrapy.transfer(request, download)
        assert response.status == 429
        assert scrapy.held == 0
        assert permit.outcome is not None
        assert permit.outcome.refused


@in_asyncio
async def test_a_transfer_that_fails_ends_with_its_permit_given_back(server: RedisServer) -> None:
    async with opened(server) as scrapy:
        await scrapy.begin(request := page())
        permit = scrapy.permit_of(request)
        assert permit is not None

        async def download(_: Request) -> Response:
            raise DownloadTimeoutError

        with pytest.raises(DownloadTimeoutError):
            await scrapy.transfer(request, download)
        assert scrapy.held == 0
        assert permit.outcome is not None, "the site did not respond"


@in_asyncio
async def test_a_lost_permit_cancels_its_transfer(server: RedisServer) -> None:
    async with opened(server) as scrapy:
        await scrapy.begin(request := page())
        permit = scrapy.permit_of(request)
        assert permit is not None
        on_the_wire = asyncio.Event()

        async def download(_: Request) -> Response:
            on_the_wire.set()
            return await asyncio.Future()

        transfer = asyncio.ensure_future(scrapy.throttler.transfer(request, download))
        await on_the_wire.wait()
        permit._account.lose_all()
        await turns()
        assert transfer.done()
        with pytest.raises(PermitLostError):
            transfer.result()


@in_asyncio
async def test_what_needs_no_permit_is_downloaded_without_one(server: RedisServer) -> None:
    async with opened(server) as scrapy:
        request = page(semaphore_skip=True)
        assert await scrapy.throttler.acquire_for(request) is None
        assert (await scrapy.transfer(request, answering())).status == 200
        assert scrapy.held == 0


@in_asyncio
async def test_what_needs_no_permit_needs_a_place(server: RedisServer) -> None:
    async with opened(server, CONCURRENT_REQUESTS=1) as scrapy:
        places, other = scrapy.throttler.local_concurrency, page("b")
        first, second = (page("a", number, semaphore_skip=True) for number in range(2))
        assert await scrapy.throttler.acquire_for(first) is None
        assert not places.reserve(other), "the first one has the only place"
        scrapy.fetch(second)
        await turns()
        assert places.is_short
        assert (await scrapy.transfer(first, answering())).status == 200
        assert not places.is_short
        await turns()
        scrapy.throttler.release_for(second)
        assert places.reserve(other)


# Refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("retries", [True, False])
@in_asyncio
async def test_a_refused_request_is_made_again_if_there_are_to_be_retries(
    server: RedisServer, retries: bool
) -> None:
    async with opened(server, RETRY_ENABLED=retries) as scrapy:
        await scrapy.begin(request := page())
        headers = {"Retry-After": "0", "Set-Cookie": "passed=yes"}
        response = await scrapy.transfer(request, answering(429, **headers))
        assert (scrapy.throttler.retry_request(request, response) is not None) == retries
    assert scrapy.crawler.stats is not None
    assert scrapy.crawler.stats.get_value("semaphore/refused") == 1
    counted = scrapy.crawler.stats.get_value("downloader/response_status_count/429")
    assert counted == (1 if retries else None), "else further middlewares see it themselves"
    assert len(scrapy.cookies.jars[None]) == (1 if retries else 0), "by which the site may know us"


@in_asyncio
async def test_a_request_that_was_served_is_not_made_again(server: RedisServer) -> None:
    async with opened(server) as scrapy:
        await scrapy.begin(request := page(semaphore_refusals=2))
        response = await scrapy.transfer(request, answering())
        assert scrapy.throttler.retry_request(request, response) is None
        assert request.meta.keys() <= {"download_latency"}, "what it yields starts afresh"


def test_a_redirect_to_another_host_takes_no_scope_along(server: RedisServer) -> None:
    request = Request("http://a.example/", meta={"semaphore_skip": True})
    result = Request("http://b.example/", meta=request.meta)
    assert Scrapy(server).throttler.fetched(result, request) is result
    assert result.meta == {}, "it was said of another host"


@in_asyncio
async def test_what_a_middleware_makes_of_a_request_that_was_given_up_starts_afresh(
    server: RedisServer,
) -> None:
    async with opened(server, SEMAPHORE_BACKOFF_TIMES=0) as scrapy:
        await scrapy.begin(request := page(semaphore_refusals=1, mine=1))
        response = await scrapy.transfer(request, answering(429, **{"Retry-After": "0"}))
        assert scrapy.throttler.retry_request(request, response) is None
        made = request.replace(url="http://a/other")
        assert scrapy.throttler.fetched(made, request) is made
        assert made.meta.keys() <= {"mine", "download_latency"}
        retry = page(semaphore_refusals=1)
        scrapy.throttler.fetched(retry, request)
        assert retry.meta == {"semaphore_refusals": 1}


# Closing ----------------------------------------------------------------------------------------


def test_what_failed_as_the_spider_closes_goes_back_to_the_scheduler_once(
    server: RedisServer,
) -> None:
    fetched = Scrapy(server).throttler.fetched
    closing = failed(SpiderClosingError("the spider is closing"))
    copy = fetched(closing, page("a", 1))
    assert isinstance(copy, Request)
    assert (copy.url, copy.dont_filter) == ("http://a/1", True)
    with pytest.raises(SpiderClosingError):
        fetched(closing, copy)
    other = failed(IgnoreRequest())
    assert fetched(other, page()) is other


@in_asyncio
async def test_when_the_spider_closes_waiting_requests_go_back_to_the_scheduler(
    server: RedisServer,
) -> None:
    async with opened(server, CONCURRENT_REQUESTS=1) as scrapy:
        await scrapy.begin(page("a", 1))
        for_a_permit, for_a_place = scrapy.fetch(page("a", 2)), scrapy.fetch(page("b"))
        await until(lambda: scrapy.held == 2)
        await turns()
        await scrapy.crawler.engine.close_spider_async()
        await turns()
        for fetch, url in ((for_a_permit, "http://a/2"), (for_a_place, "http://b/0")):
            assert fetch.done()
            copy = fetch.result()
            assert (copy.url, copy.dont_filter) == (url, True)
            assert copy is not fetch
            with pytest.raises(IgnoreRequest):  # of `engine.download_async`, at once
                await scrapy.throttler.acquire_for(copy)
        assert scrapy.held == 1


@in_asyncio
async def test_the_end_of_the_crawl_ends_transfers_of_cancelled_fetches(
    server: RedisServer,
) -> None:
    scrapy = Scrapy(server)
    await scrapy.send(signals.spider_opened)
    fetch = await scrapy.begin(request := page())
    held_at_its_end = 0

    async def download(_: Request) -> Response:
        nonlocal held_at_its_end
        try:
            return await asyncio.Future()
        finally:
            await turns()
            held_at_its_end = scrapy.held

    transfer = asyncio.ensure_future(scrapy.throttler.transfer(request, download))
    await turns()
    fetch.cancel()
    await turns()
    assert scrapy.held == 1
    await scrapy.send(signals.spider_closed)
    assert held_at_its_end == 1
    assert transfer.cancelled()
    assert server.members() == {}


@in_asyncio
async def test_the_end_of_the_crawl_gives_back_what_signals_told_of(server: RedisServer) -> None:
    scrapy = Scrapy(server)
    await scrapy.send(signals.spider_opened)
    fetch = await scrapy.begin(request := page())
    scrapy.throttler.start_transfer(request)
    fetch.cancel()
    await turns()
    assert scrapy.held == 1
    await scrapy.send(signals.spider_closed)
    assert scrapy.held == 0
    assert server.members() == {}
    assert scrapy.crawler.stats is not None
    assert scrapy.crawler.stats.get_value("semaphore/released") == 1
    assert throttler_of(scrapy.crawler) is not scrapy.throttler


def test_a_crawl_that_fails_before_it_begins_leaves_nothing_behind(server: RedisServer) -> None:
    left = ref(Scrapy(server).throttler)
    gc.collect()
    assert left() is None


# The middleware alone ---------------------------------------------------------------------------


@in_asyncio
async def test_the_middleware_alone_learns_of_transfers_from_signals(server: RedisServer) -> None:
    async with opened(server) as scrapy:
        middleware = SemaphoreMiddleware.from_crawler(scrapy.crawler)
        await scrapy.begin(request := page())
        refused = Response(request.url, status=429, headers={"Retry-After": "0"})
        for signal, held in (
            (signals.request_reached_downloader, 1),
            (signals.response_downloaded, 1),
            (signals.request_left_downloader, 0),
        ):
            await scrapy.send(signal, request=request, response=refused, spider=None)
            middleware.process_exception(request, ValueError())
            assert scrapy.held == held
        assert scrapy.crawler.stats is not None
    assert scrapy.crawler.stats.get_value("semaphore/refused") == 1


@in_asyncio
async def test_with_the_add_on_s_downloader_signals_tell_nothing(server: RedisServer) -> None:
    async with opened(server, **ADD_ON_PARTS) as scrapy:
        SemaphoreMiddleware.from_crawler(scrapy.crawler)
        await scrapy.begin(request := page())
        await scrapy.send(signals.request_left_downloader, request=request, spider=None)
        assert scrapy.held == 1
