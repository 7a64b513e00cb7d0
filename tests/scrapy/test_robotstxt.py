"""Delays of robots.txt are kept by all nodes, and every request is checked against it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request

from tests.support.crawls import ADD_ON, ALONE, Crawl, asyncio_test, scrapy
from tests.support.scrapy_process import ScrapyProcess
from tests.support.servers import RedisServer
from tests.support.site import Site

POLITE: dict[str, Any] = {"ROBOTSTXT_OBEY": True, "USER_AGENT": "bot", "DOWNLOAD_DELAY_JITTER": 0}
DELAY = 0.2


def pages(site: Site, count: int) -> list[Request]:
    return [Request(site.url(f"/page/{n}")) for n in range(count)]


def assert_spaced(site: Site, delay: float, since: float) -> None:
    """The n-th page starts n delays after the crawl or later; the server's clock rounds down to a
    millisecond.
    """
    starts = [
        time for time, path in zip(site.times, site.arrivals, strict=True) if path != "/robots.txt"
    ]
    assert all(time >= since + n * delay - 0.001 for n, time in enumerate(sorted(starts)))


def gaps(times: list[float]) -> list[float]:
    return [then - before for before, then in pairwise(times)]


@pytest.mark.parametrize(
    "said",
    [
        f"User-agent: *\nCrawl-delay: {DELAY}",
        "User-agent: *\nRequest-rate: 5/1s",
        f"User-agent: other\nCrawl-delay: 50\n\nUser-agent: bot\nCrawl-delay: {DELAY}",
        "User-agent: *\nCrawl-delay: 0.001\nRequest-rate: 5/1",
    ],
)
@asyncio_test
async def test_crawl_delay_and_request_rate_are_kept(
    server: RedisServer, site: Site, said: str
) -> None:
    site.robots = said
    crawl = Crawl(server, *pages(site, 4), limit=4, **POLITE)

    since = asyncio.get_running_loop().time()
    await crawl.gave_back(5, site)
    assert_spaced(site, DELAY, since)
    assert crawl.stat("semaphore/crawl_delays") == 1


@pytest.mark.parametrize(
    "by",
    [ADD_ON, pytest.param(ALONE, marks=pytest.mark.slow)],
    ids=["add-on", "middleware alone"],
)
@asyncio_test
async def test_three_processes_keep_a_crawl_delay_together(
    server: RedisServer, site: Site, tmp_path: Path, by: Mapping[str, Any]
) -> None:
    site.robots = f"User-agent: *\nCrawl-delay: {DELAY}"
    settings = {"SEMAPHORE_REDIS_URL": server.url, "CONCURRENT_REQUESTS_PER_DOMAIN": 4, **by}
    since = asyncio.get_running_loop().time()
    async with AsyncExitStack() as stack:
        crawls = [
            await stack.enter_async_context(
                scrapy(tmp_path, *pages(site, 4), **{**settings, **POLITE})
            )
            for _ in range(3)
        ]
        for crawl in crawls:
            assert await crawl.ended() == 0
    assert site.arrivals.count("/robots.txt") == (1 if by is ADD_ON else 3)
    # Until a node has read it, it does not know the delay; all other requests are spaced.
    assert_spaced(site, DELAY, since)


@pytest.mark.parametrize("is_killed", [False, True])
@asyncio_test
async def test_a_robots_txt_is_fetched_by_one_node_and_if_that_dies_by_another(
    server: RedisServer, site: Site, tmp_path: Path, is_killed: bool
) -> None:
    site.robots = "User-agent: *\nDisallow: /page/1"
    site.robots_is_slow = True
    settings = {"SEMAPHORE_REDIS_URL": server.url, "SEMAPHORE_LEASE": 1.0, **ADD_ON, **POLITE}
    async with AsyncExitStack() as stack:

        async def start() -> ScrapyProcess:
            return await stack.enter_async_context(scrapy(tmp_path, *pages(site, 2), **settings))

        first = await start()
        await site.until(lambda: site.now == 1)
        others = [await start(), await start()]
        for other in others:
            await other.says("Crawled 0 pages")
        if is_killed:
            first.kill()
            await site.until(lambda: len(site.visits) == 2)
        site.let_go()
        for crawl in others if is_killed else [first, *others]:
            assert await crawl.ended() == 0
    assert site.arrivals.count("/robots.txt") == (2 if is_killed else 1)
    assert site.arrivals.count("/page/0") == (2 if is_killed else 3)
    assert "/page/1" not in site.arrivals


@asyncio_test
async def test_download_delay_is_never_lowered(server: RedisServer, site: Site) -> None:
    site.robots = "User-agent: *\nCrawl-delay: 0.01"
    crawl = Crawl(server, *pages(site, 3), DOWNLOAD_DELAY=DELAY, **POLITE)

    since = asyncio.get_running_loop().time()
    await crawl.gave_back(4, site)
    assert_spaced(site, DELAY, since + DELAY)


@pytest.mark.slow
@pytest.mark.parametrize("own", [DELAY, 1.5 * DELAY])
@asyncio_test
async def test_jitter_does_not_go_below_the_crawl_delay(
    server: RedisServer, site: Site, own: float
) -> None:
    site.robots = f"User-agent: *\nCrawl-delay: {DELAY}"
    settings = {**POLITE, "DOWNLOAD_DELAY": own, "DOWNLOAD_DELAY_JITTER": 1}
    crawl = Crawl(server, *pages(site, 8), **settings)

    await crawl.gave_back(9, site)
    # A start that a busy machine holds up is nearer to the next one.
    assert all(gap > DELAY - 0.05 for gap in gaps(site.times[1:]))


@asyncio_test
async def test_max_crawl_delay_is_used_and_logged_once(
    server: RedisServer, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.robots = "User-agent: *\nCrawl-delay: 86400"
    crawl = Crawl(server, *pages(site, 3), SEMAPHORE_MAX_CRAWL_DELAY=DELAY, **POLITE)

    since = asyncio.get_running_loop().time()
    await crawl.gave_back(4, site)
    assert_spaced(site, DELAY, since)
    said = [r.getMessage() for r in caplog.records if "SEMAPHORE_MAX_CRAWL_DELAY" in r.getMessage()]
    assert len(said) == 1
    assert "asks for a delay of 86400 s. The delay is 0.2 s: SEMAPHORE_MAX_CRAWL_DELAY." in said[0]


@pytest.mark.parametrize("said", ["-3", "soon", "nan", "0", "-1e309"])
@asyncio_test
async def test_invalid_crawl_delays_are_ignored(server: RedisServer, site: Site, said: str) -> None:
    site.robots = f"User-agent: *\nCrawl-delay: {said}\nRequest-rate: {said}/0s"
    crawl = Crawl(server, *pages(site, 3), limit=4, **POLITE)

    await crawl.gave_back(4, site)
    assert crawl.stat("semaphore/crawl_delays") == 0


@asyncio_test
async def test_obey_crawl_delay_false_ignores_it(server: RedisServer, site: Site) -> None:
    site.robots = "User-agent: *\nCrawl-delay: 50"
    crawl = Crawl(server, *pages(site, 3), SEMAPHORE_OBEY_CRAWL_DELAY=False, **POLITE)

    await crawl.gave_back(4, site)
    assert crawl.stat("semaphore/crawl_delays") == 0


@asyncio_test
async def test_obey_crawl_delay_without_robotstxt_obey_gets_a_warning(
    server: RedisServer, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    await Crawl(server, *pages(site, 1), SEMAPHORE_OBEY_CRAWL_DELAY=True).gave_back(1, site)
    assert any(
        "SEMAPHORE_OBEY_CRAWL_DELAY has no effect without ROBOTSTXT_OBEY" in r.message
        for r in caplog.records
    )


@pytest.mark.parametrize(
    "middlewares",
    [{}, {"scrapy.downloadermiddlewares.robotstxt.RobotsTxtMiddleware": 50}],
    ids=["where Scrapy has it", "where the project has it"],
)
@asyncio_test
async def test_every_request_that_waited_for_robots_txt_is_checked(
    server: RedisServer, site: Site, middlewares: dict[Any, int]
) -> None:
    site.robots_is_slow = True
    forbidden = [Request(site.url(f"/forbidden/{n}")) for n in range(6)]
    crawl = Crawl(server, *forbidden, limit=8, middlewares=middlewares, **POLITE)

    await site.until(lambda: site.now == 1)
    site.let_go()
    await crawl.finished()
    assert site.arrivals == ["/robots.txt"]
    assert crawl.stat("robotstxt/forbidden") == 6


@asyncio_test
async def test_a_disabled_robotstxt_middleware_stays_disabled(
    server: RedisServer, site: Site
) -> None:
    off: dict[Any, Any] = {"scrapy.downloadermiddlewares.robotstxt.RobotsTxtMiddleware": None}
    crawl = Crawl(server, *pages(site, 1), by=ADD_ON, middlewares=off, **POLITE)

    await crawl.finished()
    assert site.arrivals == ["/page/0"]
