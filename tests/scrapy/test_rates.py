"""Rates, bursts, delays and turns, from the settings to the site."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from scrapy import Request

from semaphore_middleware import FairSemaphore, Limit
from semaphore_middleware.scrapy import throttler
from tests.support.crawls import Crawl, asyncio_test, both, until
from tests.support.servers import RedisServer
from tests.support.site import Site

HOST, FREE = "127.0.0.1", "localhost"


def pages(site: Site, count: int, path: str = "/page/") -> list[Request]:
    return [Request(site.url(f"{path}{n}")) for n in range(count)]


@both
@asyncio_test
async def test_two_nodes_keep_a_rate_together(
    server: RedisServer, site: Site, by: Mapping[str, Any]
) -> None:
    limits = {HOST: {"concurrency": 4, "rate": "600/m"}}
    since = asyncio.get_running_loop().time()
    crawls = [
        Crawl(server, *pages(site, 4), by=by, SEMAPHORE_LIMITS=limits, SEMAPHORE_NODE=node)
        for node in "ab"
    ]
    for crawl in crawls:
        await crawl.finished()
    assert len(site.times) == 8
    # The server's clock rounds down to a millisecond.
    assert all(time >= since + n * 0.1 - 0.001 for n, time in enumerate(sorted(site.times)))


@asyncio_test
async def test_a_burst_starts_at_once_and_the_next_when_an_operator_lifts_the_rate(
    server: RedisServer, site: Site
) -> None:
    limits = {HOST: {"concurrency": 8, "rate": "1/d", "burst": 3}}
    crawl = Crawl(server, *pages(site, 5, "/slow/"), limit=8, SEMAPHORE_LIMITS=limits)
    async with FairSemaphore(server.url) as operator:
        await site.until(lambda: site.now == 3)
        await until(lambda: server.members()[HOST] == (3, 2))
        assert site.now == 3
        await operator.admin.configure(HOST, {"rate": None})
        await site.until(lambda: site.now == 5)
        await operator.admin.reset(HOST)
    site.let_go()
    await crawl.gave_back(5, site)


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
    """Begun later, it would be too close to the next one."""
    monkeypatch.setattr(throttler, "PERMIT_IDLE_TIMEOUT_S", 600.0)
    async with FairSemaphore(server.url) as other:
        held = await other.acquire(HOST, Limit(**limit))
        limits = {HOST: limit}
        crawl = Crawl(server, *pages(site, 1), CONCURRENT_REQUESTS=1, SEMAPHORE_LIMITS=limits)
        await until(lambda: server.members().get(HOST) == (1, 1))
        crawl.crawler.engine.crawl(Request(site.url("/slow/", FREE)))
        await site.until(lambda: site.hosts[FREE].now == 1)
        held.release()
        await until(lambda: HOST not in server.members())  # it was granted and returned
        (await other.acquire(HOST, Limit(**limit))).release()
        assert [visit.host for visit in site.visits] == [FREE]
        site.let_go()
        await crawl.finished()
    assert [visit.host for visit in site.visits] == [FREE, HOST]


@pytest.mark.parametrize(("turn", "is_handed_on"), [(0, False), (4, True)])
@asyncio_test
async def test_a_permit_is_handed_on_unless_the_turn_is_0(
    server: RedisServer, site: Site, turn: float, is_handed_on: bool
) -> None:
    crawl = Crawl(server, *pages(site, 8), SEMAPHORE_TURN=turn)
    await crawl.gave_back(8, site)
    assert (crawl.stat("semaphore/handed_on") > 0) == is_handed_on


@pytest.mark.parametrize("turn", [0, 0.02])
@asyncio_test
async def test_two_nodes_share_a_full_site_in_turns(
    server: RedisServer, site: Site, turn: float
) -> None:
    limit, count = 2, 40  # so many that single turns do not decide
    crawls = []
    for node in "ab":
        # The first ones are answered when the test says so: by then both nodes are there.
        slow = [Request(site.url(f"/slow/{n}?{node}"), priority=1) for n in range(limit)]
        rest = [Request(site.url(f"/page/{n}?{node}")) for n in range(count)]
        settings: dict[str, Any] = {"SEMAPHORE_NODE": node, "SEMAPHORE_TURN": turn}
        crawls.append(Crawl(server, *slow, *rest, limit=limit, **settings))
    await until(lambda: server.members().get(HOST) == (limit, 2 * limit))
    site.let_go()
    for crawl in crawls:
        await crawl.finished()
        counts = [crawl.stat(f"semaphore/{name}") for name in ("acquired", "released")]
        assert counts == [limit + count] * 2
    assert site.most == limit
    assert server.members() == {}
    assert len(set(site.arrivals)) == len(site.arrivals) == 2 * (limit + count)
    who = "".join(path[-1] for path in site.arrivals)
    while_both_crawl = who[: min(who.rindex("a"), who.rindex("b"))]
    assert 0.3 < while_both_crawl.count("a") / len(while_both_crawl) < 0.7
