"""Operators change limits while crawls run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scrapy import Request

from semaphore_middleware import FairSemaphore
from tests.support.crawls import Crawl, asyncio_test, both, until, waiting
from tests.support.servers import RedisServer
from tests.support.site import Site

HOST = "127.0.0.1"


@asyncio_test
async def test_three_nodes_obey_what_operators_set_also_before_they_start(
    server: RedisServer, site: Site
) -> None:
    requests = [Request(site.url(f"/slow/{n}")) for n in range(4)]
    async with FairSemaphore(server.url) as operator:
        await operator.admin.configure(HOST, {"concurrency": 1})
        crawls = [Crawl(server, *requests, limit=9, SEMAPHORE_NODE=node) for node in "abc"]
        await site.until(lambda: site.now == 1)
        await until(lambda: waiting(server) >= 3)
        await operator.admin.configure(HOST, 3)
        await site.until(lambda: site.now == 3)
        await operator.admin.pause(HOST)
        site.let_go()
        await site.until(lambda: site.now == 0)
        await until(lambda: waiting(server) >= 3)
        assert len(site.arrivals) == 3
        await operator.admin.configure(HOST, 2)
        await operator.admin.resume(HOST)
        for crawl in crawls:
            await crawl.finished()
            assert crawl.stat(f"semaphore/scope/{HOST}/limit") in (2, 3)
        await operator.admin.reset(HOST)
    assert len(site.arrivals) == 12
    assert site.most == 3
    assert server.members() == {}


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
