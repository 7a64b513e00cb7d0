"""Rates, bursts, delays and turns, from the settings to the site."""

from __future__ import annotations

from typing import Any

import pytest
from scrapy import Request

from semaphore_middleware import FairSemaphore, Limit
from semaphore_middleware.scrapy import downloads
from tests.support.crawls import Crawl, Patch, pages
from tests.support.nodes import eventually
from tests.support.servers import RedisServer
from tests.support.site import Site

HOST, FREE = "127.0.0.1", "localhost"


async def test_a_burst_until_an_operator_lifts_the_rate(server: RedisServer, site: Site) -> None:
    limits = {HOST: {"concurrency": 8, "rate": "1/d", "burst": 3}}
    crawl = Crawl(server, *pages(site, 5, "/slow/"), limit=8, SEMAPHORE_LIMITS=limits)
    async with FairSemaphore(server.url) as operator:
        await site.until(lambda: site.now == 3)
        await eventually(lambda: server.members()[HOST] == (3, 2))
        assert site.now == 3
        await operator.admin.configure(HOST, {"rate": None})
        await site.until(lambda: site.now == 5)
        await operator.admin.reset(HOST)
    await crawl.gave_back(5, site)


@pytest.mark.parametrize(
    "limit",
    [
        {"concurrency": 1, "delay": 0.3, "jitter": 0},
        {"concurrency": 1, "rate": "3/s"},
        {"concurrency": 1, "adaptive": True},
    ],
)
async def test_a_start_that_counts_waits_for_no_place(
    server: RedisServer, site: Site, monkeypatch: Patch, limit: dict[str, Any]
) -> None:
    """Begun later, it would be too close to the next one."""
    monkeypatch.setattr(downloads, "PERMIT_IDLE_TIMEOUT_S", 600.0)
    async with FairSemaphore(server.url) as other:
        held = await other.acquire(HOST, Limit(**limit))
        limits = {HOST: limit}
        crawl = Crawl(server, *pages(site, 1), CONCURRENT_REQUESTS=1, SEMAPHORE_LIMITS=limits)
        await eventually(lambda: server.members().get(HOST) == (1, 1))
        crawl.crawler.engine.crawl(Request(site.url("/slow/", FREE)))
        await site.until(lambda: site.hosts[FREE].now == 1)
        held.release()
        await eventually(lambda: HOST not in server.members())  # it was granted and returned
        (await other.acquire(HOST, Limit(**limit))).release()
        assert [visit.host for visit in site.visits] == [FREE]
        site.let_go()
        await crawl.finished()
    assert [visit.host for visit in site.visits] == [FREE, HOST]
