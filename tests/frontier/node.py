"""A scheduler whose engine is the test's own, on the reactor's loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import pytest
from redis import Redis
from scrapy import Request, Spider, signals
from scrapy.exceptions import DontCloseSpider
from scrapy.utils.test import get_crawler

from semaphore_middleware.frontier.client import Answer, SharedCrawl, Wish
from semaphore_middleware.frontier.scheduler import Scheduler
from tests.frontier.outside import OutsideCrawl
from tests.support.crawls import until


@dataclass(frozen=True)
class Call:
    """What a node has said to the server, and heard the answer to."""

    entries: int
    done: int
    wish: Wish


@contextmanager
def calls_noted() -> Iterator[list[Call]]:
    calls: list[Call] = []
    exchange = SharedCrawl.exchange

    async def noted(
        crawl: SharedCrawl, entries: Any, done: Any, wish: Wish, works: bool = False
    ) -> Answer:
        answer = await exchange(crawl, entries, done, wish, works)
        calls.append(Call(len(entries), len(done), wish))
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SharedCrawl, "exchange", noted)
        yield calls


def urls(site: str, count: int) -> list[str]:
    return [f"http://{site}/{number}" for number in range(count)]


class SitesQueue:
    """A queue that knows of sites and passes over full ones, as the add-on's does."""

    full: ClassVar[set[str]] = set()

    @classmethod
    def from_crawler(cls, *_: object, **__: object) -> Self:
        return cls()

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def push(self, request: Request) -> None:
        self._requests.append(request)

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


class Engine:
    """As much of Scrapy's as the scheduler sees."""

    def __init__(self) -> None:
        self.running = True
        self.woken = asyncio.Event()
        self._slot = SimpleNamespace(
            inprogress=set(), nextcall=SimpleNamespace(schedule=self.woken.set)
        )


class Node:
    """What the engine does with a scheduler, step by step."""

    def __init__(self, client: Redis, engine: Engine, scheduler: Scheduler) -> None:
        self.client = client
        self.engine = engine
        self.scheduler = scheduler
        self.dropped: list[str] = []
        scheduler.crawler.signals.connect(self._on_drop, signals.request_dropped)

    def _on_drop(self, request: Request) -> None:
        self.dropped.append(request.url)

    def produce(self, *urls: str, **fields: Any) -> None:
        for url in urls:
            assert self.scheduler.enqueue_request(Request(url, **fields))

    async def begin(self) -> Request:
        """The next request; the engine asks for it when it is woken, and not before."""
        while not (request := self.begin_now()):
            await self.woken()
        return request

    def begin_now(self) -> Request | None:
        self.engine.woken.clear()
        request = self.scheduler.next_request()
        if request is not None:
            self.engine._slot.inprogress.add(request)
        return request

    def begin_all(self) -> int:
        """All that is at hand; how many these were."""
        return sum(1 for _ in iter(self.begin_now, None))

    async def woken(self) -> None:
        async with asyncio.timeout(10):
            await self.engine.woken.wait()

    def finish(self, *requests: Request) -> None:
        self.engine._slot.inprogress.difference_update(requests)

    async def finds_nothing(self) -> None:
        """Begin what there is, until the engine may take the spider for idle."""
        self.begin_all()
        while self.scheduler.has_pending_requests():
            await self.woken()
            self.begin_all()

    async def idles(self) -> None:
        """What the engine does while its spider is idle, until it may close."""
        while True:
            await self.finds_nothing()
            try:
                self.scheduler._spider_idle()
            except DontCloseSpider:
                await self.woken()
            else:
                return

    # What the server has ------------------------------------------------------------------------

    def key(self, part: str) -> bytes:
        return self.scheduler.crawl.key(part)

    @property
    def unfinished(self) -> int:
        return self.client.hlen(self.key("requests"))

    @property
    def in_hand(self) -> int:
        return self.client.hlen(self.key(f"hand:{self.scheduler.crawl.node}"))

    async def has_unfinished(self, count: int) -> None:
        await until(lambda: self.unfinished == count)

    @property
    def ahead(self) -> int:
        """Requests that were taken and not begun."""
        return self.in_hand - len(self.engine._slot.inprogress)

    def other(self) -> OutsideCrawl:
        other = OutsideCrawl(self.client, "books", "other")
        other.joins()
        return other


@asynccontextmanager
async def joined(client: Redis, **settings: Any) -> AsyncIterator[Node]:
    url = f"unix://{client.connection_pool.connection_kwargs['path']}"
    ours = {"REDIS_URL": url, "CRAWL": "books", "SCHEDULER_PRIORITY_QUEUE": SitesQueue}
    crawler = get_crawler(Spider, {**ours, **settings})
    engine = Engine()
    crawler.engine = engine  # type: ignore[assignment]
    crawler.spider = Spider.from_crawler(crawler, name="books")
    crawler.crawling = True
    scheduler = Scheduler.from_crawler(crawler)
    await scheduler.open(crawler.spider).asFuture(asyncio.get_running_loop())
    try:
        yield Node(client, engine, scheduler)
    finally:
        await scheduler.close("finished").asFuture(asyncio.get_running_loop())
        SitesQueue.full.clear()
