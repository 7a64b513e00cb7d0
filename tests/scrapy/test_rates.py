"""Rates, bursts and turns, from the settings to the site."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.robotstxt import ProtegoRobotParser
from scrapy.settings import Settings

from semaphore_middleware import FairSemaphore, Limit
from semaphore_middleware.scrapy.crawl_delays import CrawlDelays
from tests.support.crawls import Crawl, asyncio_test, both, scrapy
from tests.support.nodes import eventually
from tests.support.servers import RedisServer
from tests.support.site import Site

HOST = "127.0.0.1"


@both
@asyncio_test
async def test_two_processes_keep_a_rate_together(
    server: RedisServer, site: Site, tmp_path: Path, by: Mapping[str, Any]
) -> None:
    settings = {
        "SEMAPHORE_REDIS_URL": server.url,
        "SEMAPHORE_LIMITS": {HOST: {"concurrency": 4, "rate": "600/m"}},
        **by,
    }
    pages = [Request(site.url(f"/page/{n}")) for n in range(4)]
    since = asyncio.get_running_loop().time()
    async with AsyncExitStack() as stack:
        crawls = [
            await stack.enter_async_context(scrapy(tmp_path, *pages, **settings)) for _ in range(2)
        ]
        for crawl in crawls:
            assert await crawl.ended() == 0
    assert len(site.times) == 8
    # The server's clock rounds down to a millisecond.
    assert all(time >= since + n * 0.1 - 0.001 for n, time in enumerate(sorted(site.times)))


@asyncio_test
async def test_a_burst_starts_at_once_and_the_next_when_an_operator_lifts_the_rate(
    server: RedisServer, site: Site
) -> None:
    limits = {HOST: {"concurrency": 8, "rate": "1/d", "burst": 3}}
    requests = [Request(site.url(f"/slow/{n}")) for n in range(5)]
    crawl = Crawl(server, *requests, limit=8, SEMAPHORE_LIMITS=limits)
    async with FairSemaphore(server.url) as operator:
        await site.until(lambda: site.now == 3)

        async def two_wait() -> bool:
            seen = await operator.admin.inspect(HOST)
            return (seen.held, seen.waiting) == (3, 2)

        await eventually(two_wait)
        assert site.now == 3
        await operator.admin.configure(HOST, {"rate": None})
        await site.until(lambda: site.now == 5)
        await operator.admin.reset(HOST)
    site.let_go()
    await crawl.finished()
    assert len(crawl.spider.responses) == 5


@pytest.mark.parametrize(("turn", "is_handed_on"), [(0, False), (4, True)])
@asyncio_test
async def test_a_permit_is_handed_on_unless_the_turn_is_0(
    server: RedisServer, site: Site, turn: float, is_handed_on: bool
) -> None:
    requests = [Request(site.url(f"/page/{n}")) for n in range(8)]
    crawl = Crawl(server, *requests, SEMAPHORE_TURN=turn)
    await crawl.gave_back(8, site)
    assert (crawl.stat("semaphore/handed_on") > 0) == is_handed_on


@pytest.mark.parametrize(
    ("limit", "then"),
    [
        (Limit(2, rate="10/m", burst=3), Limit(2, 5, rate="10/m", burst=3)),
        (Limit(2, 10, 1, rate="10/m"), Limit(2, 10, 0.5, rate="10/m")),
        (Limit(2, 10, rate="10/m"), Limit(2, 10, rate="10/m")),
    ],
)
def test_a_rate_holds_beside_the_delay_of_a_robots_txt(limit: Limit, then: Limit) -> None:
    delays = CrawlDelays(Settings({"USER_AGENT": "bot"}), 60)
    request = Request("http://example.com/page")
    robots = b"User-agent: *\nCrawl-delay: 5"
    assert delays.learn(ProtegoRobotParser(robots, None), request)
    assert delays.apply(limit, request) == then
