"""Requests of a full site stay in the scheduler, and requests of other sites go ahead of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from scrapy import Request
from scrapy.core.scheduler import Scheduler

from semaphore_middleware import FairSemaphore
from semaphore_middleware.scrapy import concurrency
from semaphore_middleware.scrapy.priority_queue import SemaphorePriorityQueue
from tests.support.crawls import Crawl, asyncio_test, holding, until, waiting
from tests.support.servers import RedisServer
from tests.support.site import Site

FULL, FREE = "127.0.0.1", "localhost"


def pages(site: Site, path: str, host: str, count: int) -> list[Request]:
    return [Request(site.url(f"{path}{host}/{n}", host)) for n in range(count)]


@asyncio_test
async def test_a_full_site_does_not_hold_up_other_sites(server: RedisServer, site: Site) -> None:
    full, free = pages(site, "/slow/", FULL, 30), pages(site, "/page/", FREE, 30)
    crawl = Crawl(server, *full, *free, CONCURRENT_REQUESTS=2)

    await site.until(lambda: sum(FREE in path for path in site.arrivals) == 30)
    assert site.hosts[FULL].now == 1
    site.let_go()
    await crawl.gave_back(60, site)


@asyncio_test
async def test_queue_tells_scheduler_which_sites_are_full(server: RedisServer, site: Site) -> None:
    full = pages(site, "/slow/", FULL, 30)
    crawl = Crawl(server, *full, SEMAPHORE_SCOPE="registered_domain")
    await until(lambda: waiting(server) == 1)
    scheduler = crawl.crawler.engine.scheduler
    assert isinstance(scheduler, Scheduler)
    queue = scheduler.mqs
    assert isinstance(queue, SemaphorePriorityQueue)

    assert queue.site_of(full[0]) == FULL
    assert queue.site_of(Request("http://a.example.com/")) == "example.com"
    assert queue.site_of(Request("http://a/", meta={"semaphore_scope": FULL})) == FULL
    assert queue.is_full(FULL)
    assert not queue.is_full("example.com")
    site.let_go()
    await crawl.gave_back(30, site)
    assert not queue.is_full(FULL)


@asyncio_test
async def test_waiting_requests_do_not_grow_with_the_queue(server: RedisServer, site: Site) -> None:
    crawl = Crawl(server, *pages(site, "/slow/", FULL, 100), limit=3)
    await site.until(lambda: site.now == 3)
    await until(lambda: waiting(server) == 3)

    assert len(crawl.crawler.engine.downloader.active) == 6
    site.let_go()
    await crawl.gave_back(100, site)


@asyncio_test
async def test_requests_of_a_full_site_stay_on_disk_under_jobdir(
    server: RedisServer, site: Site, tmp_path: Path
) -> None:
    crawl = Crawl(server, *pages(site, "/slow/", FULL, 20), JOBDIR=str(tmp_path))
    await until(lambda: waiting(server) == 1)
    scheduler = crawl.crawler.engine.scheduler
    assert isinstance(scheduler, Scheduler)
    assert scheduler.dqs is not None
    on_disk = scheduler.dqs

    await until(lambda: len(on_disk) == 18)  # one is on the wire, and one waits
    site.let_go()
    await crawl.gave_back(20, site)


@asyncio_test
async def test_requests_that_wait_for_robots_txt_count_as_waiting(
    server: RedisServer, site: Site
) -> None:
    site.robots_is_slow = True
    full = pages(site, "/page/", FULL, 20)
    skipping = {"dont_obey_robotstxt": True}
    free = [Request(site.url(f"/page/free/{n}", FREE), meta=skipping) for n in range(10)]
    crawl = Crawl(server, *full, *free, CONCURRENT_REQUESTS=2, ROBOTSTXT_OBEY=True)

    await site.until(lambda: sum("/page/free/" in path for path in site.arrivals) == 10)
    site.let_go()
    await crawl.gave_back(31, site)


def of_sites(site: Site, path: str, sites: int, each: int) -> list[Request]:
    """Requests to one host, in scopes of their own as if they went to several sites."""
    return [
        Request(site.url(f"{path}{number}/{n}"), meta={"semaphore_scope": f"site{number}"})
        for n in range(each)
        for number in range(sites)
    ]


@asyncio_test
async def test_concurrent_requests_holds_for_requests_that_have_waited(
    server: RedisServer, site: Site
) -> None:
    async with FairSemaphore(server.url) as other:
        held = [await other.acquire(f"site{number}", 1) for number in range(6)]
        crawl = Crawl(server, *of_sites(site, "/slow/", sites=6, each=3), CONCURRENT_REQUESTS=2)
        await until(lambda: waiting(server) == 6)
        for permit in held:
            permit.release()
        await site.until(lambda: site.now == 2)
        await until(lambda: holding(server) == 2)  # permits without a place go to other nodes
        site.let_go()
        await crawl.finished()
    assert site.hosts["127.0.0.1"].most == 2
    assert len(site.arrivals) == 18
    assert server.members() == {}


@asyncio_test
async def test_a_permit_that_finds_no_place_is_used_next(
    server: RedisServer, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a node that always has other work would never use it."""
    monkeypatch.setattr(concurrency, "PERMIT_IDLE_TIMEOUT_S", 600.0)
    async with FairSemaphore(server.url) as other:
        held = [await other.acquire(f"site{number}", 1) for number in range(2)]
        crawl = Crawl(server, *of_sites(site, "/slow/", sites=2, each=5), CONCURRENT_REQUESTS=1)
        await until(lambda: waiting(server) == 2)
        held[0].release()
        await site.until(lambda: site.now == 1)
        held[1].release()
        await until(lambda: holding(server) == 2 and waiting(server) == 0)
        site.let_go()
        await crawl.finished()
    assert [path.split("/")[2] for path in site.arrivals[:2]] == ["0", "1"]
    assert site.hosts["127.0.0.1"].most == 1
    assert len(site.arrivals) == 10


@asyncio_test
async def test_a_permit_that_finds_no_place_is_not_handed_on(
    server: RedisServer, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next request here has no place for it, either, but another node may."""
    monkeypatch.setattr(concurrency, "PERMIT_IDLE_TIMEOUT_S", 0.01)
    async with FairSemaphore(server.url) as other, FairSemaphore(server.url) as third:
        held = [await other.acquire(FULL, 2) for _ in range(2)]
        requests = pages(site, "/slow/", FULL, 2)
        crawl = Crawl(server, *requests, limit=2, CONCURRENT_REQUESTS=1, SEMAPHORE_TURN=4)
        await until(lambda: server.members().get(FULL) == (2, 2))
        crawl.crawler.engine.crawl(*pages(site, "/slow/", FREE, 1))
        await site.until(lambda: site.now == 1)
        waiter = asyncio.create_task(third.acquire(FULL, 2))
        await until(lambda: server.members()[FULL] == (2, 3))
        held[0].release()
        permit = await waiter
        assert server.members()[FULL] == (2, 1)
        site.let_go()
        permit.release()
        held[1].release()
        await crawl.finished()
    assert len(site.arrivals) == 3


@asyncio_test
async def test_a_woken_request_that_must_wait_again_lets_others_start(
    server: RedisServer, site: Site
) -> None:
    """It was parked, another node has taken its site since, and nothing is on the wire."""
    async with FairSemaphore(server.url) as other:
        held = [await other.acquire(f"site{number}", 1) for number in range(4)]
        crawl = Crawl(server, *of_sites(site, "/slow/", sites=4, each=1), CONCURRENT_REQUESTS=1)
        await until(lambda: waiting(server) == 4)
        for permit in held:
            permit.release()
        await site.until(lambda: site.now == 1)
        await until(lambda: holding(server) == 1)
        (at_work,) = {f"site{path.split('/')[2]}" for path in site.arrivals}
        others = [name for name in ("site0", "site1", "site2", "site3") if name != at_work]
        taken = [await other.acquire(name, 1) for name in others[:2]]
        site.let_go()
        await site.until(lambda: len(site.arrivals) == 2)
        for permit in taken:
            permit.release()
        await crawl.finished()
    assert site.hosts["127.0.0.1"].most == 1
    assert len(site.arrivals) == 4


@asyncio_test
async def test_a_request_counts_as_work_until_it_is_told_to_wait(
    server: RedisServer, site: Site
) -> None:
    """Otherwise all that the site's limit allows would leave the scheduler and start at once."""
    crawl = Crawl(server, *pages(site, "/slow/", FULL, 40), limit=20, CONCURRENT_REQUESTS=4)
    await site.until(lambda: site.now == 4)
    assert len(crawl.crawler.engine.downloader.active) == 4
    site.let_go()
    await crawl.gave_back(40, site)
    assert site.hosts[FULL].most == 4
