"""Shared crawls in the simulated world: the real scheduler and the real scripts, under faults.

Nodes crawl a random graph of pages. A page yields links and items, and some callbacks are slow.
Only Scrapy's engine, crawler and downloader are stand-ins. The judge sees on the server which
requests go back to the queues, and in the nodes which items are in the feeds' files.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, Self

from scrapy import Request, Spider, signals
from scrapy.exceptions import CloseSpider, DontCloseSpider, IgnoreRequest
from scrapy.http import Response
from scrapy.settings import BaseSettings
from scrapy.statscollectors import StatsCollector
from scrapy.utils.request import RequestFingerprinter
from twisted.internet.defer import Deferred, fail, succeed

from semaphore_middleware.errors import ServerUnreachableError
from semaphore_middleware.frontier import scheduler as module
from semaphore_middleware.frontier.client import CrawlClient, CrawlEndedError
from semaphore_middleware.frontier.keys import CrawlKeys, site_of
from semaphore_middleware.frontier.scheduler import Scheduler
from semaphore_middleware.frontier.session import FrontierSession
from semaphore_middleware.model import chance
from semaphore_middleware.scrapy.engine import Engine
from tests.simulation.network import Network, Wire
from tests.simulation.plan import Fault, _weather
from tests.simulation.run import Result, Run, connected_by
from tests.simulation.server import Server
from tests.simulation.world import Host, World

URL = "redis://simulated"
KEYS = CrawlKeys("crawl", "sim")
CONCURRENT_REQUESTS = 6
HEARTBEAT_S = 5.0  # of Scrapy's engine
SNAPSHOTS_PER_LEASE = 20
PATIENCE_S = 1200.0  # after which a crawl that has not ended never does
PROMPT_S = 1.0  # within which a node hears of what there is to do, when nothing is wrong


@dataclass(frozen=True)
class Page:
    """A page of the graph. Times are in seconds."""

    site: str
    links: tuple[int, ...]
    items: int
    latency: float
    callback: float  # what lies between two of the things that its callback yields
    pipeline: float  # which each of its items takes


@dataclass(frozen=True)
class CrawlPlan:
    """A run. Times are in seconds from its beginning. The first page is where the crawl starts."""

    seed: int
    lease: float
    nodes: int
    pages: tuple[Page, ...]
    faults: tuple[Fault, ...] = ()
    most_at_site: int = 2  # requests of a node; then the site is full
    max_pages: int = 0
    is_second_run: bool = False  # a run of the same name has ended before

    @property
    def reachable(self) -> set[int]:
        found, to_visit = {0}, [0]
        while to_visit:
            new = set(self.pages[to_visit.pop()].links) - found
            found |= new
            to_visit += new
        return found


def plan_for(seed: int) -> CrawlPlan:
    """The plan of a seed."""
    random = Random(seed)
    lease = random.choice((2.0, 5.0, 15.0))
    nodes = random.choice((1, 2, 3, 3, 4))
    count = random.choice((8, 25, 50))
    slow = random.choice((0.0, 0.05))
    pages = tuple(
        Page(
            site=random.choice("aaabcd"),
            links=tuple(random.randrange(count) for _ in range(random.choice((0, 1, 3, 8)))),
            items=random.choice((1, 1, 2)),
            latency=lease * random.choice((0.001, 0.01, 0.05, 0.1)),
            callback=lease * (1.3 if random.random() < slow else random.choice((0.0, 0.01))),
            pipeline=lease * random.choice((0.0, 0.0, 0.02, 0.2)),
        )
        for _ in range(count)
    )
    first = pages[0].links + tuple(range(1, min(count, 6)))
    pages = (Page("a", first, 1, 0.01, 0.0, 0.0), *pages[1:])
    faults = _faults(random, nodes, lease) if random.random() < 0.85 else ()
    return CrawlPlan(
        *(seed, lease, nodes, pages, faults),
        most_at_site=random.choice((1, 2, 6)),
        max_pages=random.choice((0,) * 6 + (10,)),
        is_second_run=random.random() < 0.2,
    )


OF_NETWORK = ("weather", "weather", "cut", "cut", "cut out", "cut back", "break")
OF_NODES = ("freeze", "freeze", "kill", "kill", "close", "add")
OF_SERVER = (
    *("server stands", "server away", "restart", "flush", "replica", "replica", "jump"),
    *("scripts gone", "full", "go back"),
)


def _faults(random: Random, nodes: int, lease: float) -> tuple[Fault, ...]:
    kinds = random.choice((OF_NETWORK, OF_NODES, OF_NETWORK + OF_NODES + OF_SERVER, OF_SERVER))
    faults, at, jumped_at = [], random.uniform(0.02, 1.0) * lease, -lease
    for _ in range(random.choice((1, 2, 4, 8))):
        kind = random.choice(kinds)
        of: Any = None
        if kind == "jump" and at - jumped_at < 1.5 * lease:  # see docs/guarantees.md
            kind = "break"
        if kind == "weather":
            of = _weather(random)
        elif kind == "restart":
            of = random.choice(("empty", "with its data"))
        elif kind == "replica":
            of = random.choice((0.0, 0.01, 0.1, 0.2)) * lease  # what it lacks
        elif kind == "jump":
            of = random.choice((-3600.0, -1.0, 2.0, 20.0, 3600.0))
            jumped_at = at
        seconds = random.choice((0.05, 0.2, 0.5, 0.8, 1.5, 3.0)) * lease
        faults.append(Fault(at, kind, random.randrange(nodes), seconds, of))
        at += random.uniform(0.02, 1.0) * lease
    return tuple(faults)


# Stand-ins for Scrapy ---------------------------------------------------------------------------


class _Signals:
    def __init__(self) -> None:
        self._handlers: dict[object, list[Callable[[], object]]] = defaultdict(list)

    def connect(self, handler: Callable[[], object], signal: object, weak: bool = True) -> None:
        self._handlers[signal].append(handler)

    def send(self, signal: object) -> None:
        for handler in self._handlers[signal]:
            handler()

    def send_catch_log(self, _signal: object, **_: object) -> None:
        """Nobody hears of requests that are dropped."""


class _SiteQueue:
    """First in, first out, but for requests of full sites."""

    @classmethod
    def from_crawler(cls, crawler: Any, **_: object) -> Self:
        return cls(crawler.engine)

    def __init__(self, engine: _ScrapyEngine) -> None:
        self._engine = engine
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
        return self._engine.open_at[site] >= self._engine.node.plan.most_at_site


class _Engine(Engine):
    """Ours, but for what looks at the process around it."""

    def spider_arguments(self) -> dict[str, Any]:
        return {}

    def fail_when_cut_short(self, has_ended: Callable[[], bool]) -> None:
        pass


class _Feed:
    """A feed's file: what was written to it is lost with the process until it is flushed."""

    closed = False

    def __init__(self, written: list[tuple[int, int]]) -> None:
        self.buffer: list[tuple[int, int]] = []
        self._written = written

    def flush(self) -> None:
        self._written += self.buffer
        self.buffer.clear()


class _ScrapyEngine:
    """As much of Scrapy's engine, downloader and scraper as a crawl needs."""

    def __init__(self, node: CrawlNode) -> None:
        self.node = node
        self.running = True
        self.open_at: Counter[str] = Counter()
        self._start: AsyncIterator[Request] | None = self.start()
        self._slot = SimpleNamespace(inprogress=set(), nextcall=self)
        self.downloader = SimpleNamespace(fetch=self._result_of)
        self.scraper = SimpleNamespace(spidermw=self)
        self._busy = 0  # requests that are with the downloader or with the spider
        self._next: asyncio.Handle | None = None
        self._results: dict[Request, Deferred[Any]] = {}
        self._closing = asyncio.Event()
        self.closed = asyncio.Event()

    async def start(self) -> AsyncIterator[Request]:
        yield Request(self.node.url_of(0))

    async def process_start(self) -> AsyncIterator[Request]:
        return self.start()

    def crawl(self, request: Request) -> None:
        self.node.scheduler.enqueue_request(request)
        self.schedule()

    async def read_start(self) -> None:
        assert self._start is not None
        async for request in self._start:
            self.crawl(request)
        self._start = None
        self.schedule()

    async def beat(self) -> None:
        while not self._closing.is_set():
            self.schedule()
            await asyncio.sleep(HEARTBEAT_S)

    def schedule(self) -> None:
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._next = None
        scheduler = self.node.scheduler
        while not self._closing.is_set() and len(self._slot.inprogress) < CONCURRENT_REQUESTS:
            request = scheduler.next_request()
            if request is None:
                break
            self._slot.inprogress.add(request)
            self.open_at[request.url.split("/")[2]] += 1
            self.node.host.spawn(self._process(request))
        is_idle = not (self._busy or self._start or scheduler.has_pending_requests())
        if is_idle and not self._closing.is_set():
            try:
                self.node.crawler.signals.send(signals.spider_idle)
            except DontCloseSpider:
                return
            self.node.host.spawn(self.close_spider_async(reason="finished"))

    async def _process(self, request: Request) -> None:
        """From the downloader, through the spider's callback, to the pipelines."""
        number = int(request.url.rpartition("/")[2])
        page, site = self.node.plan.pages[number], request.url.split("/")[2]
        self._busy += 1
        with_response = await self._download(request, page)
        self._busy -= 1
        self.open_at[site] -= 1
        self.schedule()
        await asyncio.sleep(0)  # it is neither there nor here
        self._busy += 1
        if with_response:
            await self._call_back(number, page)
        self._busy -= 1
        self._slot.inprogress.discard(request)
        self.schedule()

    async def _download(self, request: Request, page: Page) -> bool:
        self.node.judge.on_visit(self.node, request.url)
        try:
            async with asyncio.timeout(page.latency):
                await self._closing.wait()
        except TimeoutError:
            self._results[request] = succeed(Response(request.url))
        else:  # the spider closes: half of the requests wait for a permit, and get none any more
            closing = IgnoreRequest("the spider is closing")
            begun = page.latency * 1000 % 2 < 1
            self._results[request] = succeed(Response(request.url)) if begun else fail(closing)
        deferred = self.downloader.fetch(request)
        result = deferred.result
        deferred.addErrback(lambda _: None)
        if isinstance(result, Request):
            self.crawl(result)
        return isinstance(result, Response)

    def _result_of(self, request: Request) -> Deferred[Any]:
        return self._results.pop(request)

    async def _call_back(self, number: int, page: Page) -> None:
        items = 0
        for link in (*page.links, None):
            await asyncio.sleep(page.callback)
            if link is not None:
                self.crawl(Request(self.node.url_of(link)))
            if items < page.items:
                await asyncio.sleep(page.pipeline)
                self.node.feed.buffer.append((number, items))
                items += 1
        self.node.feed.buffer += [(number, item) for item in range(items, page.items)]

    async def close_spider_async(self, reason: str) -> None:
        if self._closing.is_set():
            return
        self._closing.set()
        while self._slot.inprogress:
            await asyncio.sleep(0.01)
        self.running = False
        await self.node.scheduler.close(reason)
        self.node.crawler.signals.send(signals.spider_closed)
        self.node.feed.flush()
        self.node.reason = reason
        self.closed.set()
