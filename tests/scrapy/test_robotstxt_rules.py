"""What each answer to a request for robots.txt does to a crawl, and for how long."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any, ClassVar

import pytest
from scrapy import Request, signals
from scrapy.exceptions import DontCloseSpider, IgnoreRequest

from lab.demo.judging import Visit, response
from semaphore_middleware import FairSemaphore
from semaphore_middleware.errors import AcquireTimeoutError
from semaphore_middleware.scrapy import robotstxt
from semaphore_middleware.scrapy.downloads import NotAllowedError
from semaphore_middleware.scrapy.engine import RobotsTxtUnreadableError
from semaphore_middleware.scrapy.robotstxt import MAX_AGE_S, SharedFiles
from semaphore_middleware.scrapy.scopes import origin_of
from tests.plugin import in_the_loop
from tests.support.crawls import Crawl, Log, Patch, host_of, more_hosts
from tests.support.nodes import eventually
from tests.support.servers import RedisServer
from tests.support.site import Site
from tests.support.visits import Visits

POLITE: dict[str, Any] = {"ROBOTSTXT_OBEY": True, "USER_AGENT": "bot"}
FORBIDDING = "User-agent: *\nDisallow: /\n"
MOVED = "/redirect"

# The answer to a request for robots.txt, the number of requests for anything except the page
# (Scrapy retries an error once here; the add-on retries SEMAPHORE_BACKOFF_CODES once), and the
# outcome for the page.
ANSWERS = {
    "200": ("/rules", 1, "forbidden"),
    "204": ("/status/204", 1, "fetched"),
    "302, 5 times": (f"{5 * MOVED}/rules", 6, "forbidden"),
    "302, 6 times": (f"{6 * MOVED}/rules", 6, "fetched"),
    "302 to a file": ("/raw/302 Found\r\nLocation: file:///etc/passwd", 1, "fetched"),
    "302 to nowhere": ("/raw/302 Found\r\nLocation: http://[", 1, "fetched"),
    "302 to what is unreachable": (f"{MOVED}/status/500", 3, "unreadable"),
    "304": ("/raw/304 Not Modified", 1, "fetched"),
    "404": ("/status/404", 1, "fetched"),
    "404, cut off": ("/cut/404", 1, "fetched"),
    "403, not compressed as it says": ("/plain/403", 1, "fetched"),
    "500, not compressed as it says": ("/plain/500", 2, "unreadable"),
    "302, not compressed as it says": ("/plain/302", 2, "fetched"),
    "429": ("/status/429", 2, "unreadable"),
    "500": ("/status/500", 2, "unreadable"),
    "503": ("/status/503", 2, "unreadable"),
    "999": ("/raw/999 Denied", 1, "unreadable"),
    "closes": ("/drop", 2, "unreadable"),
    "never answers": ("/never", 2, "unreadable"),
    "100 MB, as it says at once": ("/huge", 1, "forbidden"),
    "without an end": ("/endless", 1, "forbidden"),
    "a byte from time to time": ("/drip", 2, "unreadable"),
    "cut off": ("/cut/200", 2, "unreadable"),
    "not compressed as it says": ("/plain/200", 1, "unreadable"),
    "UTF-16": ("/utf16", 1, "fetched"),
    "no text": ("/rubbish", 1, "fetched"),
    "20 MB when they are decompressed": ("/bomb", 1, "unreadable"),
}


class HostileSite(Site):
    """Answers with the harmful robots.txt files that `ANSWERS` names."""

    def __init__(self) -> None:
        super().__init__()
        self.robots = FORBIDDING
        self.sent: dict[str, int] = {}
        """How much of a body each host's visitors have taken."""

    async def _respond(self, visit: Visit, kind: str, rest: str, query: str) -> None:
        match kind:
            case "huge" | "endless" | "drip":
                await self._send_without_end(visit, kind)
            case "raw":
                visit.answer(f"HTTP/1.1 {rest}\r\nContent-Length: 0\r\n\r\n".encode())
            case "cut":
                whole = response(FORBIDDING, int(rest), "text/plain")
                visit.transport.write(whole[:-1])
                visit.transport.close()
            case "plain":
                headers = {"Content_Encoding": "gzip", "Location": "/status/404"}
                visit.answer(response("plain", int(rest), "text/plain", **headers))
            case "utf16":
                visit.answer(response(FORBIDDING.encode("utf-16"), kind="text/plain"))
            case "rubbish":
                visit.answer(response(bytes(range(256)) * 4000, kind="text/plain"))
            case "bomb":
                body = gzip.compress(FORBIDDING.encode() + bytes(20_000_000))
                visit.answer(response(body, kind="text/plain", Content_Encoding="gzip"))
            case _:
                await super()._respond(visit, kind, rest, query)

    async def _send_without_end(self, visit: Visit, kind: str) -> None:
        length = b"Content-Length: 100000000\r\n" if kind == "huge" else b""
        visit.transport.write(b"HTTP/1.1 200 OK\r\n%b\r\n%b" % (length, FORBIDDING.encode()))
        part = b"#" if kind == "drip" else b"# " + 10_000 * b"x" + b"\n"
        while not visit.transport.is_closing():
            if visit.transport.get_write_buffer_size() == 0:
                visit.transport.write(part)
                self.sent[visit.host] = self.sent.get(visit.host, 0) + len(part)
            await asyncio.sleep(0.02 if kind == "drip" else 0)


class Impatient:
    """Gives up these hosts soon, and waits for all others, however busy the machine is."""

    hosts: ClassVar[set[str]] = set()

    def process_request(self, request: Request) -> None:
        if host_of(request.url) in self.hosts:
            request.meta["download_timeout"] = 1.0


@pytest.fixture
def hostile() -> Iterator[HostileSite]:
    site = HostileSite()
    in_the_loop(site.start)
    try:
        yield site
    finally:
        in_the_loop(site.stop)


async def test_hostile_answers(server: RedisServer, hostile: HostileSite, caplog: Log) -> None:
    hosts = dict(zip(ANSWERS, await more_hosts(hostile, len(ANSWERS)), strict=True))
    hostile.robots_as = {host: ANSWERS[name][0] for name, host in hosts.items()}
    pages = [Request(hostile.url("/page", host)) for host in hosts.values()]
    pages.append(Request("http://nowhere.invalid/page"))
    Impatient.hosts = {hosts["never answers"], hosts["a byte from time to time"]}
    crawl = Crawl(server, *pages, middlewares={Impatient: 10}, **POLITE)
    await crawl.finished()
    for name, (_, asked, outcome) in ANSWERS.items():
        paths = [visit.path for visit in hostile.visits if visit.host == hosts[name]]
        # On a busy machine a request that is given up soon may not reach the site.
        is_asked = len(paths) - paths.count("/page")
        assert is_asked == asked or (hosts[name] in Impatient.hosts and is_asked < asked), name
        assert ("/page" in paths) == (outcome == "fetched"), name
    outcomes = ["unreadable", *(outcome for *_, outcome in ANSWERS.values())]  # nowhere.invalid's
    assert crawl.stat("robotstxt/forbidden") == len(outcomes) - outcomes.count("fetched")
    assert crawl.stat("robotstxt/request_count") == len(outcomes)
    lines = [line for line in caplog.messages if "cannot be read" in line]
    assert len(lines) == outcomes.count("unreadable")
    assert sum("(429 " in line for line in lines) == 1
    assert sum("is longer than 500 KiB: rules after" in line for line in caplog.messages) == 3
    of_utf16 = f"The robots.txt of http://{hosts['UTF-16']}:{hostile.port} has NUL bytes"
    assert sum(of_utf16 in line for line in caplog.messages) == 1
    assert max(hostile.sent.values()) < 10_000_000, "a little more than what is read"
    assert crawl.stat("semaphore/acquired") == crawl.stat("semaphore/released")
    assert server.members() == {}


class StayingThere(Visits):
    allowed_domains = ("127.0.0.1",)


async def test_a_redirect_may_lead_off_the_site(server: RedisServer, site: Site) -> None:
    await site.listen("127.0.0.2", site.port)
    site.robots_as = {"127.0.0.1": f"{MOVED}//127.0.0.2:{site.port}/rules"}
    site.robots = FORBIDDING
    crawl = Crawl(server, Request(site.url("/page")), spider=StayingThere, **POLITE)
    await crawl.finished()
    assert site.arrivals == ["/robots.txt", "/rules"]
    assert crawl.stat("robotstxt/forbidden") == 1


class Reader:
    """A crawl that goes on, and fetches the pages that the test names."""

    def __init__(self, server: RedisServer, site: Site, **settings: Any) -> None:
        free = {"dont_obey_robotstxt": True, "semaphore_skip": True}
        first = Request(site.url("/page/first", "localhost"), meta=free)
        self.site = site
        self.crawl = Crawl(server, first, **POLITE, **settings)
        self.crawl.crawler.signals.connect(self._go_on, signals.spider_idle)

    def _go_on(self) -> None:
        raise DontCloseSpider

    async def fetch(self, path: str = "/page/", host: str = "127.0.0.1") -> bool:
        """False if the page was forbidden."""
        request = Request(self.site.url(path, host))
        try:
            await self.crawl.crawler.engine.download_async(request)
        except IgnoreRequest as error:
            if type(error) not in (IgnoreRequest, RobotsTxtUnreadableError):
                raise
            return False
        return True

    @property
    def asked(self) -> list[str]:
        """The hosts that were asked for robots.txt."""
        return [visit.host for visit in self.site.visits if visit.path == "/robots.txt"]


@asynccontextmanager
async def reader(server: RedisServer, site: Site, **settings: Any) -> AsyncIterator[Reader]:
    made = Reader(server, site, **settings)
    await site.until(lambda: "/page/first" in site.arrivals)
    yield made
    await made.crawl.crawler.engine.close_spider_async()
    await made.crawl.finished()
    assert server.members() == {}


async def test_an_unreachable_one_may_allow(server: RedisServer, site: Site, caplog: Log) -> None:
    site.robots_as = {"127.0.0.1": "/status/500"}
    async with reader(server, site, SEMAPHORE_ROBOTSTXT_UNREACHABLE="allow") as crawl:
        assert await crawl.fetch()
        assert "requests there are allowed" in caplog.text


async def test_unreadable_is_told_from_forbidding(
    server: RedisServer, site: Site, caplog: Log
) -> None:
    caplog.set_level("INFO")
    (forbidding,) = await more_hosts(site, 1)
    site.robots_as = {"127.0.0.1": "/status/500", forbidding: "/rules"}
    site.robots = FORBIDDING
    async with reader(server, site) as crawl:
        download = crawl.crawl.crawler.engine.download_async
        with pytest.raises(RobotsTxtUnreadableError, match="cannot be read"):
            await download(Request(site.url("/page/")))
        with pytest.raises(IgnoreRequest) as raised:
            await download(Request(site.url("/page/", forbidding)))
        assert type(raised.value) is IgnoreRequest
        with pytest.raises(IgnoreRequest):
            await download(Request(site.url("/page/2", forbidding)))
        assert caplog.text.count(f"The robots.txt of http://{forbidding}") == 1
        assert f"forbids <GET {site.url('/page/', forbidding)}>" in caplog.text


async def test_a_file_of_http_allows_nothing_over_https(server: RedisServer, site: Site) -> None:
    async with reader(server, site) as crawl:
        assert await crawl.fetch()
        download = crawl.crawl.crawler.engine.download_async
        with pytest.raises(RobotsTxtUnreadableError):
            await download(Request(site.url("/page/").replace("http:", "https:")))


async def test_a_parser_that_fails_forbids(server: RedisServer, site: Site, caplog: Log) -> None:
    settings = {"ROBOTSTXT_PARSER": "scrapy.robotstxt.PythonRobotParser"}
    async with reader(server, site, **settings) as crawl:
        assert not await crawl.fetch("/forbidden")
        assert await crawl.fetch()
        (other,) = await more_hosts(site, 1)
        site.robots = f"User-agent: *\nCrawl-delay: {'9' * 5000}"  # for Python's integers
        assert not await crawl.fetch(host=other)
    assert "its parser failed: ValueError" in caplog.text


def test_each_scheme_and_port_has_its_own() -> None:
    urls = ["http://a/", "https://a/", "http://A:80/", "http://u:secret@a/", "http://a:8080/"]
    origins = [origin_of(Request(url)) for url in urls]
    assert origins == ["http://a", "https://a", "http://a", "http://a", "http://a:8080"]
    assert origin_of(Request("https://[::1]:443/")) == "https://[::1]"


async def test_no_permit_for_it_opens_no_site(server: RedisServer, site: Site) -> None:
    site.robots = FORBIDDING
    settings = {"SEMAPHORE_ACQUIRE_TIMEOUT": 0.1, "RETRY_ENABLED": False}
    async with (
        FairSemaphore(server.url) as other,
        reader(server, site, **settings) as crawl,
    ):
        held = await other.acquire("127.0.0.1", 1)
        fetches = [crawl.fetch(f"/page/{n}") for n in range(3)]
        results = await asyncio.gather(*fetches, return_exceptions=True)
        assert [type(result) for result in results] == [AcquireTimeoutError] * 3
        assert crawl.asked == []
        held.release()

        async def is_forbidden() -> bool:  # as soon as a busy machine gives it a permit in time
            with suppress(AcquireTimeoutError):
                return not await crawl.fetch()
            return False

        await eventually(is_forbidden)
        assert crawl.asked == ["127.0.0.1"]


def by_section(request: Request) -> str:
    return f"section {request.meta['section']}"


async def test_a_function_that_fails_opens_no_site(server: RedisServer, site: Site) -> None:
    site.robots = FORBIDDING
    scopes = ["host", f"{__name__}.by_section"]
    pages = (Request(site.url(f"/page/{n}"), meta={"section": "news"}) for n in range(2))
    crawl = Crawl(server, *pages, SEMAPHORE_SCOPES=scopes, **POLITE)
    await crawl.finished()
    assert site.arrivals == []
    assert [type(failure) for failure in crawl.spider.failures] == [NotAllowedError] * 2
    said = "by_section in SEMAPHORE_SCOPES raised KeyError('section')"
    for failure in crawl.spider.failures:
        assert str(failure) == f"<GET {site.url('/robots.txt')}>: {said}"


class RefusesRobots:
    """A user's middleware that drops all requests for robots.txt."""

    def process_request(self, request: Request) -> None:
        if request.url.endswith("/robots.txt"):
            raise IgnoreRequest("not in the cache")


async def test_what_a_middleware_refuses_is_allowed(
    server: RedisServer, site: Site, caplog: Log
) -> None:
    site.robots = FORBIDDING
    async with reader(server, site, middlewares={RefusesRobots: 10}) as crawl:
        assert [await crawl.fetch(f"/page/{n}") for n in range(2)] == [True, True]
        assert crawl.asked == []
        assert crawl.crawl.stat("robotstxt/request_count") == 0
    said = "A middleware dropped the request for the robots.txt of"
    assert len([line for line in caplog.messages if line.startswith(said)]) == 1


async def test_if_who_asks_is_cancelled_another_asks(server: RedisServer, site: Site) -> None:
    site.robots, site.robots_is_slow = FORBIDDING, True
    async with reader(server, site, limit=2) as crawl:
        fetches = [asyncio.ensure_future(crawl.fetch(f"/page/{n}")) for n in range(3)]
        await eventually(lambda: crawl.asked)
        fetches[0].cancel()
        await eventually(lambda: len(crawl.asked) == 2)
        site.let_go()
        assert [await fetch for fetch in fetches[1:]] == [False, False]


class Clock:
    """The clock by which a node's robots.txt files expire; the server has its own."""

    now = 1000.0


@pytest.fixture
def clock(monkeypatch: Patch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(robotstxt, "_now", lambda: clock.now)
    monkeypatch.setattr(SharedFiles, "put_file", lambda *_: None)
    return clock


async def test_it_is_asked_for_each_day(server: RedisServer, site: Site, clock: Clock) -> None:
    assert MAX_AGE_S == 24 * 60 * 60
    site.robots, site.robots_is_slow = "", True
    async with reader(server, site) as crawl:
        first = asyncio.ensure_future(crawl.fetch())
        await eventually(lambda: crawl.asked)
        clock.now += 600
        site.let_go()
        assert await first
        site.robots = FORBIDDING
        clock.now += MAX_AGE_S - 601
        assert await crawl.fetch()
        clock.now += 2
        assert not await crawl.fetch()
        assert len(crawl.asked) == 2


async def test_old_rules_are_forgotten(server: RedisServer, site: Site, monkeypatch: Patch) -> None:
    monkeypatch.setattr(robotstxt, "ORIGINS_MAX", 2)
    a, b, c = await more_hosts(site, 3)
    async with reader(server, site) as crawl:
        for host in (a, b, a, c, a, b):
            assert not await crawl.fetch("/forbidden", host)
        assert crawl.asked == [a, b, c]
    assert crawl.crawl.stat("semaphore/robotstxt_reused") == 1


async def test_an_unreachable_one_is_asked_for_again_after_pauses_that_double(
    server: RedisServer, site: Site, clock: Clock, caplog: Log
) -> None:
    caplog.set_level("INFO")
    pauses = {"SEMAPHORE_BACKOFF_START": 10, "SEMAPHORE_BACKOFF_MAX": 30, "RETRY_ENABLED": False}
    site.robots_as = {"127.0.0.1": "/status/500"}
    async with reader(server, site, **pauses) as crawl:
        for times, pause in enumerate((10.0, 20.0, 30.0, 30.0), start=1):
            assert not await crawl.fetch()
            clock.now += pause - 0.1
            assert not await crawl.fetch()
            assert len(crawl.asked) == times
            clock.now += 0.2
        site.robots_as = {}
        assert await crawl.fetch()
        assert "can be read again" in caplog.text
    [line] = [line for line in caplog.messages if "cannot be read" in line]
    assert "(500 Internal Server Error). Until it can be, requests there are forbidden" in line
    assert "It is requested again after 10 s, then at longer intervals, up to 30 s." in line


async def test_one_that_answers_429_is_asked_for_again_after_an_hour(
    server: RedisServer, site: Site, clock: Clock, caplog: Log
) -> None:
    site.robots_as = {"127.0.0.1": "/status/429"}
    async with reader(server, site, RETRY_ENABLED=False) as crawl:
        for times in (1, 2):
            assert not await crawl.fetch()
            clock.now += 3600 - 0.1
            assert not await crawl.fetch()
            assert len(crawl.asked) == times
            clock.now += 0.2
        site.robots_as = {}
        assert await crawl.fetch()
    [line] = [line for line in caplog.messages if "cannot be read" in line]
    assert line.endswith("It is requested again after 3600 s.")
