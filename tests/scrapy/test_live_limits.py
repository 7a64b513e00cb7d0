"""Operators change limits while crawls run, in one process and in three."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from scrapy import Request

from semaphore_middleware import FairSemaphore
from tests.support.crawls import ADD_ON, Crawl, asyncio_test, both, scrapy, until, waiting
from tests.support.servers import RedisServer
from tests.support.site import Site

HOST = "127.0.0.1"


@asyncio_test
async def test_configure_raises_and_lowers_a_limit_during_a_crawl(
    server: RedisServer, site: Site
) -> None:
    requests = [Request(site.url(f"/slow/{n}")) for n in range(12)]
    crawl = Crawl(server, *requests, limit=2)
    async with FairSemaphore(server.url) as operator:
        await site.until(lambda: site.now == 2)
        await operator.admin.configure(HOST, 4)
        await site.until(lambda: site.now == 4)
        await operator.admin.configure(HOST, 1)
        site.let_go()
        await crawl.finished()
        await operator.admin.reset(HOST)
    assert site.most == 4
    assert crawl.stat(f"semaphore/scope/{HOST}/limit") == 1
    assert len(crawl.spider.responses) == 12
    assert server.members() == {}


@asyncio_test
async def test_three_processes_obey_pause_resume_and_configure(
    server: RedisServer, site: Site, tmp_path: Path
) -> None:
    settings = {
        "SEMAPHORE_REDIS_URL": server.url,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 1,
        **ADD_ON,
    }
    requests = [Request(site.url(f"/slow/{n}")) for n in range(4)]
    async with AsyncExitStack() as stack:
        operator = await stack.enter_async_context(FairSemaphore(server.url))
        crawls = [
            await stack.enter_async_context(scrapy(tmp_path, *requests, **settings))
            for _ in range(3)
        ]
        await site.until(lambda: site.now == 1)
        await until(lambda: waiting(server) >= 3)
        await operator.admin.configure("127.0.0.1", 3)
        await site.until(lambda: site.now == 3)
        await operator.admin.pause(HOST)
        site.let_go()
        await site.until(lambda: site.now == 0)
        await until(lambda: waiting(server) >= 3)
        assert len(site.arrivals) == 3
        await operator.admin.resume(HOST)
        for crawl in crawls:
            assert await crawl.ended() == 0
        await operator.admin.reset(HOST)
    assert len(site.arrivals) == 12
    assert site.most == 3
    assert server.members() == {}


@asyncio_test
async def test_configure_holds_for_later_crawls(server: RedisServer, site: Site) -> None:
    async with FairSemaphore(server.url) as operator:
        await operator.admin.configure(HOST, {"concurrency": 3})
    crawl = Crawl(server, *[Request(site.url(f"/slow/{n}")) for n in range(6)], limit=1)

    await site.until(lambda: site.now == 3)
    site.let_go()
    await crawl.finished()
    assert site.most == 3


@both
@asyncio_test
async def test_stats_show_an_adaptive_limit(
    server: RedisServer, site: Site, by: Mapping[str, Any]
) -> None:
    limits = {HOST: {"concurrency": 100, "adaptive": True}}
    requests = [Request(site.url(f"/page/{n}")) for n in range(40)]
    crawl = Crawl(server, *requests, by=by, SEMAPHORE_LIMITS=limits, limit=100)

    await crawl.finished()
    # It grows from 1; how far depends on the latencies.
    assert 1 <= crawl.stat(f"semaphore/scope/{HOST}/limit") < 100
