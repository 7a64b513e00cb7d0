"""However a request ends, its permit is given back exactly once."""

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request, exceptions, signals
from scrapy.exceptions import CloseSpider, IgnoreRequest, NotSupported, StopDownload
from scrapy.http import Response
from scrapy.spidermiddlewares.httperror import HttpError
from twisted.internet.defer import CancelledError
from twisted.python.failure import Failure
from twisted.web.client import ResponseFailed, ResponseNeverReceived

from semaphore_middleware.errors import AcquireTimeoutError, SemaphoreError
from semaphore_middleware.middleware import SemaphoreMiddleware
from semaphore_middleware.scrapy import closing, downloads, network
from semaphore_middleware.scrapy.crawl import crawl_of
from semaphore_middleware.scrapy.versions import (
    CannotResolveHostError,
    DownloadConnectionRefusedError,
    DownloadTimeoutError,
)
from tests.support.crawls import (
    ADD_ON,
    ALONE,
    By,
    Crawl,
    Patch,
    both,
    host_of,
    more_hosts,
    set_options,
    taken,
    waiting,
)
from tests.support.nodes import eventually
from tests.support.servers import RedisServer, free_port
from tests.support.site import Site
from tests.support.times import ENDLESS_S
from tests.support.visits import FetchesFirst, Visits


@pytest.fixture(autouse=True)
def no_test_of_the_network(monkeypatch: Patch) -> None:
    """So many hosts close connections here that the node would test its network. That takes permits
    of other hosts, but here each request's are counted.
    """
    monkeypatch.setattr(network, "SITES", 1000)


@dataclass(frozen=True)
class Case:
    """What two requests of one host meet, how often each is made, and how each ends."""

    path: str
    requests: int = 1
    error: type[Exception] | None = None
    meta: dict[str, Any] = field(default_factory=dict)


# Since Scrapy 2.15 with names of its own.
FAILED = getattr(exceptions, "DownloadFailedError", ResponseNeverReceived)
LOST = getattr(exceptions, "ResponseDataLossError", ResponseFailed)
CANCELLED = getattr(exceptions, "DownloadCancelledError", CancelledError)
SOON, SMALL = {"download_timeout": 0.5}, {"download_maxsize": 1000}
CASES = {
    "response": Case("/page/"),
    "redirect": Case("/redirect/page/", 2),
    "meta refresh": Case("/refresh/page/", 2),
    "HTTP error": Case("/status/404", 1, HttpError),
    "retries that end in an HTTP error": Case("/status/503", 2, HttpError),
    "retry that ends in a response": Case("/status-once/503", 2),
    "connection dropped before the headers": Case("/drop", 2, FAILED),
    "connection dropped midway": Case("/drop-midway", 2, LOST),
    "truncated body": Case("/truncated", 2, LOST),
    "download timeout": Case("/never", 2, DownloadTimeoutError, SOON),
    "download timeout within the body": Case("/half/", 2, DownloadTimeoutError, SOON),
    "body too large": Case("/large", 1, CANCELLED, SMALL),
    "stopped at its headers": Case("/half/", meta={"stops_at": signals.headers_received}),
    "stopped within its body": Case("/half/", meta={"stops_at": signals.bytes_received}),
    "callback that raises": Case("/page/", meta={"raises": True}),
}
ELSEWHERE = {
    "http://127.0.0.1:{free_port}/": Case("", 2, DownloadConnectionRefusedError),
    "http://nowhere.invalid/": Case("", 2, CannotResolveHostError),  # as RFC 6761 says
    "gopher://127.0.0.254/": Case("", 1, NotSupported),
}


class Outcomes(Visits):
    """Keeps how the requests of each host have ended: with which error, or with a response."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.of: defaultdict[str, list[type | None]] = defaultdict(list)

    async def parse(self, response: Response) -> Any:
        self.of[host_of(response.url)].append(None)
        if "raises" in response.meta:
            raise ValueError(response.url)

    def failed(self, failure: Failure) -> None:
        request: Request = failure.request  # type: ignore[attr-defined]
        self.of[host_of(request.url)].append(failure.type)


@both
async def test_whatever_a_site_does(server: RedisServer, site: Site, by: By) -> None:
    of_site = dict(zip(await more_hosts(site, len(CASES)), CASES.values(), strict=True))
    urls = {site.url(case.path, host): case for host, case in of_site.items()}
    urls |= {url.format(free_port=free_port()): case for url, case in ELSEWHERE.items()}
    requests = [
        Request(f"{url}?{name}", meta={"download_timeout": ENDLESS_S, **case.meta})
        for url, case in urls.items()
        for name in "ab"
    ]
    # Scrapy counts waiting requests, too, and before 2.18 it knows no limit of 0.
    at_once = 0 if by is ADD_ON else 1000
    crawl = Crawl(server, *requests, by=by, spider=Outcomes, CONCURRENT_REQUESTS=at_once)

    def stop(request: Request, signal: object) -> None:
        if request.meta.get("stops_at") is signal:
            raise StopDownload(fail=False)

    for signal in (signals.headers_received, signals.bytes_received):
        crawl.crawler.signals.connect(stop, signal)

    await crawl.finished()  # while the site still answers some of them only in part
    await crawl.gave_back(2 * sum(case.requests for case in urls.values()), site)
    assert isinstance(crawl.spider, Outcomes)
    expected = {host_of(url): case for url, case in urls.items()}
    assert crawl.spider.of == {host: [case.error] * 2 for host, case in expected.items()}
    asked = Counter(visit.host for visit in site.visits)
    for host, case in of_site.items():
        # On a busy machine a request that is given up soon may not reach the site.
        assert asked[host] == 2 * case.requests or (case.meta is SOON and asked[host] < 4), case
    for host, case in expected.items():
        assert crawl.stat(f"semaphore/scope/{host}/acquired") == 2 * case.requests, case
    assert crawl.stat("spider_exceptions/ValueError") == 2


async def test_a_request_is_fetched_once_at_a_time(server: RedisServer, site: Site) -> None:
    crawl = Crawl(server, request := Request(site.url("/slow/")), limit=2)
    await site.until(lambda: site.now == 1)
    middleware = crawl.crawler.get_downloader_middleware(SemaphoreMiddleware)
    assert middleware is not None
    with pytest.raises(SemaphoreError, match="is being fetched already; yield a copy of it"):
        await middleware.process_request(request)
    await crawl.gave_back(1, site)
    assert len(crawl.spider.responses) == len(site.arrivals) == 1


@both
async def test_a_transfer_without_a_fetch(
    server: RedisServer, site: Site, monkeypatch: Patch, by: By
) -> None:
    """As of one that was cancelled while it stood in the queue of Scrapy's slot."""
    # If the reuse window were over, the spider could close before the grant.
    set_options(monkeypatch, reuse_window=ENDLESS_S)
    crawl = Crawl(server, Request(site.url("/slow/")), by=by)
    await site.until(lambda: site.now == 1)
    admissions = crawl_of(crawl.crawler).downloads.admissions
    download = crawl.crawler.engine.downloader.handlers.download_request_async
    transfer = asyncio.ensure_future(download(Request(site.url("/page/"))))
    await eventually(lambda: server.members() == {"127.0.0.1": (1, 1)})
    site.let_go()
    await transfer
    await crawl.gave_back(2, site)
    assert not list(admissions)


async def test_cached_pages_take_no_permit(server: RedisServer, site: Site, tmp_path: Path) -> None:
    cache: dict[str, Any] = {"HTTPCACHE_ENABLED": True, "HTTPCACHE_DIR": str(tmp_path)}
    request = Request(site.url("/page/"))
    await Crawl(server, request, **cache).gave_back(1, site)
    again = Crawl(server, request, **cache)
    await again.gave_back(0, site)
    assert "cached" in again.spider.responses[0].flags
    assert len(site.arrivals) == 1


@both
@pytest.mark.parametrize("retries", [0, 1000], ids=["errback", "retries"])
async def test_acquire_timeout(server: RedisServer, site: Site, by: By, retries: int) -> None:
    settings: dict[str, Any] = {"SEMAPHORE_ACQUIRE_TIMEOUT": 0.2, "RETRY_TIMES": retries}
    async with taken(server, "127.0.0.1") as release:
        crawl = Crawl(server, Request(site.url("/page/")), by=by, **settings)
        await eventually(lambda: waiting(server))
        await eventually(lambda: crawl.spider.failures or crawl.stat("retry/count"))
        release()
        await crawl.finished()
    # A permit that comes as the time is up is counted and goes back.
    granted = crawl.stat("semaphore/acquired")
    assert granted >= bool(retries)
    await crawl.gave_back(granted, site)
    assert site.arrivals == (["/page/"] if retries else [])
    failures = [type(failure) for failure in crawl.spider.failures]
    assert failures == ([] if retries else [AcquireTimeoutError])
    assert retries or crawl.stat("semaphore/timeouts") == 1


BEFORE, AFTER = 940, 960  # ours is at 950
PATHS = {"process_request": "/page/", "process_response": "/page/", "process_exception": "/drop"}
OUTCOMES = ["a response", "a request", "itself", "drop", "bug"]


class Interferer:
    """Does what a request's `meta` says, in the method it names; after that lets it pass."""

    def process_request(self, request: Request) -> Any:
        return self._interfere("process_request", request)

    def process_response(self, request: Request, response: Response) -> Any:
        return self._interfere("process_response", request) or response

    def process_exception(self, request: Request, exception: Exception) -> Any:  # noqa: ARG002
        return self._interfere("process_exception", request)

    def _interfere(self, method: str, request: Request) -> Any:
        if request.meta.get("in") != method:
            return None
        del request.meta["in"]
        match request.meta["outcome"]:
            case "a response":
                return Response(request.url)
            case "a request":
                return request.replace(url=request.meta["then"])
            case "itself":
                return request
            case "drop":
                raise IgnoreRequest
            case _:
                raise ValueError("a bug in a middleware")


def interfered(site: Site, host: str, method: str, outcome: str) -> list[Request]:
    """Two requests that the middleware interferes with."""
    meta = {"in": method, "outcome": outcome}
    return [
        Request(
            site.url(f"{PATHS[method]}?{name}", host),
            meta={**meta, "then": site.url(f"/page/then-{name}", host)},
            dont_filter=True,  # the dupefilter would drop a request that comes back as it is
        )
        for name in "ab"
    ]


@both
@pytest.mark.parametrize("position", [BEFORE, AFTER], ids=["before", "after"])
async def test_each_interference(server: RedisServer, site: Site, by: By, position: int) -> None:
    cases = [(method, outcome) for method in PATHS for outcome in OUTCOMES]
    hosts = await more_hosts(site, len(cases))
    requests = [
        request
        for host, case in zip(hosts, cases, strict=True)
        for request in interfered(site, host, *case)
    ]
    crawl = Crawl(server, *requests, by=by, middlewares={Interferer: position}, RETRY_ENABLED=False)
    expected = {}
    for host, (method, outcome) in zip(hosts, cases, strict=True):
        never_asked = position == BEFORE and method == "process_request"
        asked_again = outcome in ("a request", "itself")
        expected[host] = 2 * (1 - never_asked + asked_again)
    await crawl.gave_back(sum(expected.values()), site)
    for host, permits in expected.items():
        assert crawl.stat(f"semaphore/scope/{host}/acquired") == permits, host
    errors = Counter(type(failure) for failure in crawl.spider.failures)
    assert (errors[IgnoreRequest], errors[ValueError]) == (2 * len(PATHS),) * 2


# A crawl, a fetch or a server ends while permits are held and waited for --------------------------


ALL_FOUR = ["/slow/a", "/slow/b", "/slow/c", "/slow/d"]


class Closing(Visits):
    async def parse(self, response: Response) -> Any:  # noqa: ARG002 - Scrapy's names
        raise CloseSpider("enough")


@both
async def test_a_closing_spider(server: RedisServer, site: Site, tmp_path: Path, by: By) -> None:
    requests = [Request(site.url(path)) for path in ALL_FOUR]
    crawl = Crawl(server, *requests, by=by, spider=Closing, JOBDIR=str(tmp_path))
    await site.until(lambda: site.now == 1)
    await eventually(lambda: waiting(server))
    crawl.crawler.engine.crawl(Request(site.url("/page/enough", host="localhost")))
    await eventually(lambda: not waiting(server))
    assert site.now == 1, "the request on the wire goes on"
    await crawl.gave_back(2, site)
    assert crawl.stat("finish_reason") == "enough"
    assert len(site.arrivals) == 2
    await Crawl(server, *requests, by=by, JOBDIR=str(tmp_path)).gave_back(3, site)
    assert sorted(site.arrivals) == ["/page/enough", *ALL_FOUR]


async def test_closing_during_robots_txt(server: RedisServer, site: Site, tmp_path: Path) -> None:
    passed = []

    class AfterRobotsTxt:
        async def process_request(self, request: Request) -> None:
            passed.append(request.url)

    requests = [
        Request(site.url("/slow/a"), meta={"dont_obey_robotstxt": True}),
        Request(site.url("/slow/b")),
    ]
    settings: dict[str, Any] = {"ROBOTSTXT_OBEY": True, "JOBDIR": str(tmp_path)}
    crawl = Crawl(server, *requests, middlewares={AfterRobotsTxt: BEFORE}, **settings)
    await site.until(lambda: site.now == 1)
    await eventually(lambda: waiting(server))
    closing = asyncio.ensure_future(crawl.crawler.engine.close_spider_async(reason="enough"))
    await eventually(lambda: not waiting(server))
    site.let_go()
    await closing
    await crawl.gave_back(1, site)
    assert requests[1].url not in passed
    await Crawl(server, *requests, **settings).gave_back(2, site)
    assert site.arrivals == ["/slow/a", "/robots.txt", "/slow/b"]


@pytest.mark.parametrize("place", [BEFORE, AFTER])
@pytest.mark.parametrize("waits", [True, False], ids=["that waits", "on the wire"])
async def test_closing_spider_returns_a_request_that_a_middleware_fetches_something_for(
    server: RedisServer, site: Site, tmp_path: Path, place: int, waits: bool
) -> None:
    before = [Request(site.url("/slow/before", host="localhost"))] if waits else []
    first = site.url("/slow/first", host="localhost")
    request = Request(site.url("/page/a"), meta={"first": first})
    settings: dict[str, Any] = {"middlewares": {FetchesFirst: place}, "JOBDIR": str(tmp_path)}
    crawl = Crawl(server, *(before or [request]), **settings)
    await site.until(lambda: site.now == 1)
    if waits:
        crawl.crawler.engine.crawl(request)
        await eventually(lambda: waiting(server))
    closing = asyncio.ensure_future(crawl.crawler.engine.close_spider_async(reason="enough"))
    await eventually(lambda: not waiting(server))
    site.let_go()
    await closing
    await crawl.finished()
    assert "/page/a" not in site.arrivals
    await Crawl(server, **settings).finished()
    assert site.arrivals[-2:] == ["/slow/first", "/page/a"]


CANCELLED = (asyncio.CancelledError, CancelledError)


@both
async def test_cancelled_while_it_waits(server: RedisServer, site: Site, by: By) -> None:
    crawl = Crawl(server, Request(site.url("/slow/a")), by=by)
    await site.until(lambda: site.now == 1)
    fetch = asyncio.ensure_future(crawl.crawler.engine.download_async(Request(site.url("/page/b"))))
    await eventually(lambda: waiting(server))
    fetch.cancel()
    with pytest.raises(CANCELLED):
        await fetch
    await eventually(lambda: not waiting(server))
    await crawl.gave_back(1, site)
    assert site.arrivals == ["/slow/a"]


async def crawl_with_a_cancelled_fetch(server: RedisServer, site: Site, path: str, by: By) -> Crawl:
    crawl = Crawl(server, Request(site.url("/slow/elsewhere", host="localhost")), by=by)
    await site.until(lambda: site.now == 1)
    fetch = asyncio.ensure_future(crawl.crawler.engine.download_async(Request(site.url(path))))
    await site.until(lambda: site.now == 2)
    fetch.cancel()
    with pytest.raises(CANCELLED):
        await fetch
    return crawl


@both
@pytest.mark.parametrize("path", ["/slow/a", "/half/a"])
async def test_cancelled_on_the_wire(server: RedisServer, site: Site, by: By, path: str) -> None:
    crawl = await crawl_with_a_cancelled_fetch(server, site, path, by)
    next_fetch = crawl.crawler.engine.download_async(Request(site.url("/page/b")))
    next_task = asyncio.ensure_future(next_fetch)
    await eventually(lambda: waiting(server))
    assert site.now == 2, "Scrapy goes on with the transfer of a cancelled fetch"
    site.let_go()
    await next_task
    await crawl.gave_back(3, site)


@both
async def test_cancelled_and_the_crawl_ends(server: RedisServer, site: Site, by: By) -> None:
    crawl = await crawl_with_a_cancelled_fetch(server, site, "/never", by)
    other = Crawl(server, Request(site.url("/page/other")), SEMAPHORE_NODE="other")
    await eventually(lambda: waiting(server))
    await crawl.finished(site)
    assert crawl.stat("semaphore/released") == crawl.stat("semaphore/acquired") == 2
    await other.gave_back(1, site)
    assert server.members() == {}


@pytest.mark.parametrize("is_closing", [True, False], ids=["spider closes", "cancelled"])
async def test_permit_without_a_slot_goes_back_at_once(
    server: RedisServer, site: Site, monkeypatch: Patch, is_closing: bool
) -> None:
    monkeypatch.setattr(downloads, "PERMIT_IDLE_TIMEOUT_S", ENDLESS_S)
    monkeypatch.setattr(closing, "GOES_ON_S", 0.5)  # what bypassed the scheduler does so
    elsewhere = Request(site.url("/slow/elsewhere", host="localhost"))
    crawl = Crawl(server, elsewhere, CONCURRENT_REQUESTS=1)
    await site.until(lambda: site.now == 1)
    engine = crawl.crawler.engine
    fetch = asyncio.ensure_future(engine.download_async(Request(site.url("/page/b"))))
    await eventually(lambda: crawl.stat("semaphore/acquired") == 2)  # the server knows it sooner
    assert server.members().get("127.0.0.1") == (1, 0)
    if is_closing:
        ending = asyncio.ensure_future(engine.close_spider_async())
    else:
        fetch.cancel()
    await eventually(lambda: "127.0.0.1" not in server.members())
    site.let_go()
    await asyncio.gather(fetch, *([ending] if is_closing else []), return_exceptions=True)
    await crawl.gave_back(2, site)
    assert site.arrivals == ["/slow/elsewhere"]


@pytest.mark.parametrize(("by", "path"), [(ADD_ON, "/half/"), (ALONE, "/slow/")])
async def test_a_lost_permit_is_retried(server: RedisServer, site: Site, by: By, path: str) -> None:
    crawl = Crawl(server, Request(site.url(path)), by=by, SEMAPHORE_LEASE=3.0)
    await site.until(lambda: site.now == 1)
    server.kill()
    await site.until(lambda: site.now == 0)
    server.start()
    await site.until(lambda: site.now == 1)
    await crawl.gave_back(2, site)
    assert site.arrivals == [path, path]
    assert len(crawl.spider.responses) == 1
    assert crawl.stat("semaphore/lost") == 1
    assert crawl.stat("retry/count") == 1
