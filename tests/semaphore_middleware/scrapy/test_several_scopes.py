"""Limits as sites see them: several on one request, and rates."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock
from urllib.parse import urljoin

import pytest
from scrapy import Request
from scrapy.http import Response
from scrapy.settings import Settings
from twisted.internet.address import IPv4Address

from semaphore_middleware import FairSemaphore, Limit, SettingsError
from semaphore_middleware.scrapy import addresses, downloads
from semaphore_middleware.scrapy.addresses import Addresses
from semaphore_middleware.scrapy.versions import CannotResolveHostError
from tests.support.crawls import By, Crawl, Patch, both, pages, taken, waiting
from tests.support.names import FIRST, SECOND, LoopbackNames
from tests.support.nodes import eventually
from tests.support.servers import RedisServer
from tests.support.site import Site, Visit, most_at_once
from tests.support.visits import Fetches, FetchesFirst

OTHER = "scrapy.core.downloader.handlers.s3.S3DownloadHandler"
DOMAIN = "domain:example.org"
HOSTS = [f"{name}.example.org" for name in "abcd"]


@pytest.fixture
def names() -> Iterator[LoopbackNames]:
    with loopback_names() as resolver:
        yield resolver


@contextmanager
def loopback_names() -> Iterator[LoopbackNames]:
    """Names for this machine, of which nothing is known yet."""
    from twisted.internet import reactor

    resolver = LoopbackNames(reactor)
    resolver.install_on_reactor()
    forget_addresses()
    yield resolver
    forget_addresses()


def forget_addresses() -> None:
    addresses._addresses.clear()
    addresses._latest.clear()


def address_of(visit: Visit) -> str:
    address: str = visit.transport.get_extra_info("sockname")[0]
    return address


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
    limits = {FIRST: spaced, "all": 2}
    async with taken(server, "all", limit=2) as release:
        scopes = ["host", "all"]
        requests = pages(site, 4)
        crawl = Crawl(server, *requests, SEMAPHORE_SCOPES=scopes, SEMAPHORE_LIMITS=limits)
        await eventually(lambda: waits_of(server, "all") == 1)
        await asyncio.sleep(2 * delay_s)  # the host's next start would be due
        assert waits_of(server, FIRST) >= 1
        begin = asyncio.get_running_loop().time()
        release()
        await crawl.gave_back(8, site)
    assert all(time >= begin + n * delay_s - 0.001 for n, time in enumerate(sorted(site.times)))


@pytest.mark.usefixtures("names")
async def test_names_of_one_address_share_a_limit(server: RedisServer, site: Site) -> None:
    await site.listen(SECOND, site.port)
    hosts = ["a.example.org", "b.example.net", "second.example.org"]
    requests = [page for host in hosts for page in pages(site, 2, "/slow/", host)]
    crawl = Crawl(server, *requests, SEMAPHORE_SCOPES=["ip"])
    await site.until(lambda: site.now == 2)
    await eventually(lambda: waiting(server) == 4)
    assert server.members() == {f"ip:{FIRST}": (1, 3), f"ip:{SECOND}": (1, 1)}
    await crawl.finished(site)
    assert len(site.visits) == 6
    of_first = [visit for visit in site.visits if address_of(visit) == FIRST]
    assert most_at_once(of_first) == 1


async def test_it_is_connected_to(server: RedisServer, site: Site, names: LoopbackNames) -> None:
    """However often its name is looked up, and though that gives another one each time."""
    await site.listen(SECOND, site.port)
    name = "both.example.org"
    headers = {"Connection": "close"}
    requests = [Request(site.url(f"/page/{n}", name), headers=headers) for n in range(6)]
    crawl = Crawl(server, *requests, SEMAPHORE_SCOPES=["ip"])
    await crawl.gave_back(6, site)
    assert names.lookups[name] == 1
    assert {address_of(visit) for visit in site.visits} == {FIRST}
    assert crawl.stat(f"semaphore/scope/ip:{FIRST}/acquired") == 6


@pytest.mark.usefixtures("names")
async def test_a_name_without_an_address(server: RedisServer, site: Site) -> None:
    requests = [Request("http://nowhere.invalid/"), Request(site.url("/page/"))]
    crawl = Crawl(server, *requests, SEMAPHORE_SCOPES=["host", "ip"], SEMAPHORE_LIMITS={"ip:*": 1})
    await crawl.finished()
    assert site.arrivals == ["/page/"]
    assert [type(failure) for failure in crawl.spider.failures] == [CannotResolveHostError]
    assert server.members() == {}


async def test_behind_a_proxy_there_is_no_address(server: RedisServer, site: Site) -> None:
    meta = {"proxy": site.url("")}
    requests = [Request(f"http://nowhere.invalid/slow/{n}", meta=meta) for n in range(2)]
    scopes, limits = ["host", "ip", "proxy"], {"ip:*": 1, "proxy:*": 1}
    crawl = Crawl(server, *requests, limit=8, SEMAPHORE_SCOPES=scopes, SEMAPHORE_LIMITS=limits)
    proxy = f"proxy:{FIRST}:{site.port}"
    await eventually(lambda: server.members().get(proxy) == (1, 1))
    of_site = f"via:{FIRST}:{site.port} nowhere.invalid"
    assert set(server.members()) == {"nowhere.invalid", proxy, of_site}
    await crawl.gave_back(6, site)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"TWISTED_REACTOR_ENABLED": False}, "needs TWISTED_REACTOR_ENABLED = True"),
        ({"DOWNLOAD_HANDLERS": {"https": OTHER}}, f"for https; DOWNLOAD_HANDLERS has {OTHER!r}"),
    ],
)
def test_handlers_with_their_own_addresses_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=r"^SEMAPHORE_SCOPES: 'ip' needs ") as raised:
        Addresses(Settings(settings))
    assert said in str(raised.value)
    Addresses(Settings({"DOWNLOAD_HANDLERS": {"http": None}}))


async def test_a_host_has_one_address_as_long_as_a_request_has_it(monkeypatch: Patch) -> None:
    """However many other hosts come after it, and not for ever."""
    monkeypatch.setattr(addresses, "HOSTS_MAX", 2)
    known, host, kept = Addresses(Settings()), "both.example.org", []
    with loopback_names() as names:
        kept.append(await known.resolve(host))
        for name in HOSTS:
            await known.resolve(name)
        assert known.scope_of(host) == f"ip:{FIRST}"
        receiver = mock.Mock()
        addresses._resolver.resolveHostName(receiver, host, 80)
        receiver.addressResolved.assert_called_once_with(IPv4Address("TCP", FIRST, 80))
        await known.resolve(host)
        assert names.lookups[host] == 1
        kept.clear()
        for name in HOSTS:
            await known.resolve(name)
        assert known.scope_of(host) is None
        assert len(addresses._addresses) == 2


async def test_crawls_that_look_a_host_up_at_once_find_one_address(monkeypatch: Patch) -> None:
    lookups: list[Any] = []  # the test answers them
    resolver = SimpleNamespace(resolveHostName=lambda receiver, *_: lookups.append(receiver))
    monkeypatch.setattr(addresses, "_install", lambda: None)
    monkeypatch.setattr(addresses._resolver, "other", resolver)
    host = "both.example.org"
    crawls = [Addresses(Settings()), Addresses(Settings())]
    resolving = [asyncio.ensure_future(crawl.resolve(host)) for crawl in crawls]
    try:
        await eventually(lambda: len(lookups) == 2)
        for receiver, address in zip(lookups, (FIRST, SECOND), strict=True):
            receiver.addressResolved(IPv4Address("TCP", address, 0))
        await asyncio.gather(*resolving)
        assert [crawl.scope_of(host) for crawl in crawls] == [f"ip:{FIRST}"] * 2
    finally:
        forget_addresses()


@both
async def test_what_a_holder_waits_for(server: RedisServer, site: Site, by: By) -> None:
    requests = [
        Request(site.url(f"/page/{n}"), meta={"first": site.url(f"/page/first-{n}")})
        for n in range(3)
    ]
    after: dict[type, int] = {FetchesFirst: 960}  # the permit was granted
    ours: dict[str, Any] = {"SEMAPHORE_SCOPES": ["all", "host"], "SEMAPHORE_LIMITS": {FIRST: 1}}
    crawl = Crawl(server, *requests, by=by, middlewares=after, CONCURRENT_REQUESTS=1, **ours)
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


@both
@pytest.mark.parametrize("places", [2, 16])
async def test_a_page_that_many_holders_wait_for(
    server: RedisServer, site: Site, by: By, places: int
) -> None:
    after: dict[type, int] = {SharesToken: 960}
    limit = 8 if places == 2 else 2
    ours: dict[str, Any] = {"CONCURRENT_REQUESTS": places, "limit": limit}
    crawl = Crawl(server, *pages(site, 6), by=by, middlewares=after, **ours)
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
    limits = {FIRST: {"concurrency": 8, "rate": "1/d", "burst": 3}}
    crawl = Crawl(server, *pages(site, 5, "/slow/"), limit=8, SEMAPHORE_LIMITS=limits)
    async with FairSemaphore(server.url) as operator:
        await site.until(lambda: site.now == 3)
        await eventually(lambda: server.members()[FIRST] == (3, 2))
        assert site.now == 3
        await operator.admin.configure(FIRST, {"rate": None})
        await site.until(lambda: site.now == 5)
        await operator.admin.reset(FIRST)
    await crawl.gave_back(5, site)


@pytest.mark.parametrize(
    "counts", [{"delay": 0.3, "jitter": 0}, {"rate": "3/s"}, {"adaptive": True}]
)
async def test_a_start_that_counts_waits_for_no_place(
    server: RedisServer, site: Site, monkeypatch: Patch, counts: dict[str, Any]
) -> None:
    """Begun later, it would be too close to the next one."""
    limit = {"concurrency": 1, **counts}
    monkeypatch.setattr(downloads, "PERMIT_IDLE_TIMEOUT_S", 600.0)
    async with FairSemaphore(server.url) as other:
        held = await other.acquire(FIRST, Limit(**limit))
        limits = {FIRST: limit}
        crawl = Crawl(server, *pages(site, 1), CONCURRENT_REQUESTS=1, SEMAPHORE_LIMITS=limits)
        await eventually(lambda: server.members().get(FIRST) == (1, 1))
        crawl.crawler.engine.crawl(Request(site.url("/slow/", "localhost")))
        await site.until(lambda: site.hosts["localhost"].now == 1)
        held.release()
        await eventually(lambda: FIRST not in server.members())  # it was granted and returned
        (await other.acquire(FIRST, Limit(**limit))).release()
        assert [visit.host for visit in site.visits] == ["localhost"]
        await crawl.finished(site)
    assert [visit.host for visit in site.visits] == ["localhost", FIRST]
