"""Where each start counts, it is at its grant or not at all, however busy the node is."""

from __future__ import annotations

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
LATE = 0.3  # for what a busy machine may add on the way to the site; late starts come at 0.1 s


def gaps(site: Site) -> Iterator[float]:
    """Between two starts at the spaced site."""
    times = [visit.begin for visit in site.visits if visit.host == SPACED]
    return (then - before for before, then in pairwise(times))


@pytest.mark.parametrize(
    "limit",
    [
        {"concurrency": 4, "delay": DELAY, "jitter": 0},
        {"concurrency": 4, "rate": "2/s"},
    ],
)
@pytest.mark.parametrize(
    "is_operators",
    [False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["settings", "operator"],
)
@asyncio_test
async def test_a_start_that_found_no_place_does_not_come_close_to_the_next(
    server: RedisServer, site: Site, limit: dict[str, Any], is_operators: bool
) -> None:
    """The only place is taken while the second start is due, and free when the third one is."""
    async with FairSemaphore(server.url) as other:
        if is_operators:
            await other.admin.configure(SPACED, limit)
        requests = [Request(site.url(f"/page/{n}", SPACED)) for n in range(4)]
        table = {} if is_operators else {SPACED: limit}
        crawl = Crawl(server, *requests, limit=4, CONCURRENT_REQUESTS=1, SEMAPHORE_LIMITS=table)
        await site.until(lambda: len(site.visits) > 0)
        await until(lambda: server.members().get(SPACED, (0, 0))[0] == 0)
        crawl.crawler.engine.crawl(Request(site.url(f"/take/{1.8 * DELAY}/", FREE)))
        await crawl.finished()
        await other.admin.reset(SPACED)
    assert len(site.visits) == 5
    assert min(gaps(site)) > DELAY - LATE


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
