"""Delays of robots.txt are kept by all nodes, which share the file; all requests are checked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from scrapy import Request
from scrapy.robotstxt import ProtegoRobotParser, PythonRobotParser, RobotParser
from scrapy.settings import Settings

from semaphore_middleware import Limit
from semaphore_middleware.scrapy.crawl_delays import CrawlDelays
from semaphore_middleware.scrapy.scopes import Scopes
from tests.support.crawls import ADD_ON, By, Crawl, Log, both, pages
from tests.support.nodes import eventually
from tests.support.servers import RedisServer
from tests.support.site import Site

POLITE: dict[str, Any] = {"ROBOTSTXT_OBEY": True, "USER_AGENT": "bot", "DOWNLOAD_DELAY_JITTER": 0}
DELAY = 0.2
SCRAPYS: Any = "scrapy.downloadermiddlewares.robotstxt.RobotsTxtMiddleware"


def assert_spaced(site: Site, delay: float, since: float) -> None:
    """The n-th page starts n delays after the crawl or later; the server's clock rounds down to a
    millisecond.
    """
    starts = sorted(visit.begin for visit in site.visits if visit.path != "/robots.txt")
    assert all(time >= since + n * delay - 0.001 for n, time in enumerate(starts))


@both
async def test_three_nodes_keep_a_crawl_delay(server: RedisServer, site: Site, by: By) -> None:
    site.robots = f"User-agent: *\nCrawl-delay: {DELAY}"
    since = asyncio.get_running_loop().time()
    crawls = [
        Crawl(server, *pages(site, 2), by=by, limit=4, SEMAPHORE_NODE=node, **POLITE)
        for node in "abc"
    ]
    for crawl in crawls:
        await crawl.finished()
        assert crawl.stat("semaphore/crawl_delays") == 1
    assert site.arrivals.count("/robots.txt") == (1 if by is ADD_ON else 3)
    # Until a node has read it, it does not know the delay; all other requests are spaced.
    assert_spaced(site, DELAY, since)


async def test_max_crawl_delay_is_logged_once(server: RedisServer, site: Site, caplog: Log) -> None:
    site.robots = "User-agent: *\nCrawl-delay: 86400"
    crawl = Crawl(server, *pages(site, 3), SEMAPHORE_MAX_CRAWL_DELAY=DELAY, **POLITE)
    since = asyncio.get_running_loop().time()
    await crawl.gave_back(4, site)
    assert_spaced(site, DELAY, since)
    [said] = [line for line in caplog.messages if "SEMAPHORE_MAX_CRAWL_DELAY" in line]
    told = "asks for a delay of 86400 s. The delay is 0.2 s, as SEMAPHORE_MAX_CRAWL_DELAY says."
    assert told in said


async def test_delays_need_not_be_obeyed(server: RedisServer, site: Site) -> None:
    site.robots = "User-agent: *\nCrawl-delay: 50"
    crawl = Crawl(server, *pages(site, 3), **POLITE, SEMAPHORE_OBEY_CRAWL_DELAY=False)
    await crawl.gave_back(4, site)
    assert crawl.stat("semaphore/crawl_delays") == 0


PAGE, OTHER = Request("http://a.example/page"), Request("http://b.example/page")
AGENTS = "User-agent: mine\nCrawl-delay: 3\n\nUser-agent: *\nCrawl-delay: 5\n"


def learned(
    text: str,
    request: Request = PAGE,
    limit: Limit = Limit(2),  # noqa: B008 - it is frozen
    parser: type[RobotParser] = ProtegoRobotParser,
    **settings: Any,
) -> Limit:
    """The limit after this robots.txt, at the host that has it."""
    delays = CrawlDelays(Settings({"USER_AGENT": "bot", **settings}), 60)
    delays.learn(parser(text.encode(), None), request)  # type: ignore[call-arg]
    scopes = Scopes((("a.example", limit),))
    assert delays.apply(scopes, OTHER) == scopes, "of another host it says nothing"
    return delays.apply(scopes, PAGE).limits[0][1]


def test_the_longer_one_counts_up_to_the_longest() -> None:
    for text, delay in {
        "Crawl-delay: 5": 5,
        "Request-rate: 1/5s": 5,
        "Request-rate: 10/5s": 0.5,
        "Crawl-delay: 1\nRequest-rate: 1/5s": 5,
        "Crawl-delay: 600": 60,
        "Crawl-delay: -3\nRequest-rate: soon/0s": 0,
        "Crawl-delay: inf\nRequest-rate: nan/0s": 0,
        "Crawl-delay: " + "9" * 400: 0,  # protego reads it as none
        "Request-rate: 1/" + "9" * 400: 60,
        "Request-rate: inf/nan": 0,
        "Disallow: /x": 0,
    }.items():
        assert learned(f"User-agent: *\n{text}").delay == delay, text
    too_long = "User-agent: *\nCrawl-delay: " + "9" * 400
    assert learned(too_long, parser=PythonRobotParser).delay == 60, "which no float can be"


def test_the_user_agent_of_robots_txt_counts_before_the_request_s_and_the_default() -> None:
    from_request = Request(PAGE.url, headers={"User-Agent": "mine"})
    assert learned(AGENTS).delay == 5
    assert learned(AGENTS, USER_AGENT="mine").delay == 3
    assert learned(AGENTS, from_request).delay == 3
    assert learned(AGENTS, from_request, ROBOTSTXT_USER_AGENT="bot").delay == 5
    assert learned(AGENTS, ROBOTSTXT_USER_AGENT="mine").delay == 3


def test_what_is_read_again_counts_as_new_only_if_it_is_and_is_gone_if_it_is_gone() -> None:
    delays = CrawlDelays(Settings({"USER_AGENT": "bot"}), 60)

    def learn(text: bytes) -> bool:
        return delays.learn(ProtegoRobotParser(b"User-agent: *\n" + text, None), PAGE)

    assert learn(b"Crawl-delay: 5")
    assert not learn(b"Crawl-delay: 5")
    assert learn(b"Crawl-delay: 6")
    assert not learn(b"Disallow: /x")
    scopes = Scopes((("a.example", Limit(2)),))
    assert delays.apply(scopes, PAGE) == scopes


def test_a_limit_s_own_delay_is_never_lowered_and_its_rate_holds_beside() -> None:
    for limit, then in [
        (Limit(2, 20, 0.5), Limit(2, 20, 0.5)),
        (Limit(2, 8, 0.5), Limit(2, 8, 0.375)),  # never below 5 s
        (Limit(2, 1, rate="10/m", burst=3), Limit(2, 5, rate="10/m", burst=3)),
        (Limit(2, 1, adaptive=True), Limit(2, 5, adaptive=True)),
    ]:
        assert learned("User-agent: *\nCrawl-delay: 5", limit=limit) == then


@pytest.mark.parametrize("is_shared", [True, False])
async def test_one_node_fetches_it(server: RedisServer, site: Site, is_shared: bool) -> None:
    """Also for one that comes later; and who waits for another node's fetch takes no room."""
    site.robots, site.robots_is_slow = "User-agent: *\nDisallow: /page/1", True
    settings = {"CONCURRENT_REQUESTS": 1, "SEMAPHORE_ROBOTSTXT_SHARED": is_shared, **POLITE}
    first = Crawl(server, *pages(site, 2), SEMAPHORE_NODE="a", **settings)
    await site.until(lambda: site.now == 1)
    free = Request(site.url("/page/free", "localhost"), meta={"dont_obey_robotstxt": True})
    second = Crawl(server, *pages(site, 2), free, SEMAPHORE_NODE="b", **settings)
    await site.until(lambda: "/page/free" in site.arrivals)
    site.let_go()
    await first.finished()
    await second.finished()
    third = Crawl(server, *pages(site, 2), SEMAPHORE_NODE="c", **settings)
    await third.finished()
    of_site = [visit.path for visit in site.visits if visit.host == "127.0.0.1"]
    assert sorted(of_site) == ["/page/0"] * 3 + ["/robots.txt"] * (1 if is_shared else 3)
    reused = [crawl.stat("semaphore/robotstxt_reused") for crawl in (first, second, third)]
    assert reused == ([0, 1, 1] if is_shared else [0, 0, 0])
    asked = [crawl.stat("robotstxt/request_count") for crawl in (first, second, third)]
    assert asked == ([1, 0, 0] if is_shared else [1, 1, 1])


async def test_an_outage_is_one_for_all_nodes(server: RedisServer, site: Site) -> None:
    site.robots_as = {"127.0.0.1": "/status/500"}
    pauses = {"SEMAPHORE_BACKOFF_START": 60, "SEMAPHORE_BACKOFF_MAX": 60}
    settings: dict[str, Any] = {**POLITE, **pauses, "RETRY_ENABLED": False}
    for node in "ab":
        crawl = Crawl(server, *pages(site, 2), SEMAPHORE_NODE=node, **settings)
        await crawl.finished()
        assert crawl.stat("robotstxt/forbidden") == 2
    assert site.arrivals == ["/robots.txt"]


@pytest.mark.parametrize("middlewares", [{}, {SCRAPYS: 50}], ids=["Scrapy's place", "project's"])
async def test_every_request_that_waited_for_robots_txt_is_checked(
    server: RedisServer, site: Site, middlewares: dict[Any, int]
) -> None:
    site.robots_is_slow = True
    forbidden = pages(site, 6, "/forbidden/")
    crawl = Crawl(server, *forbidden, limit=8, middlewares=middlewares, **POLITE)
    await site.until(lambda: site.now == 1)
    await eventually(lambda: len(crawl.crawler.engine.downloader.active) == 7)
    chain = [type(one).__module__ for one in crawl.crawler.engine.downloader.middleware.middlewares]
    site.let_go()
    await crawl.finished()
    ours = "semaphore_middleware.scrapy.robotstxt"
    assert [name for name in chain if "robotstxt" in name] == [ours]
    assert site.arrivals == ["/robots.txt"]
    assert crawl.stat("robotstxt/forbidden") == 6


async def test_a_disabled_middleware_stays_disabled(server: RedisServer, site: Site) -> None:
    off: dict[Any, Any] = {SCRAPYS: None}
    await Crawl(server, *pages(site, 1), middlewares=off, **POLITE).finished()
    assert site.arrivals == ["/page/0"]
