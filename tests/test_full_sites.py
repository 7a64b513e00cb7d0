"""A full site holds up no one: its requests stay in the scheduler, and other sites' go ahead."""

from __future__ import annotations

from pathlib import Path

from scrapy import Request
from scrapy.core.scheduler import Scheduler

from semaphore_middleware.queue import SemaphorePriorityQueue
from tests.crawls import Crawl, asyncio_test, until, waiting
from tests.servers import RedisServer
from tests.site import Site

FULL, FREE = "127.0.0.1", "localhost"


def pages(site: Site, path: str, host: str, count: int) -> list[Request]:
    return [Request(site.url(f"{path}{host}/{n}", host)) for n in range(count)]


@asyncio_test
async def test_requests_of_a_full_site_hold_up_no_other_site(
    server: RedisServer, site: Site
) -> None:
    full, free = pages(site, "/slow/", FULL, 30), pages(site, "/page/", FREE, 30)
    crawl = Crawl(server, *full, *free, CONCURRENT_REQUESTS=2)

    await site.until(lambda: sum(FREE in path for path in site.arrivals) == 30)
    assert site.records[FULL].now == 1
    site.let_go()
    await crawl.gave_back(60, site)


@asyncio_test
async def test_a_scheduler_can_ask_its_queue_what_is_full(server: RedisServer, site: Site) -> None:
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
async def test_waiters_do_not_grow_with_the_queue(server: RedisServer, site: Site) -> None:
    crawl = Crawl(server, *pages(site, "/slow/", FULL, 100), limit=3)
    await site.until(lambda: site.now == 3)
    await until(lambda: waiting(server) == 3)

    assert len(crawl.crawler.engine.downloader.active) == 6
    site.let_go()
    await crawl.gave_back(100, site)


@asyncio_test
async def test_under_jobdir_a_full_site_s_requests_stay_on_disk(
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
async def test_requests_behind_the_robots_txt_of_a_full_site_count_as_waiting(
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
