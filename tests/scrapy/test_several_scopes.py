"""Limits as sites see them: several on one request, and rates."""

import asyncio
from typing import Any
from urllib.parse import urljoin

import pytest
from scrapy import Request
from scrapy.http import Response
from twisted.internet.base import ThreadedResolver
from twisted.internet.defer import Deferred, succeed

from semaphore_middleware import FairSemaphore, Limit
from semaphore_middleware.scrapy import downloads
from tests.support.crawls import Crawl, Patch, pages, taken, waiting
from tests.support.nodes import eventually
from tests.support.servers import RedisServer
from tests.support.site import Site, most_at_once
from tests.support.times import ENDLESS_S
from tests.support.visits import Fetches, FetchesFirst

HOST = "127.0.0.1"
DOMAIN = "domain:example.org"
HOSTS = [f"{name}.example.org" for name in "abcd"]


class LoopbackNames(ThreadedResolver):
    """All names below example.org are this machine's."""

    def getHostByName(self, name: str, timeout: Any = (1, 3, 11, 45)) -> Deferred[str]:  # noqa: N802
        if name.endswith(".example.org"):
            return succeed(HOST)
        found: Deferred[str] = super().getHostByName(name, timeout)
        return found


@pytest.fixture
def names() -> None:
    from twisted.internet import reactor

    current: Any = reactor
    current.installResolver(LoopbackNames(reactor))


@pytest.mark.usefixtures("names")
async def test_a_full_domain_holds_up_no_other(server: RedisServer, site: Site) -> None:
    hosts = [f"w{n}.example.org" for n in range(20)]
    requests = [Request(site.url("/page/", host)) for host in hosts]
    requests += pages(site, 20, host="localhost")
    ours: dict[str, Any] = {"SEMAPHORE_SCOPES": ["host", "domain"], "SEMAPHORE_LIMITS": {DOMAIN: 2}}
    async with taken(server, DOMAIN, limit=2) as release:
        crawl = Crawl(server, *requests, limit=8, CONCURRENT_REQUESTS=4, **ours)
        await site.until(lambda: len(site.visits) == 20)
        await eventually(lambda: waits_of(server, DOMAIN) >= 2)
        assert {visit.host for visit in site.visits} == {"localhost"}
        active = crawl.crawler.engine.downloader.active
        assert len([one for one in active if "example.org" in one.url]) <= 4
        assert waits_of(server, DOMAIN) == waiting(server), "and not for their hosts"
        release()
        await crawl.finished()
    assert most_at_once(visit for visit in site.visits if visit.host != "localhost") <= 2
    assert len(site.visits) == 40
    assert crawl.stat(f"semaphore/scope/{DOMAIN}/waited") >= 2
    assert server.members() == {}


def waits_of(server: RedisServer, scope: str) -> int:
    return server.members().get(scope, (0, 0))[1]


async def test_a_delay_holds_after_another_wait(server: RedisServer, site: Site) -> None:
    """From one beginning to the next, though the starts were granted long before."""
    delay_s = 0.2
    spaced = {"concurrency": 5, "delay": delay_s, "jitter": 0}
    limits = {HOST: spaced, "all": 2}
    async with taken(server, "all", limit=2) as release:
        scopes = ["host", "all"]
        requests = pages(site, 4)
        crawl = Crawl(server, *requests, SEMAPHORE_SCOPES=scopes, SEMAPHORE_LIMITS=limits)
        await eventually(lambda: waits_of(server, "all") == 1)
        await asyncio.sleep(2 * delay_s)  # the host's next start would be due
        assert waits_of(server, HOST) >= 1
        begin = asyncio.get_running_loop().time()
        release()
        await crawl.gave_back(8, site)
    assert all(time >= begin + n * delay_s - 0.001 for n, time in enumerate(sorted(site.times)))


async def test_what_a_holder_waits_for(server: RedisServer, site: Site) -> None:
    requests = [
        Request(site.url(f"/page/{n}"), meta={"first": site.url(f"/page/first-{n}")})
        for n in range(3)
    ]
    after: dict[type, int] = {FetchesFirst: 960}  # the permit was granted
    ours: dict[str, Any] = {"SEMAPHORE_SCOPES": ["all", "host"], "SEMAPHORE_LIMITS": {HOST: 1}}
    crawl = Crawl(server, *requests, middlewares=after, CONCURRENT_REQUESTS=1, **ours)
    await crawl.finished()
    expected = {f"/page/{name}" for n in range(3) for name in (n, f"first-{n}")}
    assert sorted(site.arrivals) == sorted(expected)
    assert site.most == 1
    assert crawl.stat("semaphore/acquired") == crawl.stat("semaphore/released")
    assert server.members() == {}


class SharesToken(Fetches):
    """Fetches a page once, before the first request; the others await it, too."""

    token: asyncio.Task[Response] | None = None

    async def process_request(self, request: Request) -> None:
        if not request.url.endswith("/token"):
            if self.token is None:
                self.token = asyncio.ensure_future(self.fetch(urljoin(request.url, "/page/token")))
            await asyncio.shield(self.token)


@pytest.mark.parametrize("slots", [2, 16])
async def test_a_page_that_many_holders_wait_for(
    server: RedisServer, site: Site, slots: int
) -> None:
    after: dict[type, int] = {SharesToken: 960}
    limit = 8 if slots == 2 else 2
    ours: dict[str, Any] = {"CONCURRENT_REQUESTS": slots, "limit": limit}
    crawl = Crawl(server, *pages(site, 6), middlewares=after, **ours)
    await crawl.gave_back(7, site)
    assert site.arrivals[0] == "/page/token"


@pytest.mark.usefixtures("names")
async def test_a_page_whose_robots_txt_is_being_fetched_already(
    server: RedisServer, site: Site
) -> None:
    has_permit, may_fetch = asyncio.Event(), asyncio.Event()

    class Late(Fetches):
        async def process_request(self, request: Request) -> None:
            if request.url.endswith("/page/a"):
                has_permit.set()
                await may_fetch.wait()
                await self.fetch(site.url("/page/token", HOSTS[1]))

    ours: dict[str, Any] = {"ROBOTSTXT_OBEY": True, "SEMAPHORE_SCOPES": ["domain"]}
    crawl = Crawl(server, Request(site.url("/page/a", HOSTS[0])), middlewares={Late: 960}, **ours)
    await has_permit.wait()
    crawl.crawler.engine.crawl(Request(site.url("/page/b", HOSTS[1])))
    await eventually(lambda: waiting(server))  # for its robots.txt
    may_fetch.set()
    await crawl.gave_back(6, site)


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
    "counts",
    [
        {"delay": 0.3, "jitter": 0},
        {"rate": "3/s"},
        {"adaptive": True},  # feature: adaptive
    ],
)
async def test_a_start_that_counts_waits_for_no_slot(
    server: RedisServer, site: Site, monkeypatch: Patch, counts: dict[str, Any]
) -> None:
    """Begun later, it would be too close to the next one."""
    limit = {"concurrency": 1, **counts}
    monkeypatch.setattr(downloads, "PERMIT_IDLE_TIMEOUT_S", ENDLESS_S)
    async with FairSemaphore(server.url) as other:
        held = await other.acquire(HOST, Limit(**limit))
        limits = {HOST: limit}
        crawl = Crawl(server, *pages(site, 1), CONCURRENT_REQUESTS=1, SEMAPHORE_LIMITS=limits)
        await eventually(lambda: server.members().get(HOST) == (1, 1))
        crawl.crawler.engine.crawl(Request(site.url("/slow/", "localhost")))
        await site.until(lambda: site.hosts["localhost"].now == 1)
        held.release()
        await eventually(lambda: HOST not in server.members())  # it was granted and returned
        (await other.acquire(HOST, Limit(**limit))).release()
        assert [visit.host for visit in site.visits] == ["localhost"]
        await crawl.finished(site)
    assert [visit.host for visit in site.visits] == ["localhost", HOST]
