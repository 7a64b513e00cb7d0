"""Shared crawls in the simulated world: the real scheduler and the real scripts, under faults.

Nodes crawl a random graph of pages. A page yields links and items, and some callbacks are slow.
Only Scrapy's engine, crawler and downloader are stand-ins. The judge sees on the server which
requests go back to the queues, and in the nodes which items are in the feeds' files.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, Self, TypeAlias

import pytest
from scrapy import Request, Spider, signals
from scrapy.dupefilters import RFPDupeFilter
from scrapy.exceptions import CloseSpider, IgnoreRequest
from scrapy.http import Response
from scrapy.settings import BaseSettings
from scrapy.utils.request import RequestFingerprinter
from twisted.internet.defer import Deferred, fail, succeed

from lab.simulation.faults import OF_HOSTS, End, Misfortune
from lab.simulation.judge import Timeline
from lab.simulation.logs import logs_noted
from lab.simulation.memory import left_in
from lab.simulation.network import Network, Wire
from lab.simulation.plan import Fault, as_block, weather
from lab.simulation.run import RenewalThread, Result, connected_by
from lab.simulation.server import Server
from lab.simulation.world import BEGIN_S, Host, World
from semaphore_middleware.shared_crawl import new_requests, node_state, prefetch, scheduler, session
from semaphore_middleware.shared_crawl.client import (
    CALL_TIMEOUT_S,
    CrawlClient,
    Demand,
    NewRequest,
    Outcome,
)
from semaphore_middleware.shared_crawl.engine import CrawlEngine
from semaphore_middleware.shared_crawl.keys import PARTS, CrawlKeys, Places, site_of
from semaphore_middleware.shared_crawl.scheduler import Scheduler
from semaphore_middleware.shared_crawl.settings import CrawlSettings
from tests.shared_crawl.node import SitesQueue

URL = "redis://simulated"
KEYS = CrawlKeys("crawl", "sim")
START_KEY = "starts"
SITES = ("a.one.com",) * 3 + ("b.one.com", "c.two.com", "d.two.com")
CONCURRENT_REQUESTS = 6
HEARTBEAT_S = 5.0  # of Scrapy's engine
LOOK_S = 0.1  # how often the judge checks whether a node has nothing to do
QUEUES = ("scrapy.squeues.FifoMemoryQueue", "scrapy.squeues.LifoMemoryQueue")
COPIES_PER_LEASE = 20  # of the server's data
PATIENCE_S = 1200.0  # after which a crawl that has not ended never does
FEW_STARTS = 10  # of a node: after as many it is started again ever later
GRACE_S = 0.1  # for a node that is stopping, then it is cut off
PROMPT_S = 0.5  # within which a node is notified of new work, without faults


Budgets: TypeAlias = tuple[int, int]
"""The most pages of all, and of a site."""


@dataclass(frozen=True)
class Page:
    """A page of the graph. Times are in seconds."""

    site: str
    links: tuple[int, ...]
    items: int
    latency: float
    callback: float  # pause between two results of its callback
    pipeline: float  # which each of its items takes
    failures: int = 0  # after which it responds; each time it is retried, unfiltered, as by Scrapy
    is_fatal: bool = False  # to its node, each time


@dataclass(frozen=True)
class CrawlPlan:
    """A run. Times are in seconds from its beginning. The first page is where the crawl starts."""

    seed: int
    lease: float
    nodes: int
    pages: tuple[Page, ...]
    faults: tuple[Fault, ...] = ()
    most_at_site: int = 2  # requests of a node; then the site is full
    budgets: Budgets = (0, 0)  # until a fault changes them
    fed: tuple[tuple[float, int], ...] = ()  # when a queue that `start` reads gets which page
    keyed: tuple[int, ...] = ()  # pages whose URLs are in `CRAWL_START_KEY`
    is_second_run: bool = False  # a run of the same name has ended before
    comes_again: bool = False  # when the run has ended, another one begins
    last_first: bool = True  # the order of a site's requests
    most_new: int = 500  # requests in a call
    most_ready: int = 32  # that a node has taken ahead: the others are on the server only
    heartbeat: float = HEARTBEAT_S  # where no message is lost, nodes can do without

    def url_of(self, number: int) -> str:
        return f"http://{self.pages[number].site}/{number}"

    def is_safe(self, kinds: Container[str]) -> bool:
        """True if all faults are of these kinds, and no server without data takes over."""
        return all(
            fault.kind in kinds and (fault.kind not in LOSING or fault.of <= fault.at)
            for fault in self.faults
        )

    @property
    def is_limited(self) -> bool:
        """True if there is a budget at any time."""
        return any(self.budgets) or any(fault.kind == "budgets" for fault in self.faults)

    def reachable(self, lost: Counter[int]) -> set[int]:
        """The pages to be done: no fatal ones, and none that only these link to. Of what `start`
        has read from a queue, some is `lost`.
        """
        fed = Counter(number for _, number in self.fed) - lost
        found = {*fed, *self.keyed} if self.fed else {0, *self.keyed}
        to_visit = list(found)
        while to_visit:
            links = self.pages[to_visit.pop()].links
            new = {link for link in links if not self.pages[link].is_fatal} - found
            found |= new
            to_visit += new
        return found


def plan_for(seed: int) -> CrawlPlan:
    """The plan of a seed."""
    random = Random(seed)
    lease = random.choice((2.0, 5.0, 15.0))
    nodes = random.choice((1, 2, 3, 3, 4))
    count = random.choice((10, 25, 40))
    slow, fatal = random.choice((0.0, 0.05)), random.choice((0.0, 0.0, 0.04))
    pages = tuple(
        Page(
            site=random.choice(SITES),
            links=tuple(random.randrange(count) for _ in range(random.choice((0, 1, 3, 8)))),
            items=random.choice((1, 1, 2)),
            latency=lease * random.choice((0.001, 0.05, 0.1, 0.3)),
            callback=lease * (1.3 if random.random() < slow else random.choice((0.0, 0.01))),
            pipeline=lease * random.choice((0.0, 0.0, 0.02, 0.2)),
            failures=int(random.random() < 0.1),
            is_fatal=random.random() < fatal,
        )
        for _ in range(count)
    )
    first = pages[0].links + tuple(range(1, min(count, 6)))
    pages = (Page(SITES[0], first, 1, 0.01, 0.0, 0.0), *pages[1:])
    faults = _faults(random, nodes, lease) if random.random() < 0.85 else ()
    # If no node is left that knows better, a server that has gone back to the run before says that
    # the crawl has ended.
    may_end = fatal or any(fault.kind in ("kill", "close", "cut off") for fault in faults)
    is_second_run = random.random() < 0.3 and not may_end
    if is_second_run:
        faults = (*faults, Fault(random.uniform(0.02, 0.5) * lease, "go back"))
    others = Random(f"{seed} busy")  # so that the other plans are what they were before
    if others.random() < 0.5:
        faults = tuple(as_block(fault) for fault in faults)
    is_heard = not any(fault.kind in TROUBLE - {"freeze"} for fault in faults)
    plan = CrawlPlan(
        seed,
        lease,
        nodes,
        pages,
        faults,
        most_at_site=random.choice((1, 2, 6)),
        budgets=(random.choice((0,) * 6 + (10,)), random.choice((0,) * 6 + (3,))),
        last_first=random.random() < 0.5,
        is_second_run=is_second_run,
        most_new=random.choice((2, 500)),
        most_ready=random.choice((2, 32)),
        heartbeat=2 * PATIENCE_S if is_heard and random.random() < 0.7 else HEARTBEAT_S,
    )
    plan = _fed(random, _limited(random, plan))
    plan = _keyed(others, plan)
    is_whole = not (plan.fed or plan.keyed or any(page.is_fatal for page in pages))
    return replace(plan, comes_again=is_whole and others.random() < 0.15)


def _limited(random: Random, plan: CrawlPlan) -> CrawlPlan:
    """With budgets that change, in some plans."""
    if random.random() < 0.15 and not plan.is_second_run:
        others = random.choice((0, 10)), random.choice((0, 2, 5))
        change = Fault(random.uniform(0.05, 2.0) * plan.lease, "budgets", 0, 1.0, others)
        plan = replace(plan, faults=(*plan.faults, change))
    return plan


def _fed(random: Random, plan: CrawlPlan) -> CrawlPlan:
    """With a `start` that reads a queue, in some plans: some pages come again and again."""
    if random.random() >= 0.3 or plan.is_second_run or not plan.is_safe(SAFE_FOR_FEEDS):
        return plan
    safe = [number for number, page in enumerate(plan.pages) if not page.is_fatal]
    some = [0, *(random.choice(safe[:5]) for _ in range(random.choice((3, 8))))]
    return replace(
        plan, fed=tuple((at * random.uniform(0.0, 0.5), number) for at, number in enumerate(some))
    )


def _keyed(random: Random, plan: CrawlPlan) -> CrawlPlan:
    """With a key of start URLs, in some plans: some of them several times."""
    is_other = plan.is_second_run or plan.fed or not plan.is_safe(SAFE_FOR_KEYS)
    if random.random() >= 0.3 or is_other:
        return plan
    safe = [number for number, page in enumerate(plan.pages) if not page.is_fatal]
    plan = replace(plan, keyed=tuple(random.choices(safe, k=random.choice((3, 10, 60)))))
    if random.random() < 0.5:  # servers fail while lines are taken, for pages that none links to
        pages = tuple(replace(page, links=()) for page in plan.pages)
        plan = replace(plan, pages=pages, keyed=tuple(safe))
        faults, at = list(plan.faults), 0.1 * plan.lease
        for _ in range(8):
            at += random.uniform(0.0, 0.2) * plan.lease
            faults.append(Fault(at, "replica", 0, 0.1, random.uniform(0.0, 0.1) * plan.lease))
        plan = replace(plan, faults=tuple(faults), most_new=2, most_ready=2)
    return plan


OF_NETWORK = ("weather", "weather", "cut", "cut", "cut out", "cut back", "break")
OF_NODES = ("freeze", "freeze", "kill", "kill", "close", "cut off", "add")
OF_SERVER = (
    "server stands",
    "server away",
    "restart",
    "flush",
    "replica",
    "replica",
    "jump",
    "jump",
    "scripts gone",
    "full",
    "go back",
    "split brain",
    "evict",
)
NOT_EVICTED = {"aside", "failed", "claims", "takers"}
"""What is lost there is nowhere else, or not used here; or a late page may count twice."""
# Calls come late, or twice, or recent requests are sent again.
OVERTAKING = {"weather", "cut", "cut out", "cut back", "server stands", "restart"}
# Or replies are not read in time, and their calls repeated.
REPEATING = OVERTAKING | {"freeze", "block"}
# A living node may lose its lease.
TROUBLE = OVERTAKING | {
    "freeze",
    "server away",
    "flush",
    "replica",
    "full",
    "go back",
    "split brain",
    "evict",
}
LOSING = {"flush", "replica", "go back", "split brain", "evict"}  # data
# A node that dies, or a server that loses data, takes along what `start` has read from a queue; but
# what a promoted replica lacks of the last calls is sent again by nodes that still run.
SAFE_FOR_FEEDS = {
    *OF_NETWORK,
    "freeze",
    "block",
    "close",
    "add",
    "budgets",
    "jump",
    "server stands",
    "replica",
    "split brain",
}
# What a node that dies has taken from a key goes to another one.
SAFE_FOR_KEYS = SAFE_FOR_FEEDS | {"kill", "cut off", "server away", "scripts gone", "full"}
OF_NODES_AT_WORK = {*OF_HOSTS, "kill", "close", "cut off"}


def _faults(random: Random, nodes: int, lease: float) -> tuple[Fault, ...]:
    all_kinds = OF_NETWORK + OF_NODES + OF_SERVER
    jumps, failovers = ("jump", "jump", "jump", "close"), ("split brain", "replica")
    evictions = ("evict", "evict", "kill")
    kinds = random.choice(
        (OF_NETWORK, OF_NODES, OF_NODES, all_kinds, OF_SERVER, jumps, failovers, evictions)
    )
    faults, at, jumped_at = [], random.uniform(0.02, 1.0) * lease, -lease
    for _ in range(random.choice((1, 2, 4, 8))):
        kind = random.choice(kinds)
        of: Any = None
        if kind == "jump" and at - jumped_at < 1.5 * lease:  # see docs/guarantees.md
            kind = "break"
        if kind == "weather":
            of = weather(random, message_lost=(0.0, 0.05, 0.5, 1.0))
        elif kind == "restart":
            of = random.choice(("empty", "with its data"))
        elif kind in ("replica", "split brain"):
            of = random.choice((0.0, 0.01, 0.1, 0.2)) * lease  # what it lacks
        elif kind == "evict":
            of = random.choice([part for part in PARTS if part not in NOT_EVICTED])
        elif kind == "jump":
            of = random.choice((-3600.0, -1.0, 2.0, 20.0, 20.0, 3600.0))
            jumped_at = at
        seconds = random.choice((0.05, 0.2, 0.5, 0.8, 1.5, 3.0)) * lease
        faults.append(Fault(at, kind, random.randrange(nodes), seconds, of))
        at += random.uniform(0.02, 1.0) * lease
    return tuple(faults)


# Stand-ins for Scrapy ---------------------------------------------------------------------------


class _Signals:
    def __init__(self) -> None:
        self._handlers: dict[object, list[Callable[[], object]]] = defaultdict(list)

    def connect(self, handler: Callable[[], object], signal: object, **_: object) -> None:
        self._handlers[signal].append(handler)

    def send(self, signal: object) -> None:
        for handler in self._handlers[signal]:
            handler()

    def send_catch_log(self, _signal: object, **_: object) -> None:
        """Nobody hears of requests that are dropped."""


class _SiteQueue(SitesQueue):
    """First in, first out, but for requests of full sites."""

    @classmethod
    def from_crawler(cls, *crawler: Any, **_: object) -> Self:
        queue = cls()
        queue.is_full = crawler[0].engine.is_full  # type: ignore[method-assign]
        return queue


class _Engine(CrawlEngine):
    """Ours, but for what looks at the process around it."""

    def spider_arguments(self) -> dict[str, Any] | None:
        return {}

    def fail_when_cut_short(self, has_ended: Callable[[], bool]) -> None:
        pass

    def cookies_of(self, _jar: object) -> list[dict[str, Any]]:
        return []


class _Feed:
    """A feed's file: what was written to it is lost with the process until it is flushed."""

    closed = False

    def __init__(self, written: list[tuple[int, int]]) -> None:
        self.buffer: list[tuple[int, int]] = []
        self._written = written

    def fileno(self) -> int:
        raise OSError

    def flush(self) -> None:
        self._written += self.buffer
        self.buffer.clear()


class _ScrapyEngine:
    """As much of Scrapy's engine, downloader and scraper as a crawl needs."""

    def __init__(self, node: CrawlNode) -> None:
        self.node = node
        self.running = True
        self.spider: object = node  # as long as it is open
        self.open_at: Counter[str] = Counter()
        self._start: AsyncIterator[Request] | None = self.start()
        self._slot = SimpleNamespace(inprogress=set(), nextcall=self)
        self.downloader = SimpleNamespace(fetch=self._result_of)
        self.scraper = SimpleNamespace(spidermw=self, call_spider_async=None)
        self._busy = 0  # requests that are with the downloader or with the spider
        self._next: asyncio.Handle | None = None
        self._results: dict[Request, Deferred[Any]] = {}
        self._closing = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def is_full(self, site: str) -> bool:
        return self.open_at[site] >= self.node.plan.most_at_site

    @property
    def is_open(self) -> bool:
        return bool(self._tasks)

    @property
    def is_closing(self) -> bool:
        return self._closing.is_set()

    def open(self) -> None:
        self._tasks = [self.node.host.spawn(work()) for work in (self._read_start, self._beat)]

    async def start(self) -> AsyncIterator[Request]:
        run = self.node.run
        if not run.plan.fed:
            yield Request(self.node.plan.url_of(0), dont_filter=True)  # as Scrapy's own
        while run.to_feed:
            number = run.next_fed(self.node)
            if number is None:
                await asyncio.sleep(0.1)
            else:
                yield Request(self.node.plan.url_of(number), dont_filter=True)

    async def process_start(self) -> AsyncIterator[Request]:
        return self.start()

    def crawl(self, request: Request) -> None:
        self.node.scheduler.enqueue_request(request)
        self.schedule()

    async def _read_start(self) -> None:
        assert self._start is not None
        async for request in self._start:
            self.crawl(request)
        self._start = None
        self.schedule()

    async def _beat(self) -> None:
        while not self._closing.is_set():
            self.schedule()
            await asyncio.sleep(self.node.plan.heartbeat)

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
        if self._is_idle and not self._closing.is_set():
            self.node.crawler.signals.send(signals.spider_idle)
            if self._is_idle:
                self.node.host.spawn(self.close_spider_async(reason="finished"))

    @property
    def _is_idle(self) -> bool:
        return not (self._busy or self._start or self.node.scheduler.has_pending_requests())

    async def _process(self, request: Request) -> None:
        """From the downloader, through the spider's callback, to the pipelines."""
        number = number_of(request.url)
        page, site = self.node.plan.pages[number], request.url.split("/")[2]
        self._busy += 1
        with_response = await self._download(request, page)
        self._busy -= 1
        self.open_at[site] -= 1
        self.schedule()
        await asyncio.sleep(0)  # the request is neither with the downloader nor with the spider
        self._busy += 1
        if with_response:
            await self._call_back(number, page)
        self._busy -= 1
        self._slot.inprogress.discard(request)
        self.schedule()

    async def _download(self, request: Request, page: Page) -> bool:
        visit = self.node.run.on_visit(self.node, request.url)
        if page.is_fatal:
            self.node.run.kill(self.node, HEARTBEAT_S)
            await asyncio.sleep(PATIENCE_S)
        try:
            async with asyncio.timeout(page.latency):
                await self._closing.wait()
        except TimeoutError:
            again = request.replace(dont_filter=True)
            fails = visit <= page.failures
            self._results[request] = succeed(again if fails else Response(request.url))
        else:  # the spider closes: half of the requests wait for a permit, and get none any more
            closing = IgnoreRequest("the spider is closing")
            begun = self.node.run.random.random() < 0.5
            self._results[request] = succeed(Response(request.url)) if begun else fail(closing)
        deferred = self.downloader.fetch(request)
        result = deferred.result
        deferred.addErrback(lambda _: None)
        if isinstance(result, Request):
            self.node.run.retried[number_of(request.url)] += result is not request
            self.crawl(result)
        return isinstance(result, Response)

    def _result_of(self, request: Request) -> Deferred[Any]:
        return self._results.pop(request)

    async def _call_back(self, number: int, page: Page) -> None:
        for at in range(max(len(page.links), page.items)):
            await asyncio.sleep(page.callback)
            if at < len(page.links):
                self.crawl(Request(self.node.plan.url_of(page.links[at])))
            if at < page.items:
                await asyncio.sleep(page.pipeline)
                self.node.feed.buffer.append((number, at))

    async def close_spider_async(self, reason: str) -> None:
        if self._closing.is_set():
            return
        self._closing.set()
        for task in self._tasks:
            task.cancel()
        while self._slot.inprogress:  # noqa: ASYNC110 - simulated time
            await asyncio.sleep(0.01)
        self.running = False
        await self.node.scheduler.close(reason)
        self.node.crawler.signals.send(signals.spider_closed)
        self.node.feed.flush()
        self.spider = None
        await self.node.crawler.stop_async()
        self.node.on_closed(reason)

    async def stop_async(self) -> None:
        """A crawler's, for an engine that does not run yet, or no longer."""


# Nodes, and what they are judged by --------------------------------------------------------------


def number_of(url: str) -> int:
    return int(url.rpartition("/")[2])


class _Server(Server):
    """Tells of each request that goes back to the queues, and of each lease that ends."""

    def __init__(self, run: Crawl, publish: Callable[[bytes, bytes], None]) -> None:
        super().__init__(publish, run.on_bug, lambda *_: None)
        self._crawl = run

    def execute(self, command: Sequence[bytes], now: float) -> Any:
        if command[0] != b"EVALSHA":
            return super().execute(command, now)
        arguments = command[3 + int(command[2]) :]
        caller = arguments[2] if len(arguments) > 2 else b""
        had_ended = self.has_ended
        working, taken = self._members("working"), self._members("taken")
        in_flight = Counter(member.partition(b"\0")[0] for member in taken)
        reply = super().execute(command, now)
        lost = working - self._members("working") - {caller}
        if self.has_ended and not had_ended:
            self._crawl.on_end()
        self._crawl.on_budgets(self._budgets)
        for name in lost:
            self._crawl.on_lease_end(name)
        for member in sorted(taken - self._members("taken")):
            name, _, place = member[:-5].partition(b"\0")
            data = self.field(KEYS.key("requests"), place) or self.field(KEYS.key("aside"), place)
            if data is not None:
                number, alone = number_of(json.loads(data)["url"]), in_flight[name] == 1
                self._crawl.on_return(name, number, name != caller, alone)
        match reply:
            case [list(), list(taken_now), _, _, _]:  # of `sync`
                held = (member[:-5].partition(b"\0") for member in self._members("taken"))
                places = {place for name, _, place in held if name == caller}
                self._crawl.on_synced(caller, places.difference(taken_now))
        return reply

    @property
    def has_ended(self) -> bool:
        return self.field(KEYS.key("run"), b"ended") is not None

    @property
    def _budgets(self) -> Budgets:
        pages, of_site = (
            int(self.field(KEYS.key("run"), b"most_" + of) or 0) for of in (b"pages", b"of_site")
        )
        return pages, of_site

    def _members(self, part: str) -> set[bytes]:
        return set(self.fields(KEYS.key(part)))


class CrawlNode:
    """A process that crawls, from when it joins until it ends."""

    def __init__(self, run: Crawl, number: int, new_run: bool) -> None:
        self.run = run
        self.plan = run.plan
        self.number = number
        name, clock_ahead = f"n{number}.{len(run.nodes)}", run.random.uniform(0.0, 1e4)
        self.host = Host(run.world, name, clock_ahead, has_renewal_thread=True)
        self.feed = _Feed(run.written)
        self.engine = _ScrapyEngine(self)
        self.began_at = run.world.now
        self.away_s = 0.5
        self.is_stopped = False  # in order, from outside
        self.closed_at: float | None = None
        self.has_left = False  # and the server has heard it
        self.starved_s = 0.0
        self.oldest_sent: NewRequest | None = None  # which would be sent again
        self.oldest_since = 0.0
        self.visits = 0
        self.fed: Counter[int] = Counter()  # what its `start` has read from the queue
        settings = BaseSettings(
            {
                "REDIS_URL": URL,
                "CRAWL": "sim",
                "CRAWL_LEASE": run.plan.lease,
                "CRAWL_MAX_PAGES": run.budgets[0],
                "CRAWL_MAX_PAGES_PER_SITE": run.budgets[1],
                "CRAWL_START_KEY": START_KEY if run.plan.keyed else None,
                "CRAWL_START_ONCE": False if run.plan.fed else None,
                "SCHEDULER_MEMORY_QUEUE": QUEUES[run.plan.last_first],
                "SCHEDULER_START_MEMORY_QUEUE": QUEUES[not run.plan.last_first],
                "CRAWL_RUN": "new" if new_run else "",
                "CRAWL_VERSION": "1",
                "SCHEDULER_PRIORITY_QUEUE": _SiteQueue,
                "DUPEFILTER_CLASS": RFPDupeFilter,
                "SEMAPHORE_NODE": f"n{number}",  # also of one that is started again
            }
        )
        exporter = SimpleNamespace(slots=[SimpleNamespace(file=self.feed)])
        crawler: Any = SimpleNamespace(
            settings=settings,
            engine=self.engine,
            signals=_Signals(),
            stats=SimpleNamespace(
                inc_value=lambda _: None, get_value=lambda _: None, get_stats=self.stats
            ),
            request_fingerprinter=RequestFingerprinter(),
            get_extension=lambda _: exporter,
            crawling=True,
            stop_async=self.engine.stop_async,
        )
        self.crawler = crawler
        self.crawler.spider = self.spider = Spider("simulated")
        self.spider.crawler, self.spider.settings = self.crawler, settings
        self.scheduler = Scheduler(self.crawler)
        self.scheduler.engine = _Engine(self.crawler)
        assert self.host.renewal_thread is not None
        self.scheduler.renewal_thread = RenewalThread(self.host.renewal_thread)  # type: ignore[assignment]
        connected_by(partial(Wire, run.network, self.host), self.scheduler.client.link.server)

    def stats(self) -> dict[str, int]:
        return {"downloader/request_count": self.visits}

    @property
    def name(self) -> bytes:
        return self.scheduler.client.node.encode()

    @property
    def is_at_work(self) -> bool:
        """Whether it runs, and is to crawl on."""
        return not (self.host.is_dead or self.host.is_frozen or self.engine.is_closing)

    @property
    def is_starved(self) -> bool:
        """Whether it has nothing to do, though there are requests that it could start."""
        server = self.run.server
        sites = {site_of(place) for place in server.fields(KEYS.key("queue"))}
        ahead = self.scheduler.state.prefetch
        return (
            self.is_at_work
            and not (self.engine._slot.inprogress or ahead.ready)
            and not all(map(ahead.is_skipped, sites))
        )

    async def live(self) -> None:
        await self.scheduler.open(self.spider)
        try:
            self.crawler.signals.send(signals.spider_opened)
        except CloseSpider as closing:
            await self.engine.close_spider_async(reason=closing.reason)
        else:
            self.engine.open()

    def on_closed(self, reason: str) -> None:
        """The process ends; whatever has started it does so again if it has failed, until it has
        come after the end.
        """
        self.closed_at = self.run.world.now
        failed = self.crawler.spider is None
        is_judged = reason == "finished" and not self.run.has_lost_data
        for left in left_in(self.scheduler) if is_judged else ():
            self.run.violate(f"MEMORY {self.host.name}: {left}")
        self.run.note(self.host.name, f"ends: {reason}, {failed=}")
        self.has_left = self.run.is_quiet_for(self)
        if not self.has_left:
            self.run.lose_recent(self)
        is_late = self.run.server.has_ended and self.began_at > self.run._ended_at
        if failed and not is_late:
            tries = sum(node.number == self.number for node in self.run.nodes)
            self.run.start_later(self.number, self.away_s * max(1, tries - FEW_STARTS))


class Crawl(Timeline):
    """A world with a server and nodes that crawl, and what was promised them."""

    def __init__(self, plan: CrawlPlan) -> None:
        super().__init__(World(plan.seed + 2))
        self.plan = plan
        self.random = Random(plan.seed + 1)
        self.network = Network(self.world, self.random, plan.lease)
        self.server = self.network.server = _Server(self, self.network.publish)
        self.faults = Misfortune(self.network, COPIES_PER_LEASE)
        self.nodes: list[CrawlNode] = []
        self.written: list[tuple[int, int]] = []  # page and item: in the feeds' files
        self.visits: Counter[int] = Counter()
        self.returned: Counter[int] = Counter()
        self.retried: Counter[int] = Counter()
        self.died_with: Counter[int] = Counter()
        self.died_alone_with: Counter[int] = Counter()
        self.budgets = plan.budgets  # of nodes that are started from now on
        self.to_feed = list(plan.fed)
        self.fed: Counter[int] = Counter()  # how often nodes have read each from the queue
        self._lost_of_fed: Counter[int] = Counter()  # neither a node nor the server may have it
        self._held = self._held_before = plan.budgets  # those of the run
        self._before_them: Counter[str] = Counter()  # pages that there were when they began to hold
        self._operator = Host(self.world, "operator")
        self._before: Any = None  # the server's data before the crawl
        self._to_come = len(plan.faults)  # faults
        self._starting = 0  # nodes that will
        self.has_lost_data = False
        self._overtaken = False  # a call may have come late, or twice
        self._repeated = False  # or was repeated
        self._troubled_until = 0.0
        self._ended_at, self._was_quiet = 0.0, False

    # What is seen -------------------------------------------------------------------------------

    def on_bug(self, text: str) -> None:
        self.violate(f"SCRIPT {text}")

    def on_visit(self, node: CrawlNode, url: str) -> int:
        """How many visits of a page there were, with this one."""
        number = number_of(url)
        self.note(node.host.name, f"asks for {url}")
        self.visits[number] += 1
        node.visits += 1
        # As in Scrapy, where the crawl starts is fetched once more if a page links to it.
        of_users = self.fed[number] + self.plan.keyed.count(number)
        allowed = 1 + (number == 0) + self.returned[number] + self.retried[number] + of_users
        is_unfiltered = self.retried[number] or of_users
        may_repeat = self.has_lost_data or (is_unfiltered and self._repeated)
        if self.visits[number] > allowed and not may_repeat:
            self.violate(f"TWICE page {number}: its request has not gone back")
        return self.visits[number]

    def next_fed(self, node: CrawlNode) -> int | None:
        """Take a page from the queue that `start` reads, if one has come."""
        if self.world.now - BEGIN_S < self.to_feed[0][0]:
            return None
        _, number = self.to_feed.pop(0)
        self.fed[number] += 1
        node.fed[number] += 1
        return number

    def lose_recent(self, node: CrawlNode) -> None:
        """The server may lack the last requests of a node that has ended, or without which the
        crawl has.
        """
        new_requests = node.scheduler.state.new_requests
        unsent = (new for new, _ in new_requests._unsent)
        for new in (*new_requests._sent_before, *new_requests._sent, *unsent):
            self._lost_of_fed[number_of(json.loads(new.data)["url"])] += 1

    def on_budgets(self, budgets: Budgets) -> None:
        """The run goes on with others."""
        if budgets != self._held:
            self._judge_budgets()
            self._held_before, self._before_them = self._held, self._pages()
            self._held = budgets

    def on_return(self, name: bytes, number: int, by_death: bool, alone: bool) -> None:
        self.returned[number] += 1
        self.died_with[number] += by_death
        self.died_alone_with[number] += by_death and alone
        self.note("server", f"page {number} goes back from {name.decode()}: {by_death=}")
        node = self._named(name)
        at_work = [number_of(request.url) for request in node.engine._slot.inprogress]
        is_lost = self._overtaken or self.has_lost_data
        if not by_death and number in at_work and node.is_at_work and not is_lost:
            self.violate(f"GIVEN BACK page {number}, at which {node.host.name} is at work")

    def on_synced(self, name: bytes, places: set[bytes]) -> None:
        """After a node's call, these requests are its own from earlier calls."""
        if not places:
            return
        node = self._named(name)
        held = node.scheduler.state.prefetch.held()
        unreadable = (taken.place for taken in node.scheduler.state._unreadable)
        unknown = places.difference(held.ready, held.started, unreadable)
        if unknown and not (self._overtaken or self.has_lost_data):
            self.violate(f"STRANDED in {node.host.name}: {sorted(unknown)}")

    def on_lease_end(self, name: bytes) -> None:
        node = self._named(name)
        self.note("server", f"{node.host.name} counts as dead")
        # Unless a call has come after it has left, or the server has lost that.
        has_left = node.has_left and not (self._overtaken or self.has_lost_data)
        is_stalled = node.host.is_stalled and bool(node.scheduler.client.run)  # it has joined
        is_there = node.is_at_work or has_left or is_stalled
        if is_there and self.is_quiet_for(node, may_be_stalled=True):
            self.violate(f"LEASE of {node.host.name} has ended, {has_left=}")

    def is_quiet_for(self, node: CrawlNode, may_be_stalled: bool = False) -> bool:
        """Whether nothing has kept this node from the server for long enough, its own callbacks
        aside.
        """
        since = max(self._troubled_until, node.host.thawed_at)
        lost_call_s = 2 * CALL_TIMEOUT_S  # what waits for a reply, then connects
        settled = self.world.now - since > lost_call_s + self.plan.lease
        # Its renewal thread renews nothing at a server that has replaced the one it knows.
        replaced_at = max(self.faults.losses_at, default=-math.inf)
        is_known = replaced_at < node.host.stalled_at - self.plan.lease
        is_stalled = may_be_stalled and node.host.is_stalled and is_known
        return settled and (is_stalled or not node.host.is_frozen)

    def on_end(self) -> None:
        self._ended_at = self.world.now
        self._was_quiet = all(map(self.is_quiet_for, self.nodes))
        for node in self.nodes:
            if not (_is_over(node) or self.is_quiet_for(node)):
                self.lose_recent(node)

    def _named(self, name: bytes) -> CrawlNode:
        return next(node for node in self.nodes if node.name == name)

    # The run ------------------------------------------------------------------------------------

    def run(self) -> Result:
        try:
            self._crawl()
        finally:
            self.world.end()
        passed = self.world.now - BEGIN_S
        return Result(
            self.plan,  # type: ignore[arg-type]
            self.violations,
            self.log,
            passed,
            self.server.calls,
            self.visits.total(),
        )

    def _crawl(self) -> None:
        plan = self.plan
        if plan.is_second_run:
            self._operate(self._end_a_run)
            self.world.run(self.world.now + 30.0)
        for line, number in enumerate(plan.keyed):
            text = json.dumps({"url": plan.url_of(number), "meta": {"line": line}})
            self.server.execute([b"SADD", START_KEY.encode(), text.encode()], self.world.now)
        self._before = self.server.snapshot()
        for number in range(plan.nodes):
            self._start(number, new_run=plan.is_second_run)
        for fault in plan.faults:
            self.world.after(fault.at, partial(self._strike, fault))
        self.faults.copy_while(lambda: self._to_come > 0)
        self._wait_for_end()
        for _ in range(3):
            if not self._judge_aside() or self.violations:
                break
            self._operate(self._retry)
            self.world.run(self.world.now + 1.0)
            self._start(0)
            self._wait_for_end()
        if not self.violations:
            self._judge_end()
        if self.plan.comes_again and not self.violations:
            self._crawl_again()

    def _crawl_again(self) -> None:
        """Nothing of a run that has ended counts in the next one: it fetches everything anew."""
        for counts in (self.visits, self.returned, self.retried, self.died_with, self._before_them):
            counts.clear()
        self.written.clear()
        self.nodes.clear()
        self.budgets = self._held = self._held_before = self.plan.budgets
        self.has_lost_data = self._overtaken = self._repeated = False
        for number in range(self.plan.nodes):
            self._start(number, new_run=True)
        self._wait_for_end()
        if not self.violations:
            self._judge_end()

    async def _end_a_run(self, client: CrawlClient) -> None:
        await client.join()
        await client.sync([NewRequest(Places().new_place("a", 0), b"{}")])
        (page,) = (await client.sync(demand=Demand(1, 1))).taken
        page.outcome = Outcome.PAGE
        await client.idle([page])

    async def _retry(self, client: CrawlClient) -> None:
        await client.retry()

    def _operate(self, act: Callable[[CrawlClient], Any]) -> None:
        async def do() -> None:
            client = CrawlClient(CrawlSettings(URL, "sim", "operator", lease=self.plan.lease))
            connected_by(partial(Wire, self.network, self._operator), client.link.server)
            await act(client)
            await client.link.close()

        self._operator.spawn(do())

    def _start(self, number: int, new_run: bool = False) -> None:
        node = CrawlNode(self, number, new_run)
        self.nodes.append(node)
        node.host.spawn(node.live())

    def start_later(self, number: int, seconds: float) -> None:
        def start() -> None:
            self._starting -= 1
            self._start(number)

        self._starting += 1
        self.world.after(seconds, start)

    def kill(self, node: CrawlNode, away_s: float) -> None:
        """End its process, and start it again later."""
        self.note(node.host.name, "is killed")
        self.lose_recent(node)
        node.host.kill()
        self.network.break_all(node.host)
        self.start_later(node.number, away_s)

    def _wait_for_end(self) -> None:
        patience = self.world.now + PATIENCE_S
        # What an eviction took is put back when no node works.
        is_evicted = any(fault.kind == "evict" for fault in self.plan.faults)
        while not self.violations and (self._to_come or not self._is_over):
            if self.world.now > patience:
                left = [node.host.name for node in self.nodes if not _is_over(node)]
                self.violate(f"STUCK {left}")
                return
            self.world.run(self.world.now + LOOK_S)
            for node in self.nodes:
                is_held_up = self.plan.is_limited or is_evicted
                starves = not is_held_up and self.is_quiet_for(node) and node.is_starved
                node.starved_s = node.starved_s + LOOK_S if starves else 0.0
                if node.starved_s > PROMPT_S:
                    self.violate(f"STARVED {node.host.name}")
                self._judge_sent(node)

    @property
    def _is_over(self) -> bool:
        return not self._starting and all(map(_is_over, self.nodes))

    def _judge_sent(self, node: CrawlNode) -> None:
        """What was sent is kept for two checks of the server."""
        state = node.scheduler.state
        new_requests = state.new_requests
        oldest = next(iter([*new_requests._sent_before, *new_requests._sent]), None)
        is_heard = node.is_at_work and self.is_quiet_for(node)
        if oldest is not node.oldest_sent or not is_heard:
            node.oldest_sent, node.oldest_since = oldest, self.world.now
        elif oldest is not None and self.world.now > node.oldest_since + 3 * self.plan.lease:
            self.violate(f"MEMORY {node.host.name}: {oldest} is kept")
            node.oldest_since = self.world.now

    # Judgement ----------------------------------------------------------------------------------

    def _judge_aside(self) -> bool:
        """Whether any dead letters are not fatal. Three nodes must have died with each, one
        of them while it did nothing else.
        """
        found = []
        for place in self.server.fields(KEYS.key("aside")):
            number = number_of(json.loads(self.server.field(KEYS.key("aside"), place))["url"])
            found.append(self.plan.pages[number].is_fatal)
            if self.died_with[number] < 3 or not self.died_alone_with[number]:
                self.violate(f"ASIDE page {number}, with which {self.died_with[number]} nodes died")
        return not all(found)

    def _judge_end(self) -> None:
        self.world.run(self.world.now + 2 * HEARTBEAT_S)
        plan, written = self.plan, Counter(self.written)
        reachable = plan.reachable(self._lost_of_fed)
        for number in sorted(reachable) if not plan.is_limited else ():
            for item in range(plan.pages[number].items):
                if not written[number, item]:
                    self.violate(f"LOST item {item} of page {number}")
        for (number, item), count in sorted(written.items()):
            if count > self.visits[number]:
                self.violate(f"ITEM {item} of page {number}: {count} times")
        self._judge_budgets()
        most, of_site = plan.budgets
        if most and not (self.has_lost_data or of_site or self._held != plan.budgets):
            visits = self.visits.total() - self.retried.total()
            if visits < min(most, len(reachable)):
                self.violate(f"MAX_PAGES {most}: only {visits}")
        kept = [KEYS.key("run"), KEYS.key("stats")]
        if self.server.fields(KEYS.key("aside")):
            kept += [KEYS.key(part) for part in ("aside", "seen", "budgets")]
        for key, left_ms in sorted(self.server.keys_left()):
            if left_ms is None or key not in kept:
                self.violate(f"LEFT {key.decode()}: {left_ms}")
        for node in self.nodes:
            for error in node.host.errors:
                self.violate(f"ERROR {node.host.name}: {error}")
            left = [*node.host.loop.left, *self.network.connections_of(node.host)]
            if left and not node.host.is_dead:
                self.violate(f"LEFT in {node.host.name}: {left}")
            is_held_up = node.is_stopped or node.host.is_dead or node.began_at > self._ended_at
            is_late = (node.closed_at or PATIENCE_S) > self._ended_at + PROMPT_S
            if is_late and self._was_quiet and not is_held_up:
                self.violate(f"LATE {node.host.name}: the crawl ended at {self._ended_at:.3f}")

    def _pages(self) -> Counter[str]:
        """The pages of all, and of each site; a visit that has ended without one, or is to be made
        again, is none.
        """
        found: Counter[str] = Counter()
        for number, page in enumerate(self.plan.pages):
            again = self.returned[number] + self.retried[number]
            for name in ("", page.site):
                found[name] += max(0, self.visits[number] - again)
        return found

    def _judge_budgets(self) -> None:
        """Nothing has more pages than it may have, or had before these budgets began to hold. The
        pages of a site that had no budget then were not counted.
        """
        if self.has_lost_data:
            return
        for name, count in sorted(self._pages().items()):
            most, before = self._held[bool(name)], self._before_them[name]
            was_counted = not name or self._held_before[1] > 0
            if most and count > (max(most, before) if was_counted else most + before):
                self.violate(f"BUDGET of {name or 'all'}: {count} pages, {most} are allowed")

    # Faults -------------------------------------------------------------------------------------

    def _strike(self, fault: Fault) -> None:
        if self._is_over or self.server.has_ended:  # a loss of data would not be noticed any more
            self._to_come -= 1
            return
        self.note("fault", f"{fault.kind} node {fault.node}, {fault.seconds:g} s: {fault.of}")
        if fault.kind in TROUBLE:
            self._troubled_until = max(self._troubled_until, self.world.now + fault.seconds)
            if self.world.now < self._ended_at + PROMPT_S:
                self._was_quiet = False
        self._overtaken |= fault.kind in OVERTAKING
        self._repeated |= fault.kind in REPEATING
        if fault.kind in LOSING or fault.of == "empty":
            self.has_lost_data = True
            for node in filter(_is_over, self.nodes):  # it cannot send anything again
                self._lost_of_fed += node.fed
        at_work = [node for node in self.nodes if node.is_at_work and node.number == fault.node]
        end: End | None = None
        if fault.kind in OF_NODES_AT_WORK:
            end = self._strike_node(fault, at_work[0]) if at_work else None
        elif fault.kind == "add":
            self._start(fault.node)
        elif fault.kind == "budgets":
            self._change_budgets(fault)
        elif fault.kind == "go back":
            self._go_back()
        elif fault.kind == "evict":
            self.server.evict_key(KEYS.key(fault.of))
        else:
            end = self.faults.strike(fault)
        self.world.after(fault.seconds, partial(self._end_fault, fault, end))

    def _end_fault(self, fault: Fault, end: End | None) -> None:
        self._to_come -= 1
        if end is not None:
            self.note("fault", f"{fault.kind} node {fault.node} is over")
            end()

    def _change_budgets(self, fault: Fault) -> None:
        """Stop all nodes; what starts them again gives them others. The first ones wait for the
        last of the old ones to leave.
        """
        self.budgets = fault.of
        for node in self.nodes:
            if node.is_at_work and not _is_over(node):
                self._strike_node(replace(fault, kind="close"), node)

    def _strike_node(self, fault: Fault, node: CrawlNode) -> End | None:
        """Returns what ends it, if it does not end by itself."""
        match fault.kind:
            case "kill":
                self.kill(node, fault.seconds)
            case "close" | "cut off":
                node.away_s, node.is_stopped = fault.seconds, True
                node.crawler.crawling = False
                engine, stop = node.engine, node.crawler.stop_async
                is_open = engine.is_open
                node.host.spawn(engine.close_spider_async(reason="shutdown") if is_open else stop())
                if fault.kind == "cut off":  # after a grace period
                    self.world.after(GRACE_S, partial(self._cut_off, node, fault.seconds))
            case _:
                return self.faults.strike_host(fault, node.host)
        return None

    def _cut_off(self, node: CrawlNode, away_s: float) -> None:
        if not _is_over(node):
            self.kill(node, away_s)

    def on_log(self, record: logging.LogRecord) -> None:
        """Note what a node logs. None of the faults is an error of a node's."""
        text = record.getMessage()
        self.note("log", text)
        expected: tuple[str, ...] = (
            "The crawl 'sim' has ended without",
            "The server has lost requests of the crawl 'sim'",
            "The nodes of the crawl 'sim' have other budgets",
            "redis://simulated:6379/0 leads to two servers",
        )
        if self.has_lost_data:  # a node without start requests may come first
            expected += ("The crawl 'sim' has fetched nothing",)
        if record.levelno >= logging.ERROR and not text.startswith(expected):
            self.violate(f"LOGGED {text} {(record.exc_info or '  ')[1]!r}")

    def _go_back(self) -> None:
        """A server with data from before the crawl takes over."""
        self.server.begin_incarnation(self._before)
        self._before = self.server.snapshot()
        self.network.break_all()


def _is_over(node: CrawlNode) -> bool:
    return node.host.is_dead or node.closed_at is not None


@contextmanager
def _in_place(crawl: Crawl) -> Iterator[None]:
    """Logs go to the run, and a scheduler's work is awaited without a reactor."""
    with logs_noted(crawl.on_log), pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "deferred_from_coro", lambda work: work)
        for module in (new_requests, node_state):
            patch.setattr(module, "MAX_NEW_REQUESTS", crawl.plan.most_new)
        patch.setattr(prefetch, "PREFETCH_TARGET", crawl.plan.most_ready)
        patch.setattr(session, "STARTS_PER_CALL", crawl.plan.most_new)
        yield


def run(plan: CrawlPlan) -> Result:
    """Carry a plan out, in a world of its own."""
    crawl = Crawl(plan)
    with _in_place(crawl):
        return crawl.run()
