"""Where each start counts, it is at its grant or not at all, however busy the node is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from scrapy import Request

from semaphore_middleware import FairSemaphore, Limit
from semaphore_middleware.scrapy import throttler
from tests.support.crawls import Crawl, asyncio_test, until
from tests.support.servers import RedisServer
from tests.support.site import Site

SPACED, FREE = "127.0.0.1", "localhost"
DELAY = 0.5
LATE = 0.1  # for what a busy machine may add on the way from the grant to the site


def gaps(site: Site, since: float = 0.0) -> Iterator[float]:
    """Between two starts at the spaced site."""
    times = [v.begin for v in site.visits if v.host == SPACED and v.begin > since]
    return (then - before for before, then in pairwise(times))


def busy_node(server: RedisServer, site: Site, spaced: int, **settings: Any) -> Crawl:
    """A crawl whose places are all taken by pages of a free site, and that also wants another."""
    free = [Request(site.url(f"/take/0.45/{n}", FREE)) for n in range(200)]
    requests = [Request(site.url(f"/page/{n}", SPACED)) for n in range(spaced)]
    return Crawl(server, *free, *requests, limit=4, CONCURRENT_REQUESTS=2, **settings)


@pytest.mark.parametrize(
    "limit",
    [
        {"concurrency": 4, "delay": DELAY, "jitter": 0},
        {"concurrency": 4, "rate": "2/s"},
    ],
)
@asyncio_test
async def test_starts_of_a_busy_node_are_as_far_apart_as_the_delay(
    server: RedisServer, site: Site, limit: dict[str, Any]
) -> None:
    crawl = busy_node(server, site, 5, SEMAPHORE_LIMITS={SPACED: limit})

    await site.until(lambda: len(site.hosts) == 2)
    await site.until(lambda: sum(visit.host == SPACED for visit in site.visits) == 5)
    await crawl.crawler.engine.close_spider_async(reason="enough")
    await crawl.finished()
    assert min(gaps(site)) > DELAY - LATE
    assert site.hosts[FREE].most == 2


@asyncio_test
async def test_a_delay_that_an_operator_sets_holds_for_starts_of_a_busy_node(
    server: RedisServer, site: Site
) -> None:
    crawl = busy_node(server, site, 200)
    async with FairSemaphore(server.url) as operator:
        await site.until(lambda: sum(visit.host == SPACED for visit in site.visits) == 1)
        await operator.admin.configure(SPACED, {"concurrency": 4, "delay": DELAY, "jitter": 0})
        since = time.monotonic() + LATE  # for the news
        seen = len(site.visits)
        await site.until(lambda: sum(v.host == SPACED for v in site.visits[seen:]) == 5)
        await crawl.crawler.engine.close_spider_async(reason="enough")
        await crawl.finished()
        await operator.admin.reset(SPACED)
    assert min(gaps(site, since)) > DELAY - LATE


@pytest.mark.parametrize(
    "limit",
    [
        {"concurrency": 1, "delay": 0.3, "jitter": 0},
        {"concurrency": 1, "rate": "3/s"},
        {"concurrency": 1, "adaptive": True},
    ],
)
@asyncio_test
async def test_a_start_that_counts_waits_for_no_place(
    server: RedisServer, site: Site, monkeypatch: pytest.MonkeyPatch, limit: dict[str, Any]
) -> None:
    monkeypatch.setattr(throttler, "PERMIT_IDLE_TIMEOUT_S", 600.0)
    async with FairSemaphore(server.url) as other:
        held = await other.acquire(SPACED, Limit(**limit))
        request = Request(site.url("/page/", SPACED))
        crawl = Crawl(
            server, request, limit=1, CONCURRENT_REQUESTS=1, SEMAPHORE_LIMITS={SPACED: limit}
        )
        await until(lambda: server.members().get(SPACED) == (1, 1))
        crawl.crawler.engine.crawl(Request(site.url("/slow/", FREE)))
        await site.until(lambda: site.hosts[FREE].now == 1)
        held.release()
        await until(lambda: SPACED not in server.members())  # it was granted and returned
        (await other.acquire(SPACED, Limit(**limit))).release()
        assert [visit.host for visit in site.visits] == [FREE]
        site.let_go()
        await crawl.finished()
    assert [visit.host for visit in site.visits] == [FREE, SPACED]
