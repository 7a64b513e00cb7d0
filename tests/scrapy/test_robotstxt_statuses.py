"""What a crawl fetches from a site whose robots.txt is answered in this way, as the site saw it."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Iterator
from typing import Any

import pytest
from scrapy import Request
from twisted.python.failure import Failure

from semaphore_middleware import FairSemaphore
from semaphore_middleware.errors import AcquireTimeoutError
from semaphore_middleware.scrapy.throttler import NotAllowedError
from tests.conftest import in_the_loop
from tests.support.crawls import Crawl, asyncio_test
from tests.support.servers import RedisServer
from tests.support.site import Site, Visit, response
from tests.support.visits import Visits

POLITE: dict[str, Any] = {"ROBOTSTXT_OBEY": True, "USER_AGENT": "bot", "DOWNLOAD_TIMEOUT": 1.0}
FORBIDDING = "User-agent: *\nDisallow: /\n"
MOVED = "/redirect"

# What is asked for beside the page, how often (Scrapy retries an error once here, and what is in
# SEMAPHORE_BACKOFF_CODES is retried once apart from that), and whether the page is fetched.
STATUSES = {
    "200": ("/rules", 1, False),
    "204": ("/status/204", 1, True),
    "302, 5 times": (f"{5 * MOVED}/rules", 6, False),
    "302, 6 times": (f"{6 * MOVED}/rules", 6, True),
    "401": ("/status/401", 1, True),
    "403": ("/status/403", 1, True),
    "404": ("/status/404", 1, True),
    "410": ("/status/410", 1, True),
    "429": ("/status/429", 2, True),
    "500": ("/status/500", 2, False),
    "503": ("/status/503", 2, False),
    "closes": ("/drop", 2, False),
    "never answers": ("/never", 2, False),
}


class HostileSite(Site):
    """Answers with robots.txt files that are to do harm.

    /huge               100 MB, as it says at once; /endless does not say, and has no end
    /drip               a byte from time to time, without an end
    /rubbish            bytes that are no text
    /bomb               a few bytes that are 20 MB when they are decompressed
    /headers            a header field of 1 MB
    /around             redirects to itself
    """

    def __init__(self) -> None:
        super().__init__()
        self.sent: dict[str, int] = {}
        """How much of a body each host's visitors have taken."""

    async def _respond(self, visit: Visit, kind: str, rest: str, query: str) -> None:
        match kind:
            case "huge" | "endless" | "drip":
                await self._send_without_end(visit, kind)
            case "rubbish":
                visit.answer(response(bytes(range(256)) * 4000, kind="text/plain"))
            case "bomb":
                body = gzip.compress(FORBIDDING.encode() + bytes(20_000_000))
                visit.answer(response(body, kind="text/plain", Content_Encoding="gzip"))
            case "headers":
                visit.answer(response(FORBIDDING, X_Long="x" * 1_000_000))
            case "around":
                visit.answer(response(status=302, Location="/around"))
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
            await asyncio.sleep(0.02 if kind == "drip" else 0.001)


@pytest.fixture
def hostile() -> Iterator[HostileSite]:
    site = HostileSite()
    in_the_loop(site.start)
    try:
        yield site
    finally:
        in_the_loop(site.stop)


class StayingThere(Visits):
    allowed_domains = ("127.0.0.1",)


class AskingAgain(Visits):
    """Makes what has failed once more."""

    def failed(self, failure: Failure) -> Any:
        return failure.request.replace(dont_filter=True)  # type: ignore[attr-defined]


async def pages(site: Site, answers: dict[str, str]) -> dict[str, Request]:
    """A page for each way to answer, each on a host of its own, which answers in this way."""
    found = {}
    for number, (name, path) in enumerate(answers.items(), start=2):
        host = f"127.0.0.{number}"
        found[name] = Request(f"http://{host}:{await site.listen(host)}/page")
        site.robots_as[host] = path
    return found


def seen(site: Site, request: Request) -> tuple[int, bool]:
    """How often a page's host was asked for anything else, and whether for the page."""
    host = request.url.split("/")[2].partition(":")[0]
    paths = [visit.path for visit in site.visits if visit.host == host]
    return len(paths) - paths.count("/page"), "/page" in paths


@asyncio_test
async def test_what_is_fetched(
    server: RedisServer, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.robots = FORBIDDING
    requests = await pages(site, {name: path for name, (path, *_) in STATUSES.items()})
    unknown = Request("http://nowhere.invalid/page")
    crawl = Crawl(server, *requests.values(), unknown, **POLITE)
    await crawl.finished()

    found = {name: seen(site, request) for name, request in requests.items()}
    assert found == {name: (asked, fetched) for name, (_, asked, fetched) in STATUSES.items()}
    forbidden = 1 + sum(not fetched for *_, fetched in STATUSES.values())
    assert crawl.stat("robotstxt/forbidden") == forbidden
    assert crawl.stat("robotstxt/request_count") == len(STATUSES) + 1
    lines = [line.message for line in caplog.records if "cannot be read" in line.message]
    assert len(lines) == len(["500", "503", "closes", "never answers", "nowhere.invalid"])
    assert crawl.stat("semaphore/acquired") == crawl.stat("semaphore/released")
    assert server.members() == {}


@asyncio_test
async def test_hostile_answers_do_no_harm(server: RedisServer, hostile: HostileSite) -> None:
    hostile.robots = FORBIDDING
    allowed = {
        "/huge": False,
        "/endless": False,
        "/drip": False,
        "/rubbish": True,
        "/bomb": False,
        "/headers": False,
        "/around": True,
        "/status/404": True,
    }
    requests = await pages(hostile, {path: path for path in allowed})
    crawl = Crawl(server, *requests.values(), **POLITE)
    await crawl.finished()

    assert {path: seen(hostile, request)[1] for path, request in requests.items()} == allowed
    assert max(hostile.sent.values()) < 10_000_000, "a little more than what is read"
    assert len(hostile.visits) < 30
    assert crawl.stat("semaphore/acquired") == crawl.stat("semaphore/released")


@asyncio_test
async def test_a_redirect_may_lead_off_the_site_that_is_crawled(
    server: RedisServer, site: Site
) -> None:
    port = await site.listen("127.0.0.2")
    site.robots_as = {"127.0.0.1": f"{MOVED}//127.0.0.2:{port}/rules"}
    site.robots = FORBIDDING
    crawl = Crawl(server, Request(site.url("/page")), spider=StayingThere, **POLITE)
    await crawl.finished()
    assert site.arrivals == ["/robots.txt", "/rules"]
    assert crawl.stat("robotstxt/forbidden") == 1


@asyncio_test
async def test_a_robots_txt_that_waits_too_long_for_our_permit_opens_no_site(
    server: RedisServer, site: Site
) -> None:
    site.robots = FORBIDDING
    async with FairSemaphore(server.url) as other:
        held = await other.acquire("127.0.0.1", 1)
        settings = {**POLITE, "SEMAPHORE_ACQUIRE_TIMEOUT": 0.1}
        crawl = Crawl(server, Request(site.url("/page/1")), **settings)
        await crawl.finished()
        held.release()
    assert site.arrivals == []
    assert crawl.stat("robotstxt/forbidden") == 0
    assert [type(failure) for failure in crawl.spider.failures] == [AcquireTimeoutError]


def by_section(request: Request) -> str:
    return f"section {request.meta['section']}"


@asyncio_test
async def test_a_function_that_fails_for_a_robots_txt_opens_no_site(
    server: RedisServer, site: Site
) -> None:
    site.robots = FORBIDDING
    scopes = ["host", f"{__name__}.by_section"]
    pages = (Request(site.url(f"/page/{n}"), meta={"section": "news"}) for n in range(2))
    crawl = Crawl(server, *pages, SEMAPHORE_SCOPES=scopes, **POLITE)
    await crawl.finished()
    assert site.arrivals == []
    assert [type(failure) for failure in crawl.spider.failures] == [NotAllowedError] * 2
    for failure in crawl.spider.failures:
        assert str(failure) == (
            f"<GET {site.url('/robots.txt')}>: by_section in SEMAPHORE_SCOPES raised "
            "KeyError('section')"
        )


@asyncio_test
async def test_a_site_that_can_be_read_again_is_crawled(server: RedisServer, site: Site) -> None:
    site.robots_as = {"127.0.0.1": "/status/500"}
    crawl = Crawl(server, Request(site.url("/page")), spider=AskingAgain, **POLITE)
    await site.until(lambda: site.arrivals.count("/robots.txt") >= 4)
    assert "/page" not in site.arrivals
    site.robots_as = {}
    await crawl.finished()
    assert site.arrivals[-1] == "/page"
