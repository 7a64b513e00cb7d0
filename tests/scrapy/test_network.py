"""A node that reaches no site counts no failures of sites, and loses no page."""

import asyncio
import errno
import itertools
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.http import Response
from twisted.internet.error import getConnectError

from semaphore_middleware.model.feedback import Backoff
from semaphore_middleware.scrapy.download_errors import error_number
from semaphore_middleware.scrapy.network import IN_A_ROW, SITES, Network, NetworkLost
from tests.support.crawls import Crawl, Log, Patch
from tests.support.nodes import eventually
from tests.support.servers import RedisServer, free_port
from tests.support.site import Site
from tests.support.visits import Visits

HOSTS = [f"127.0.0.{number + 2}" for number in range(SITES + 1)]
PAGES = 4  # of each
NOT_THERE = errno.ECONNREFUSED
START_S = 0.05
PAUSES: dict[str, Any] = {"SEMAPHORE_BACKOFF_START": START_S, "SEMAPHORE_BACKOFF_MAX": 0.4}


async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


class FirstAlone(Visits):
    """Makes its first request alone, and sets `answered`; makes the others after `may_go_on`."""

    def __init__(self, answered: asyncio.Event, may_go_on: asyncio.Event, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.answered = answered
        self.may_go_on = may_go_on

    async def start(self) -> AsyncIterator[Any]:
        requests = super().start()
        yield await anext(requests)
        await self.may_go_on.wait()
        async for request in requests:
            yield request

    async def parse(self, response: Response) -> Any:
        await super().parse(response)
        self.answered.set()


@pytest.mark.parametrize("closes", [False, True])
async def test_an_outage_costs_some_attempts_and_no_page(
    closes: bool, server: RedisServer, site: Site, tmp_path: Path, caplog: Log
) -> None:
    caplog.set_level("INFO")
    before, port = Site(), free_port()
    await before.listen(HOSTS[0], port)
    urls = [f"http://{host}:{port}/page/{n}" for n in range(PAGES) for host in HOSTS]
    answered, is_cut = asyncio.Event(), asyncio.Event()
    ours: dict[str, Any] = {"RETRY_TIMES": 1, **PAUSES, "spider": FirstAlone}
    ours["arguments"] = {"answered": answered, "may_go_on": is_cut}
    crawl = Crawl(server, *map(Request, urls), **ours)
    await answered.wait()
    await before.stop()
    # A network that accepts all connections, and closes them.
    closing = [await asyncio.start_server(close, host, port) for host in HOSTS if closes]
    is_cut.set()

    def pauses() -> int:
        return sum("Still no site" in said for said in caplog.messages)

    await eventually(lambda: pauses() >= 5)
    attempts = crawl.stat("downloader/exception_count")
    assert attempts <= 2 * len(HOSTS) + pauses(), "each pause costs one"
    (tmp_path / "page").touch()
    for url in ("data:,", f"file://localhost{tmp_path}/page"):
        await crawl.crawler.engine.download_async(Request(url))
    assert "A site responds" not in caplog.text, "these need no network"
    for listener in closing:
        listener.close()
    for host in HOSTS:
        await site.listen(host, port)
    await crawl.finished()
    assert sorted(response.url for response in crawl.spider.responses) == sorted(urls)
    assert crawl.spider.failures == []
    assert crawl.stat("semaphore/network_losses") == 1
    assert crawl.stat("semaphore/hosts_down") == 0
    assert sum("No site responds to this node" in said for said in caplog.messages) == 1
    assert "A site responds to this node again: requests continue." in caplog.messages


@pytest.mark.parametrize("has_answer", [True, False])
async def test_a_crawl_whose_last_sites_are_dead_ends(
    has_answer: bool, server: RedisServer, site: Site
) -> None:
    dead = [f"http://{host}:{free_port()}/page" for host in HOSTS]
    urls = [site.url("/page"), *dead] if has_answer else dead
    answered = asyncio.Event()
    if not has_answer:
        answered.set()
    ours: dict[str, Any] = {"RETRY_TIMES": 1, "spider": FirstAlone}
    ours["arguments"] = {"answered": answered, "may_go_on": answered}
    crawl = Crawl(server, *map(Request, urls), **ours)
    await crawl.finished()
    assert len(crawl.spider.failures) == len(dead)
    assert crawl.stat("downloader/exception_count") == 2 * len(dead)
    assert crawl.stat("semaphore/network_losses") == (0 if has_answer else 1)


@pytest.fixture
def lost() -> list[type[NetworkLost]]:
    """The events that the networks of a test have emitted."""
    return []


@pytest.fixture
def network(lost: list[type[NetworkLost]]) -> Network:
    return Network(Backoff(start=START_S), lost.append, lambda _: nullcontext(), "tests")


def to(host: str, **meta: Any) -> Request:
    return Request(f"http://{host}/", meta=meta)


def gone() -> Request:
    """A request to a server that is not there any more."""
    return to(f"127.0.0.1:{free_port()}")


async def fail(network: Network, sites: int) -> bool:
    """True if the last failure was the node's."""
    return [await network.failed(to(f"{n}.example"), NOT_THERE, False) for n in range(sites)][-1]


async def test_one_registered_domain_is_one_site(network: Network) -> None:
    network.answered(gone())
    for number in range(2 * SITES):
        assert not await network.failed(to(f"www{number}.example.co.uk"), NOT_THERE, False)
    assert network.may_begin()


async def test_a_response_from_any_site_shows_that_the_network_is_there(
    network: Network, lost: list[type[NetworkLost]]
) -> None:
    for number in range(3 * SITES):
        assert not await network.failed(to(f"{number}.example"), NOT_THERE, False)
        if number % (SITES - 1) == 0:
            network.answered(gone())
    assert lost == []


@pytest.mark.parametrize("of_proxy", [False, True])
async def test_a_site_that_still_accepts_connections_shows_it_too(
    of_proxy: bool, network: Network, site: Site
) -> None:
    network.answered(gone())
    network.answered(Request(site.url("/"), meta={"proxy": "http://proxy"} if of_proxy else {}))
    assert await fail(network, SITES) == of_proxy, "what a proxy reaches shows nothing"
    assert network.is_lost == of_proxy


async def test_where_sites_close_connections_one_must_respond(network: Network, site: Site) -> None:
    listener = await asyncio.start_server(close, "127.0.0.1", 0)
    address = "{}:{}".format(*listener.sockets[0].getsockname())
    for with_answer in (True, False):
        network.answered(to(address))
        if with_answer:
            network.answered(Request(site.url("/page")))
        sites = [to(f"{n}.example") for n in range(SITES)]
        own = [await network.failed(one, None, False, is_closed=one is sites[0]) for one in sites]
        assert own[-1] == (not with_answer)
        await site.stop()
    assert [visit.path for visit in site.visits] == ["/robots.txt"]
    listener.close()


async def test_it_is_asked_seldom_unless_it_has_failed_itself(
    network: Network, site: Site, monkeypatch: Patch
) -> None:
    asked: list[Any] = []
    connect = asyncio.open_connection

    async def open_connection(*address: Any, **how: Any) -> Any:
        asked.append(address)
        return await connect(*address, **how)

    monkeypatch.setattr(asyncio, "open_connection", open_connection)
    network.answered(Request(site.url("/")))
    for _ in range(3):
        assert not await fail(network, SITES)
    assert len(asked) == 1
    await site.stop()
    assert not await fail(network, SITES)
    failures = [network.failed(Request(site.url("/")), NOT_THERE, False) for _ in range(3)]
    assert await asyncio.gather(*failures) == [True] * 3
    assert len(asked) == 2, "once for all that fail together"


async def test_after_a_response_it_is_asked_anew(network: Network, site: Site) -> None:
    network.answered(Request(site.url("/")))
    assert not await fail(network, SITES)
    network.answered(Request(site.url("/")))
    await site.stop()
    assert await fail(network, SITES)


async def test_a_response_meanwhile_shows_it_too(network: Network, monkeypatch: Patch) -> None:
    checking, go_on = asyncio.Event(), asyncio.Event()

    async def open_connection(*_: Any, **__: Any) -> Any:
        checking.set()
        await go_on.wait()
        raise OSError

    monkeypatch.setattr(asyncio, "open_connection", open_connection)
    network.answered(gone())
    failing = asyncio.ensure_future(fail(network, SITES))
    await checking.wait()
    network.answered(gone())
    other = asyncio.ensure_future(network.failed(to("other.example"), NOT_THERE, False))
    await asyncio.sleep(0)
    go_on.set()
    assert not await failing
    assert not await other
    assert not network.is_lost


async def test_an_error_of_the_network_blames_no_site(
    network: Network, lost: list[type[NetworkLost]]
) -> None:
    network.answered(gone())
    for number in range(IN_A_ROW):
        error = (errno.ENETUNREACH, errno.ENETDOWN)[number % 2]
        is_own = await network.failed(to("a.example"), error, False)
        assert is_own == (number == IN_A_ROW - 1), "one address may lack a route"
    assert lost == [NetworkLost]


async def test_a_site_found_again_ends_the_outage(network: Network, site: Site) -> None:
    port = free_port()
    network.answered(to(f"127.0.0.1:{port}"))
    assert await fail(network, SITES)
    await site.listen(port=port)
    assert await network.failed(to("a.example"), NOT_THERE, False)
    assert network.is_lost, "only a try shows it"
    assert await network.failed(to("a.example"), NOT_THERE, True), "it failed in the outage"
    assert not network.is_lost


async def test_then_one_request_at_a_time_begins_in_growing_pauses(network: Network) -> None:
    assert not await fail(network, SITES), "no site has ever responded"
    loop = asyncio.get_running_loop()
    begun_at: list[float] = []
    for _ in range(4):
        await network.wait()
        assert network.may_begin()
        begun_at.append(loop.time())
        assert network.begin()
        assert not network.may_begin()
        network.end_try()
        assert not network.may_begin()
    gaps = [later - sooner for sooner, later in itertools.pairwise(begun_at)]
    assert all(gap >= START_S * 2**number for number, gap in enumerate(gaps))
    waiting = asyncio.ensure_future(network.wait())
    network.answered(gone())
    await waiting
    assert network.may_begin()


@pytest.mark.parametrize("number", [errno.ENETUNREACH, errno.ECONNREFUSED])
def test_the_number_of_an_error_is_found_behind_others(number: int) -> None:
    of_twisted = getConnectError((number, "it is not there"))  # type: ignore[no-untyped-call]
    wrapped = RuntimeError()
    wrapped.__cause__ = of_twisted
    for error in (of_twisted, wrapped, OSError(number, "")):
        assert error_number(error) == number
    assert error_number(RuntimeError()) is None
