"""Nodes share robots.txt files and keep the delays in them; all requests are checked."""

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest
from scrapy import Request
from scrapy.robotstxt import ProtegoRobotParser, PythonRobotParser, RobotParser
from scrapy.settings import Settings

from semaphore_middleware import Limit
from semaphore_middleware.scrapy import crawl_delays
from semaphore_middleware.scrapy.crawl import crawl_of
from semaphore_middleware.scrapy.crawl_delays import CrawlDelays
from semaphore_middleware.scrapy.robotstxt import MAX_BYTES, RobotsTxt, SharedFiles
from semaphore_middleware.scrapy.scopes import Scopes
from tests.support.crawls import Crawl, Log, Patch, pages, waiting
from tests.support.nodes import eventually
from tests.support.servers import RedisServer
from tests.support.site import Site
from tests.support.times import ENDLESS_S
from tests.support.visits import Fetches

POLITE: dict[str, Any] = {"ROBOTSTXT_OBEY": True, "USER_AGENT": "bot", "DOWNLOAD_DELAY_JITTER": 0}
DELAY = 0.2
SCRAPYS: Any = "scrapy.downloadermiddlewares.robotstxt.RobotsTxtMiddleware"


def assert_spaced(site: Site, delay: float, since: float) -> None:
    """The n-th page starts n delays after the crawl or later; the server's clock rounds down to a
    millisecond.
    """
    starts = sorted(visit.begin for visit in site.visits if visit.path != "/robots.txt")
    assert all(time >= since + n * delay - 0.001 for n, time in enumerate(starts))


async def test_three_nodes_keep_a_crawl_delay(server: RedisServer, site: Site) -> None:
    site.robots = f"User-agent: *\nCrawl-delay: {DELAY}"
    since = asyncio.get_running_loop().time()
    crawls = [
        Crawl(server, *pages(site, 2), limit=4, SEMAPHORE_NODE=node, **POLITE) for node in "abc"
    ]
    for crawl in crawls:
        await crawl.finished()
        assert crawl.stat("semaphore/crawl_delays") == 1
    # The requests for robots.txt come before the delay is known; all others are spaced.
    assert_spaced(site, DELAY, since)


async def test_max_crawl_delay_is_logged_once(server: RedisServer, site: Site, caplog: Log) -> None:
    site.robots = "User-agent: *\nCrawl-delay: 86400"
    crawl = Crawl(server, *pages(site, 3), SEMAPHORE_MAX_CRAWL_DELAY=DELAY, **POLITE)
    since = asyncio.get_running_loop().time()
    await crawl.gave_back(4, site)
    assert_spaced(site, DELAY, since)
    [said] = [line for line in caplog.messages if "SEMAPHORE_MAX_CRAWL_DELAY" in line]
    told = "asks for a delay of 86400 s; 0.2 s is used, the maximum in SEMAPHORE_MAX_CRAWL_DELAY."
    assert told in said


async def test_delays_need_not_be_obeyed(server: RedisServer, site: Site) -> None:
    site.robots = "User-agent: *\nCrawl-delay: 50"
    crawl = Crawl(server, *pages(site, 3), **POLITE, SEMAPHORE_MAX_CRAWL_DELAY=0)
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
    delays.record(parser(text.encode(), None), request)  # type: ignore[call-arg]
    scopes = Scopes((("a.example", limit),))
    assert delays.apply(scopes, OTHER) == scopes, "of another host it says nothing"
    return delays.apply(scopes, PAGE).limits[0][1]


def test_a_delay_counts_up_to_the_longest() -> None:
    for text, delay in {
        "Crawl-delay: 5": 5,
        "Crawl-delay: 0.5": 0.5,
        "Crawl-delay: 600": 60,
        "Crawl-delay: -3": 0,
        "Crawl-delay: soon": 0,
        "Crawl-delay: inf": 0,
        "Crawl-delay: nan": 0,
        "Crawl-delay: " + "9" * 400: 0,  # protego reads it as none
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
        return delays.record(ProtegoRobotParser(b"User-agent: *\n" + text, None), PAGE)

    assert learn(b"Crawl-delay: 5")
    assert not learn(b"Crawl-delay: 5")
    assert learn(b"Crawl-delay: 6")
    assert not learn(b"Disallow: /x")
    scopes = Scopes((("a.example", Limit(2)),))
    assert delays.apply(scopes, PAGE) == scopes


def test_the_delay_of_https_is_not_that_of_http() -> None:
    delays, scopes = CrawlDelays(Settings({"USER_AGENT": "bot"}), 60), Scopes((("a", Limit(2)),))
    urls = {"http://a/": 5, "https://a:443/": 7, "https://a:444/": 9}
    for url, delay in urls.items():
        text = f"User-agent: *\nCrawl-delay: {delay}".encode()
        assert delays.record(ProtegoRobotParser(text, None), Request(url))
    for url, delay in {**urls, "http://a:80/x": 5, "https://a/x": 7}.items():
        assert delays.apply(scopes, Request(url)).limits[0][1].delay == delay, url
    assert delays.apply(scopes, Request("http://a:444/")) == scopes


def test_the_delay_longest_unused_is_forgotten(monkeypatch: Patch) -> None:
    monkeypatch.setattr(crawl_delays, "ORIGINS_MAX", 2)
    delays, scopes = CrawlDelays(Settings({"USER_AGENT": "bot"}), 60), Scopes((("a", Limit(2)),))
    robots = ProtegoRobotParser(b"User-agent: *\nCrawl-delay: 5", None)
    a, b, c = (Request(f"http://{host}/") for host in "abc")
    for request in (a, b):
        assert delays.record(robots, request)
    assert delays.apply(scopes, a) != scopes
    assert delays.record(robots, c)
    assert [delays.apply(scopes, each) != scopes for each in (a, b, c)] == [True, False, True]


def test_a_limit_s_own_delay_is_never_lowered_and_its_rate_holds_beside() -> None:
    for limit, then in [
        (Limit(2, 20, 0.5), Limit(2, 20, 0.5)),
        (Limit(2, 8, 0.5), Limit(2, 8, 0.375)),  # never below 5 s
        (Limit(2, 1, rate="10/m", burst=3), Limit(2, 5, rate="10/m", burst=3)),
        (Limit(2, 1, adaptive=True), Limit(2, 5, adaptive=True)),
    ]:
        assert learned("User-agent: *\nCrawl-delay: 5", limit=limit) == then


async def test_of_nodes_that_come_at_once_few_fetch_it(server: RedisServer, site: Site) -> None:
    """All check the cache before the first has fetched it: only the second check finds it."""
    site.robots_is_slow = True
    crawls = [
        Crawl(server, *pages(site, 2), limit=2, SEMAPHORE_NODE=node, **POLITE) for node in "abcdef"
    ]
    await site.until(lambda: site.now == 2)
    await eventually(lambda: waiting(server) == 4)
    site.let_go()
    for crawl in crawls:
        await crawl.finished()
    assert site.arrivals.count("/robots.txt") == 2
    assert len(site.arrivals) == 2 + 2 * len(crawls)
    assert sum(crawl.stat("semaphore/robotstxt_reused") for crawl in crawls) == 4
    for crawl in crawls:  # a file of another node counts as a cached response
        counted = crawl.crawler.stats.get_stats()
        assert not [name for name in counted if "exception" in name]
        assert counted["downloader/request_count"] == counted["downloader/response_count"]
    assert sum(crawl.stat("robotstxt/request_count") for crawl in crawls) == 2
    for crawl in crawls:
        assert crawl.stat("semaphore/acquired") == crawl.stat("semaphore/released")
    assert server.members() == {}


@pytest.mark.parametrize("status", [404, 500])
async def test_a_file_of_another_node_has_its_status(
    server: RedisServer, site: Site, caplog: Log, status: int
) -> None:
    caplog.set_level("DEBUG")
    site.robots_as, site.robots_is_slow = {"127.0.0.1": f"/status/{status}"}, True
    pauses = {"SEMAPHORE_BACKOFF_START": ENDLESS_S, "SEMAPHORE_BACKOFF_MAX": ENDLESS_S}
    settings = {"limit": 1, "RETRY_TIMES": 0, **pauses, **POLITE}
    crawls = [Crawl(server, *pages(site, 1), SEMAPHORE_NODE=node, **settings) for node in "ab"]
    await site.until(lambda: site.now == 1)
    await eventually(lambda: waiting(server) == 1)
    site.let_go()
    for crawl in crawls:
        await crawl.finished()
    assert site.arrivals.count("/robots.txt") == 1
    crawled = f"Crawled ({status}) <GET {site.url('/robots.txt')}>"
    lines = [line for line in caplog.messages if line.startswith(crawled)]
    assert sorted("['cached']" in line for line in lines) == [False, True]
    is_unreachable = status == 500
    assert [crawl.stat("robotstxt/forbidden") for crawl in crawls] == [is_unreachable] * 2
    # A response of the cache is not retried.
    assert sum(crawl.stat("retry/max_reached") for crawl in crawls) == is_unreachable


async def test_of_a_redirect_s_target_few_nodes_ask(server: RedisServer, site: Site) -> None:
    site.robots_as = {"127.0.0.1": "/redirect/rules"}
    crawls = [Crawl(server, *pages(site, 1), SEMAPHORE_NODE=node, **POLITE) for node in "abc"]
    for crawl in crawls:
        await crawl.finished()
    assert site.arrivals.count("/rules") == 1
    assert site.arrivals.count("/page/0") == 3
    assert server.members() == {}


class Dawdles:
    """A middleware that keeps a robots.txt for a while before it passes it on."""

    async def process_response(self, request: Request, response: Any) -> Any:
        if request.url.endswith("/robots.txt"):
            await asyncio.sleep(0.2)
        return response


async def test_the_permit_goes_back_once_it_is_shared(server: RedisServer, site: Site) -> None:
    crawls = [
        Crawl(server, *pages(site, 1), middlewares={Dawdles: 500}, SEMAPHORE_NODE=node, **POLITE)
        for node in "ab"
    ]
    for crawl in crawls:
        await crawl.finished()
    assert site.arrivals == ["/robots.txt", "/page/0", "/page/0"]


class AsksAgain(Fetches):
    """Asks the site once more before it passes a robots.txt on."""

    async def process_response(self, request: Request, response: Any) -> Any:
        if request.url.endswith("/robots.txt"):
            await self.fetch(request.url.replace("robots.txt", "page/again"), obeys=False)
        return response


async def test_a_middleware_may_ask_before_it_is_shared(server: RedisServer, site: Site) -> None:
    crawl = Crawl(server, *pages(site, 1), middlewares={AsksAgain: 500}, **POLITE)
    await crawl.finished()
    assert site.arrivals == ["/robots.txt", "/page/again", "/page/0"]
    assert crawl.stat("semaphore/acquired") == crawl.stat("semaphore/released")
    assert server.members() == {}


def cached(server: RedisServer) -> list[bytes]:
    """The keys of the nodes' shared cache."""
    with server.client() as client:
        return list(client.scan_iter(b"*:cache:*"))


async def two_crawls(server: RedisServer, site: Site, **settings: Any) -> list[Crawl]:
    """Run two crawls one after the other, by different nodes."""
    crawls = []
    for node in "ab":
        crawls.append(Crawl(server, *pages(site, 2), SEMAPHORE_NODE=node, **POLITE, **settings))
        await crawls[-1].finished()
    return crawls


async def test_a_large_file_is_each_node_s_own(server: RedisServer, site: Site) -> None:
    site.robots += f"# {random.Random(7).randbytes(20_000).hex()}"  # half as much, compressed
    await two_crawls(server, site)
    assert site.arrivals.count("/robots.txt") == 2
    assert cached(server) == []


@pytest.mark.parametrize(("answer", "is_shared"), [("/status/500", True), ("/drop", False)])
async def test_an_outage(server: RedisServer, site: Site, answer: str, is_shared: bool) -> None:
    """Nodes share an error response, but each finds out itself that there is no response."""
    site.robots_as = {"127.0.0.1": answer}
    pauses = {"SEMAPHORE_BACKOFF_START": ENDLESS_S, "SEMAPHORE_BACKOFF_MAX": ENDLESS_S}
    crawls = await two_crawls(server, site, RETRY_ENABLED=False, **pauses)
    assert site.arrivals == ["/robots.txt"] * (1 if is_shared else 2)
    assert [crawl.stat("robotstxt/forbidden") for crawl in crawls] == [2, 2]
    assert bool(cached(server)) == is_shared


async def test_a_failure_does_not_replace_a_valid_file(server: RedisServer, site: Site) -> None:
    file = RobotsTxt(b"Disallow: /x", 200)
    failure = RobotsTxt(status=500, problem="500", failures=1)
    site.robots_is_slow = True
    crawl = Crawl(server, *pages(site, 1), **POLITE)
    await site.until(lambda: site.now == 1)
    files = SharedFiles(crawl_of(crawl.crawler))
    until = asyncio.get_running_loop().time() + 3600

    async def kept(*robotstxts: RobotsTxt) -> RobotsTxt:
        for robotstxt in robotstxts:
            files.put_file("http://a", replace(robotstxt, valid_until=until))
        await eventually(lambda: files.find_file("http://a"))
        known = await files.find_file("http://a")
        assert known is not None
        assert until - 60 < known.valid_until <= until + 1
        return known

    assert await kept(failure) == failure
    assert await kept(file, failure) == file
    assert await kept(failure, RobotsTxt(status=503, problem="503", failures=2)) == file
    await crawl.gave_back(2, site)


async def test_what_no_node_has_written_is_not_read(server: RedisServer, site: Site) -> None:
    for junk in (b"", b"x", b"[]\nx", b'[200, "", 0]\nnot compressed', b"\xff\n"):
        assert RobotsTxt.unpack(junk) is None
    file = RobotsTxt(b"User-agent: *\nDisallow: /x\n", 200)
    assert RobotsTxt.unpack(file.pack()) == file
    with server.client() as client:
        key = f"{{semaphore}}:cache:robotstxt:{site.url('')}"
        client.set(key, b"junk", ex=600)
    await Crawl(server, *pages(site, 1), **POLITE).finished()
    assert site.arrivals == ["/robots.txt", "/page/0"]
    with server.client() as client:
        assert RobotsTxt.unpack(client.get(key)) == RobotsTxt(site.robots.encode(), 200)


def test_of_a_file_that_is_too_long_whole_lines_are_read() -> None:
    line = b"Allow: /0123456789\n"
    body = line * (MAX_BYTES // len(line) + 10)
    text = RobotsTxt.of_body(body, 200).text
    assert MAX_BYTES - len(line) < len(text) <= MAX_BYTES
    assert text == line * (len(text) // len(line))
    assert RobotsTxt.of_body(b"Allow: /" * MAX_BYTES, 200).text == b""
    assert RobotsTxt.of_body(body[:MAX_BYTES], 200).text == body[:MAX_BYTES]


async def test_one_node_fetches_it(server: RedisServer, site: Site) -> None:
    """A later node reuses it, too; requests that wait for another node's fetch use no slot."""
    site.robots, site.robots_is_slow = "User-agent: *\nDisallow: /page/1", True
    settings = {"CONCURRENT_REQUESTS": 1, **POLITE}
    first = Crawl(server, *pages(site, 2), SEMAPHORE_NODE="a", **settings)
    await site.until(lambda: site.now == 1)
    free = Request(site.url("/page/free", "localhost"), meta={"dont_obey_robotstxt": True})
    second = Crawl(server, *pages(site, 2), free, SEMAPHORE_NODE="b", **settings)
    await site.until(lambda: "/page/free" in site.arrivals)
    await first.finished(site)
    await second.finished()
    third = Crawl(server, *pages(site, 2), SEMAPHORE_NODE="c", **settings)
    await third.finished()
    of_site = [visit.path for visit in site.visits if visit.host == "127.0.0.1"]
    assert sorted(of_site) == ["/page/0"] * 3 + ["/robots.txt"]
    reused = [crawl.stat("semaphore/robotstxt_reused") for crawl in (first, second, third)]
    assert reused == [0, 1, 1]
    asked = [crawl.stat("robotstxt/request_count") for crawl in (first, second, third)]
    assert asked == [1, 0, 0]


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
    await crawl.finished(site)
    ours = "semaphore_middleware.scrapy.robotstxt"
    assert [name for name in chain if "robotstxt" in name] == [ours]
    assert site.arrivals == ["/robots.txt"]
    assert crawl.stat("robotstxt/forbidden") == 6


async def test_a_disabled_middleware_stays_disabled(server: RedisServer, site: Site) -> None:
    off: dict[Any, Any] = {SCRAPYS: None}
    await Crawl(server, *pages(site, 1), middlewares=off, **POLITE).finished()
    assert site.arrivals == ["/page/0"]
