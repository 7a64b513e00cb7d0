"""Operators change limits while crawls run."""

from __future__ import annotations

from scrapy import Request

from semaphore_middleware import FairSemaphore
from tests.support.crawls import Crawl, waiting
from tests.support.nodes import eventually
from tests.support.servers import RedisServer
from tests.support.site import Site

HOST = "127.0.0.1"


async def test_three_nodes_obey_what_operators_set(server: RedisServer, site: Site) -> None:
    requests = [Request(site.url(f"/slow/{n}")) for n in range(4)]
    async with FairSemaphore(server.url) as operator:
        await operator.admin.configure(HOST, {"concurrency": 1})
        crawls = [Crawl(server, *requests, limit=9, SEMAPHORE_NODE=node) for node in "abc"]
        await site.until(lambda: site.now == 1)
        await eventually(lambda: waiting(server) >= 3)
        await operator.admin.configure(HOST, 3)
        await site.until(lambda: site.now == 3)
        await operator.admin.pause(HOST)
        site.let_go()
        await site.until(lambda: site.now == 0)
        await eventually(lambda: waiting(server) >= 3)
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
