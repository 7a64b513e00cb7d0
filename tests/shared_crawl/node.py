"""A scheduler under a fake engine that the test drives, on the reactor's loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, Self
from urllib.parse import urlsplit

import pytest
from redis import Redis
from scrapy import Request, Spider, signals
from scrapy.http import Response
from scrapy.squeues import FifoMemoryQueue
from twisted.internet.defer import succeed
from twisted.python.failure import Failure

from semaphore_middleware.scrapy.engine import keep_spider_arguments
from semaphore_middleware.shared_crawl.client import CrawlClient, Demand, RequestInFlight
from semaphore_middleware.shared_crawl.scheduler import Scheduler
from semaphore_middleware.shared_crawl.settings import CrawlSettings
from tests.support.crawls import ready_crawler
from tests.support.nodes import eventually
from tests.support.shared_crawl import ONE, Node
from tests.support.simulated import BusyHost, SimulatedServer
from tests.support.times import ENDLESS_S, TIMEOUT_S

SIMULATED = "redis://simulated"


class Call(NamedTuple):
    """A call of `CrawlClient.sync`: how many new and finished requests it sends."""

    new: int
    finished: int
    demand: Demand


def watch_calls(
    patch: pytest.MonkeyPatch, before: Callable[[Call], object] = lambda _: None
) -> list[Call]:
    """Calls `before` at the start of each call of `CrawlClient.sync`, and notes the calls."""
    calls: list[Call] = []
    sync = CrawlClient.sync

    async def watched(client: CrawlClient, new: Any, finished: Any, demand: Any, *more: Any) -> Any:
        calls.append(Call(len(new), len(finished), demand))
        before(calls[-1])
        return await sync(client, new, finished, demand, *more)

    patch.setattr(CrawlClient, "sync", watched)
    return calls


def urls(site: str, count: int) -> list[str]:
    return [f"http://{site}/{number}" for number in range(count)]


class SitesQueue:
    """A queue that skips full sites, as the add-on's does."""

    full: ClassVar[set[str]] = set()

    @classmethod
    def from_crawler(cls, *_: object, **__: object) -> Self:
        return cls()

    def __init__(self) -> None:
        self._requests: list[Request] = []
        self.push = self._requests.append

    def pop(self) -> Request | None:
        for request in self._requests:
            if not self.is_full(self.site_of(request)):
                self._requests.remove(request)
                return request
        return None

    def site_of(self, request: Request) -> str:
        return request.url.split("/")[2]

    def is_full(self, site: str) -> bool:
        return site in self.full


class FakeEngine:
    """The part of Scrapy's engine that the scheduler uses."""

    crawl: Callable[[Request], object]
    start_again: Callable[[], AsyncIterator[Request]]

    def __init__(self, start: Any) -> None:
        self.running = True
        self.closed: list[str] = []  # with these reasons
        self._start = start
        self.woken = asyncio.Event()
        self._slot = SimpleNamespace(
            inprogress=set(), nextcall=SimpleNamespace(schedule=self.woken.set)
        )
        self.downloader = SimpleNamespace(
            fetch=lambda _: succeed(self.response),
            slots={},
            active=(),
            total_concurrency=16,
            get_slot_key=lambda request: (
                request.meta.get("download_slot") or urlsplit(request.url)[1]
            ),
        )
        self.response: Response | Request | Failure = Response("http://a/")
        self.scraper = SimpleNamespace(spidermw=self, call_spider_async=self.call_spider_async)

    async def close_spider_async(self, *, reason: str) -> None:
        self.closed.append(reason)

    async def call_spider_async(self, _result: Response | Failure, _request: Request) -> None:
        pass

    async def process_start(self) -> AsyncIterator[Request]:
        return self.start_again()


class DrivenNode:
    """A scheduler, and the steps in which an engine uses it."""

    def __init__(self, client: Any, engine: FakeEngine, scheduler: Scheduler) -> None:
        self.client = client
        self.engine = engine
        self.scheduler = scheduler
        self.session = scheduler.session
        self.state = scheduler.state
        engine.crawl = scheduler.enqueue_request
        self.dropped: list[str] = []
        self.feed = SimpleNamespace(file=None)
        exporter: Any = SimpleNamespace(slots=[self.feed])
        scheduler.crawler.get_extension = lambda _: exporter  # type: ignore[assignment, method-assign]
        scheduler.crawler.signals.connect(self._on_drop, signals.request_dropped)

    def _on_drop(self, request: Request) -> None:
        self.dropped.append(request.url)

    def enqueue(self, *urls: str, **fields: Any) -> None:
        for url in urls:
            assert self.scheduler.enqueue_request(Request(url, **fields))

    async def start(self) -> Request:
        """Start the next request; like the engine, ask for it only when woken."""
        while not (request := self.start_now()):
            await self.woken()
        return request

    def start_now(self) -> Request | None:
        self.engine.woken.clear()
        request = self.scheduler.next_request()
        if request is not None:
            self.engine._slot.inprogress.add(request)
        return request

    def start_all(self) -> None:
        while self.start_now():
            pass

    async def woken(self) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await self.engine.woken.wait()

    def fetch(self, request: Request, response: Response | Request | Failure) -> object:
        self.engine.response = response
        return self.engine.downloader.fetch(request).result

    async def visits(self, url: str, result: Response | Failure | None = None) -> None:
        """A page from when a callback yields it until its own callback returns."""
        self.enqueue(url)
        request = await self.start()
        self.engine.response = result or Response(url)
        self.engine.downloader.fetch(request).addErrback(lambda _: None)
        self.finish(request)

    def finish(self, *requests: Request) -> None:
        self.engine._slot.inprogress.difference_update(requests)

    async def finds_nothing(self) -> None:
        """Start all ready requests, until the spider may count as idle."""
        self.start_all()
        while self.scheduler.has_pending_requests():
            await self.woken()
            self.start_all()

    async def idles(self) -> None:
        """Signal idleness like the engine, until the spider may close."""
        while True:
            await self.finds_nothing()
            self.scheduler._spider_idle()
            if not self.scheduler.has_pending_requests():
                return
            await self.woken()

    def closes(self, reason: str) -> bool:
        """Close the spider; True if the process should exit with status 1, as Scrapy's commands see
        it.
        """
        self.scheduler.crawler.signals.send_catch_log(signals.spider_closed, reason=reason)
        return self.scheduler.crawler.spider is None

    def stat(self, name: str) -> Any:
        stats = self.scheduler.crawler.stats
        assert stats is not None
        return stats.get_value(name)

    # On the server -----------------------------------------------------------------------------

    def key(self, part: str) -> bytes:
        return self.scheduler.client.keys.key(part)

    @property
    def lease_end(self) -> float:
        score = self.client.zscore(self.key("working"), self.scheduler.client.node)
        assert score is not None
        return float(score)

    @property
    def unfinished(self) -> int:
        return int(self.client.hlen(self.key("requests")))

    async def has_unfinished(self, count: int) -> None:
        await eventually(lambda: self.unfinished == count)

    @property
    def taken(self) -> int:
        name = self.scheduler.client.node
        return int(self.client.zlexcount(self.key("taken"), f"[{name}\0", f"({name}\1"))

    @property
    def ready(self) -> int:
        """Requests that were taken and not started."""
        return self.taken - len(self.engine._slot.inprogress)

    def other(self) -> Node:
        other = Node(self.client, "books", "other")
        other.joins()
        return other

    def takes_as_other(self) -> list[str]:
        """The URLs of the requests that another node gets now, in order. None was tried before."""
        taken = self.other().takes(Demand(100, 100))
        assert not any(request.tries for request in taken)
        return [self.state.codec.decode(request.data).url for request in taken]


class Books(Spider):
    name = "books"


@asynccontextmanager
async def joined(
    client: Redis, start: AsyncIterator[Any] | None = None, **settings: Any
) -> AsyncIterator[DrivenNode]:
    url = f"unix://{client.connection_pool.connection_kwargs['path']}"
    async with _driven(client, url, lambda _: None, start, settings) as node:
        yield node


@asynccontextmanager
async def joined_in(
    server: SimulatedServer, host: BusyHost | None = None, **settings: Any
) -> AsyncIterator[DrivenNode]:
    """A scheduler in simulated time, on the test's host or on a busy one."""

    def connect(scheduler: Any) -> None:
        server.connect(scheduler.client.link.server, host.itself if host else None)
        scheduler.renewal_thread = host.renewal_thread if host else None

    settings = {"CRAWL_LEASE": server.options["lease"], **settings}
    driven = _driven(server.client, SIMULATED, connect, None, settings)
    if host is None:
        async with driven as node:
            yield node
        return
    node = await host.run(driven.__aenter__())
    try:
        yield node
    finally:
        await host.run(driven.__aexit__(None, None, None))


@asynccontextmanager
async def _driven(
    client: Any,
    url: str,
    connect: Callable[[Scheduler], None],
    start: AsyncIterator[Any] | None,
    settings: dict[str, Any],
) -> AsyncIterator[DrivenNode]:
    ours = {
        "REDIS_URL": url,
        "CRAWL": "books",
        "CRAWL_LEASE": ENDLESS_S,
        "SCHEDULER_PRIORITY_QUEUE": SitesQueue,
        "SCHEDULER_MEMORY_QUEUE": FifoMemoryQueue,  # in the order of the tests' URLs
    }
    crawler = ready_crawler(Books, **{**ours, **settings})
    engine = FakeEngine(start)
    crawler.engine = engine  # type: ignore[assignment]
    keep_spider_arguments()
    crawler.spider = crawler._create_spider()
    crawler.crawling = True
    scheduler = Scheduler.from_crawler(crawler)
    connect(scheduler)
    await scheduler.open(crawler.spider).asFuture(asyncio.get_running_loop())
    try:
        yield DrivenNode(client, engine, scheduler)
    finally:
        await scheduler.close("finished").asFuture(asyncio.get_running_loop())
        SitesQueue.full.clear()


class OtherNode(CrawlClient):
    """A node without Scrapy that has joined, in simulated time, on the test's host."""

    def __init__(self, server: SimulatedServer) -> None:
        super().__init__(CrawlSettings(SIMULATED, "books", "other", lease=server.options["lease"]))
        server.connect(self.link.server)

    async def takes(self, demand: Demand = ONE) -> list[RequestInFlight]:
        return (await self.sync(demand=demand)).taken
