"""Requests of a full site stay in the scheduler, and requests of other sites go ahead of them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

import pytest
from scrapy import Request, signals
from scrapy.core.scheduler import BaseScheduler, Scheduler
from scrapy.crawler import Crawler
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future

from semaphore_middleware import FairSemaphore
from semaphore_middleware.observers import stats
from semaphore_middleware.scrapy import admission, downloads
from semaphore_middleware.scrapy.hooks import SemaphorePriorityQueue
from tests.support.crawls import (
    Crawl,
    Patch,
    holding,
    more_hosts,
    pages,
    set_options,
    taken,
    waiting,
)
from tests.support.nodes import Outside, eventually
from tests.support.servers import RedisServer
from tests.support.site import Site
from tests.support.times import ENDLESS_S
from tests.support.visits import Fetches, Visits

FULL, FREE = "127.0.0.1", "localhost"


def of_sites(site: Site, path: str, sites: int, each: int) -> list[Request]:
    """Requests to one host, in scopes of their own as if they went to several sites."""
    return [
        Request(site.url(f"{path}{number}/{n}"), meta={"semaphore_scope": f"site{number}"})
        for n in range(each)
        for number in range(sites)
    ]


def of_free(site: Site) -> int:
    """How many pages of the free host have been asked for."""
    return sum(visit.host == FREE and visit.path.startswith("/page") for visit in site.visits)


def scheduler_of(crawl: Crawl) -> Scheduler:
    slot = crawl.crawler.engine._slot
    assert slot is not None
    scheduler = slot.scheduler
    assert isinstance(scheduler, Scheduler)
    return scheduler


async def test_a_full_site_stays_on_disk(server: RedisServer, site: Site, tmp_path: Path) -> None:
    full, free = pages(site, 20, "/slow/", FULL), pages(site, 20, "/page/", FREE)
    crawl = Crawl(server, *full, *free, CONCURRENT_REQUESTS=2, JOBDIR=str(tmp_path))
    await site.until(lambda: of_free(site) == 20)
    assert site.hosts[FULL].now == 1
    on_disk = scheduler_of(crawl).dqs
    assert on_disk is not None
    await eventually(lambda: len(on_disk) == 18)  # one is on the wire, and one waits
    await crawl.gave_back(40, site)


async def test_queue_names_full_sites(server: RedisServer, site: Site) -> None:
    full = pages(site, 5, "/slow/", FULL)
    crawl = Crawl(server, *full, SEMAPHORE_SCOPES=["domain"])
    await eventually(lambda: waiting(server) == 1)
    queue = scheduler_of(crawl).mqs
    assert isinstance(queue, SemaphorePriorityQueue)

    def name_of(scope: str | list[str]) -> str:
        return queue.site_of(Request("http://a/", meta={"semaphore_scope": scope}))

    domain = f"domain:{FULL}"
    assert queue.site_of(full[0]) == name_of(domain) == domain
    assert queue.site_of(Request("http://a.example.com/")) == "domain:example.com"
    assert queue.is_full(domain)
    assert not queue.is_full("domain:example.com")
    odd = [name_of(scope) for scope in ("x" * 500, "x" * 499 + "y", "é" * 51, "a\n", "\ud800")]
    assert len(set(odd)) == 5
    assert all(len(name.encode()) <= 100 and name.isprintable() for name in odd)
    several = [f"{'é' * 40}{n}" for n in range(10)]  # of two bytes each
    assert name_of(several) == " + ".join(several[:2])
    await crawl.gave_back(5, site)
    assert not queue.is_full(domain)


class FirstInFirstOut(BaseScheduler):
    """A scheduler with a queue of its own, which other nodes could share."""

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        self.queue: deque[Request] = deque()
        self.most = 0
        """The most requests that its node had taken and not finished."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    def has_pending_requests(self) -> bool:
        return bool(self.queue)

    def enqueue_request(self, request: Request) -> bool:
        self.queue.append(request)
        return True

    def next_request(self) -> Request | None:
        if not self.queue:
            return None
        assert self.crawler.engine is not None
        self.most = max(self.most, len(self.crawler.engine.downloader.active) + 1)
        return self.queue.popleft()


async def test_a_scheduler_that_cannot_pass_over_full_sites_is_not_emptied(
    server: RedisServer, site: Site
) -> None:
    requests = pages(site, 20, "/slow/", FULL)
    crawl = Crawl(server, *requests, SCHEDULER=FirstInFirstOut, CONCURRENT_REQUESTS=4)
    await site.until(lambda: site.now == 1)
    slot = crawl.crawler.engine._slot
    assert slot is not None
    scheduler = slot.scheduler
    assert isinstance(scheduler, FirstInFirstOut)
    await crawl.gave_back(20, site)
    assert scheduler.most == 4


async def test_most_that_wait(server: RedisServer, site: Site, monkeypatch: Patch) -> None:
    monkeypatch.setattr(admission, "MAX_WAITING", 5)
    async with taken(server, *(f"site{number}" for number in range(8))) as release:
        crawl = Crawl(server, *of_sites(site, "/page/", 8, each=1))
        await eventually(lambda: waiting(server) == 5)
        assert len(crawl.crawler.engine.downloader.active) == 5
        release()
        await crawl.finished()
    assert len(site.arrivals) == 8


@pytest.mark.parametrize("most", [2, 0], ids=["2", "no limit"])
async def test_slots_after_a_wait(server: RedisServer, site: Site, most: int) -> None:
    at_once = most or 6
    async with taken(server, *(f"site{number}" for number in range(6))) as release:
        crawl = Crawl(server, *of_sites(site, "/slow/", 6, each=3), CONCURRENT_REQUESTS=most)
        await eventually(lambda: waiting(server) == 6)
        release()
        await site.until(lambda: site.now == at_once)
        # Those without a slot go to other nodes.
        await eventually(lambda: holding(server) == at_once)
        await crawl.finished(site)
    assert site.hosts[FULL].most == at_once
    assert len(site.arrivals) == 18
    assert server.members() == {}


async def test_no_slot_by_priority(server: RedisServer, site: Site, monkeypatch: Patch) -> None:
    """Otherwise a node that always has other work would never use them."""
    monkeypatch.setattr(downloads, "PERMIT_IDLE_TIMEOUT_S", ENDLESS_S)
    monkeypatch.setattr(stats, "WRITE_INTERVAL_S", 0.01)
    async with FairSemaphore(server.url) as other:
        held = [await other.acquire(f"site{number}", 1) for number in range(4)]
        requests = of_sites(site, "/slow/", sites=4, each=1)
        for request, priority in zip(requests, (3, 0, 1, 2), strict=True):
            request.priority = priority
        rest = of_sites(site, "/slow/more", sites=4, each=3)
        crawl = Crawl(server, *requests, *rest, CONCURRENT_REQUESTS=1)
        await eventually(lambda: waiting(server) == 4)
        for permit in held:
            permit.release()
            await site.until(lambda: site.now == 1)
        await eventually(lambda: crawl.stat("semaphore/acquired") == 4)
        await crawl.finished(site)
    assert site.arrivals[:4] == [f"/slow/{number}/0" for number in (0, 3, 2, 1)]
    assert site.hosts[FULL].most == 1
    assert len(site.arrivals) == 16


async def test_no_slot_for_another(
    server: RedisServer, outside: Outside, site: Site, monkeypatch: Patch
) -> None:
    """This node's next request has no slot for the permit, either, but another node may."""
    monkeypatch.setattr(downloads, "PERMIT_IDLE_TIMEOUT_S", 0.05)
    set_options(monkeypatch, reuse_window=ENDLESS_S)
    other, third = (FairSemaphore(server.url, job=Visits.name) for _ in range(2))
    async with other, third:
        held = [await other.acquire(FULL, 2) for _ in range(2)]
        requests = pages(site, 2, "/slow/", FULL)
        crawl = Crawl(server, *requests, limit=2, CONCURRENT_REQUESTS=1)
        await eventually(lambda: waiting(server))
        active = crawl.crawler.engine.downloader.active
        await eventually(lambda: len(active) == 2)
        crawl.crawler.engine.crawl(*pages(site, 1, "/slow/", FREE))
        await site.until(lambda: site.now == 1)
        waiter = asyncio.create_task(third.acquire(FULL, 2))
        await eventually(lambda: third.node in outside.waiting(FULL))
        held[0].release()
        permit = await waiter
        site.let_go()
        permit.release()
        held[1].release()
        await crawl.finished()
    assert len(site.arrivals) == 3


async def test_woken_to_wait_again_lets_others_start(server: RedisServer, site: Site) -> None:
    """It waited for a slot, another node has taken its site, and nothing is on the wire."""
    async with FairSemaphore(server.url) as other:
        held = [await other.acquire(f"site{number}", 1) for number in range(4)]
        crawl = Crawl(server, *of_sites(site, "/slow/", sites=4, each=1), CONCURRENT_REQUESTS=1)
        await eventually(lambda: waiting(server) == 4)
        for permit in held:
            permit.release()
        await site.until(lambda: site.now == 1)
        await eventually(lambda: holding(server) == 1)
        at_work = f"site{site.arrivals[0].split('/')[2]}"
        others = [name for name in ("site0", "site1", "site2", "site3") if name != at_work]
        taken = [await other.acquire(name, 1) for name in others[:2]]
        site.let_go()
        await site.until(lambda: len(site.arrivals) == 2)
        for permit in taken:
            permit.release()
        await crawl.finished()
    assert site.hosts[FULL].most == 1
    assert len(site.arrivals) == 4


async def test_work_without_permits(server: RedisServer, site: Site, monkeypatch: Patch) -> None:
    """It counts: otherwise requests that waited for permits would all start, too."""
    monkeypatch.setattr(downloads, "PERMIT_IDLE_TIMEOUT_S", 0.05)
    async with taken(server, FULL, limit=2) as release:
        full = [one.replace(priority=1) for one in pages(site, 2, "/slow/", FULL)]
        requests, limits = [*full, *pages(site, 4, "/slow/", FREE)], {FREE: None}
        crawl = Crawl(server, *requests, limit=2, CONCURRENT_REQUESTS=2, SEMAPHORE_LIMITS=limits)
        await site.until(lambda: site.hosts[FREE].now == 2)
        await eventually(lambda: server.members()[FULL] == (2, 2))
        release()
        await eventually(lambda: FULL not in server.members())  # granted, and given back
        assert site.now == 2
    await crawl.finished(site)
    assert len(site.arrivals) == 6
    assert sum(host.most for host in site.hosts.values()) <= 4


async def test_robots_txt_of_full_sites_take_no_room(server: RedisServer, site: Site) -> None:
    """Pages of other scopes that wait for a robots.txt do not, either."""
    hosts = await more_hosts(site, 8)
    full = [Request(site.url(f"/page/{n}", host)) for n in range(3) for host in hosts]
    other_scopes = [
        request.replace(url=site.url(f"/page/other/{n}", hosts[0]))
        for n, request in enumerate(of_sites(site, "/page/", 8, each=1))
    ]
    requests = [*full, *other_scopes, *pages(site, 30, "/page/", FREE)]
    async with taken(server, *hosts) as release:
        crawl = Crawl(server, *requests, ROBOTSTXT_OBEY=True, CONCURRENT_REQUESTS=4)
        await site.until(lambda: of_free(site) == 30)
        assert {visit.host for visit in site.visits} == {FREE}
        release()
        await crawl.finished()
    assert len(site.arrivals) == 8 * 4 + 8 + 31
    assert server.members() == {}


class NeedsToken(Fetches):
    """Fetches a page of the full site before each request to another site, in several ways."""

    async def process_request(self, request: Request) -> None:
        if url := request.meta.get("token"):
            fetching = self.fetch(url)
            match request.meta["way"]:
                case "awaited":
                    await fetching
                case "in a task":
                    await asyncio.gather(fetching)
                case "as a Deferred":
                    await maybe_deferred_to_future(deferred_from_coro(fetching))


@pytest.mark.parametrize("way", ["awaited", "in a task", "as a Deferred"])
async def test_no_room_behind_a_full_site(server: RedisServer, site: Site, way: str) -> None:
    token = {"token": site.url("/page/token"), "way": way}
    full = [one.replace(meta={**one.meta, **token}) for one in of_sites(site, "/page/", 8, 1)]
    async with taken(server, FULL) as release:
        requests = [*full, *pages(site, 20, "/page/", FREE)]
        crawl = Crawl(server, *requests, middlewares={NeedsToken: 10}, CONCURRENT_REQUESTS=4)
        await site.until(lambda: of_free(site) == 20)
        release()
        await crawl.finished()
    assert len(site.arrivals) == 8 + 8 + 20
    assert site.most <= 4


async def test_work_behind_a_robots_txt_on_its_way(server: RedisServer, site: Site) -> None:
    site.robots_is_slow = True
    requests = [Request(site.url("/page/", host)) for host in await more_hosts(site, 10)]
    crawl = Crawl(server, *requests, ROBOTSTXT_OBEY=True, CONCURRENT_REQUESTS=4)
    await site.until(lambda: site.now == 4)
    assert len(crawl.crawler.engine.downloader.active) == 8  # four pages, and what they need
    await crawl.gave_back(20, site)


class Lazy(Visits):
    """Scrapy's documented recipe for start requests that are read only when they are needed."""

    unanswered = 0
    most = 0

    async def start(self) -> AsyncIterator[Request]:
        assert self.crawler.engine is not None
        # Before Scrapy 2.18, callbacks run 0.1 s after the response.
        self.crawler.signals.connect(self.answered, signals.response_received)
        for request in self.requests:
            if self.crawler.engine.needs_backout():
                await self.crawler.signals.wait_for(signals.scheduler_empty)
            self.unanswered += 1
            self.most = max(self.most, self.unanswered)
            yield request

    def answered(self) -> None:
        self.unanswered -= 1


async def test_lazy_starts_are_read_when_they_are_needed(server: RedisServer, site: Site) -> None:
    crawl = Crawl(server, *pages(site, 60), spider=Lazy, CONCURRENT_REQUESTS=16)
    await crawl.finished()
    assert isinstance(crawl.spider, Lazy)
    assert len(crawl.spider.responses) == 60
    assert crawl.spider.most == 16
