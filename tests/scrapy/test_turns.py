"""Two processes share a site that is full all the time fairly, with turns and without."""

from __future__ import annotations

from pathlib import Path

import pytest
from scrapy import Request

from tests.support.crawls import ADD_ON, asyncio_test, scrapy, until
from tests.support.servers import RedisServer
from tests.support.site import Site

HOST, LIMIT, PAGES = "127.0.0.1", 2, 300  # so many that single turns do not decide


def requests(site: Site, who: str) -> list[Request]:
    """The first ones are answered when the test says so: by then both processes are there."""
    slow = [Request(site.url(f"/slow/{n}?{who}"), priority=1) for n in range(LIMIT)]
    return slow + [Request(site.url(f"/page/{n}?{who}")) for n in range(PAGES)]


@pytest.mark.parametrize("turn", [pytest.param(0, marks=pytest.mark.slow), 0.1])
@asyncio_test
async def test_two_processes_share_a_full_site(
    server: RedisServer, site: Site, tmp_path: Path, turn: float
) -> None:
    settings = {
        **ADD_ON,
        "CONCURRENT_REQUESTS_PER_DOMAIN": LIMIT,
        "SEMAPHORE_REDIS_URL": server.url,
        "SEMAPHORE_TURN": turn,
    }
    async with (
        scrapy(tmp_path, *requests(site, "a"), **settings) as a,
        scrapy(tmp_path, *requests(site, "b"), **settings) as b,
    ):
        await until(lambda: server.members().get(HOST) == (LIMIT, 2 * LIMIT))
        site.let_go()
        assert await a.ended() == 0
        assert await b.ended() == 0

    assert site.most == LIMIT
    assert server.members() == {}
    assert len(set(site.arrivals)) == len(site.arrivals) == 2 * (LIMIT + PAGES)
    for crawl in (a, b):
        assert crawl.stat("semaphore/acquired") == LIMIT + PAGES
        assert crawl.stat("semaphore/released") == LIMIT + PAGES
        assert (crawl.stat("semaphore/handed_on") > 0) == (turn > 0)
    who = [path[-1] for path in site.arrivals]
    while_both_crawl = who[: min(_last(who, "a"), _last(who, "b"))]
    assert 0.3 < while_both_crawl.count("a") / len(while_both_crawl) < 0.7


def _last(who: list[str], one: str) -> int:
    return len(who) - 1 - who[::-1].index(one)
