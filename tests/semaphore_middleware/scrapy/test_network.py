"""A node that reaches no site blames none of them, and loses no page."""

import asyncio
import errno
import itertools
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from twisted.internet.error import getConnectError

from semaphore_middleware.model.feedback import Backoff
from semaphore_middleware.scrapy.network import IN_A_ROW, SITES, Network, NetworkLost
from semaphore_middleware.scrapy.responses import error_number
from tests.support.crawls import Crawl, Log
from tests.support.nodes import eventually
from tests.support.servers import RedisServer, free_port
from tests.support.site import Site

HOSTS = [f"127.0.0.{number + 2}" for number in range(SITES + 1)]
PAGES = 4  # of each
NOT_THERE = errno.ECONNREFUSED
START_S = 0.05


async def test_an_outage_costs_some_attempts_and_no_page(
    server: RedisServer, site: Site, tmp_path: Path, caplog: Log
) -> None:
    caplog.set_level("INFO")
    port = free_port()
    urls = [f"http://{host}:{port}/page/{n}" for n in range(PAGES) for host in HOSTS]
    settings: dict[str, Any] = {"SEMAPHORE_BACKOFF_START": START_S, "SEMAPHORE_BACKOFF_MAX": 0.4}
    crawl = Crawl(server, *map(Request, urls), RETRY_TIMES=1, **settings)
    await eventually(lambda: sum("Still no site" in said for said in caplog.messages) >= 5)
    attempts = crawl.stat("downloader/exception_count")
    assert attempts <= 2 * len(HOSTS) + 5, "each pause costs one"
    (tmp_path / "page").touch()
    for url in ("data:,", f"file://localhost{tmp_path}/page"):
        await crawl.crawler.engine.download_async(Request(url))
    assert "A site responds" not in caplog.text, "these need no network"
    for host in HOSTS:
        await site.listen(host, port)
    await crawl.finished()
    assert sorted(response.url for response in crawl.spider.responses) == sorted(urls)
    assert crawl.spider.failures == []
    assert crawl.stat("semaphore/network_losses") == 1
    assert crawl.stat("semaphore/hosts_down") == 0
    assert sum("No site responds to this node" in said for said in caplog.messages) == 1
    assert "A site responds to this node again: requests continue." in caplog.messages


@pytest.fixture
def lost() -> list[type[NetworkLost]]:
    """What the networks of a test have told."""
    return []


@pytest.fixture
def network(lost: list[type[NetworkLost]]) -> Network:
    return Network(Backoff(start=START_S), lost.append)


async def test_one_registered_domain_is_one_site(network: Network) -> None:
    for number in range(2 * SITES):
        assert not network.failed(f"www{number}.example.co.uk", NOT_THERE)
    assert network.may_begin()


async def test_a_response_from_any_site_shows_that_the_network_is_there(
    network: Network, lost: list[type[NetworkLost]]
) -> None:
    for number in range(3 * SITES):
        assert not network.failed(f"{number}.example", NOT_THERE)
        if number % (SITES - 1) == 0:
            network.answered()
    assert lost == []


async def test_an_error_of_the_network_blames_no_site(
    network: Network, lost: list[type[NetworkLost]]
) -> None:
    for number in range(IN_A_ROW):
        assert network.failed("a.example", (errno.ENETUNREACH, errno.ENETDOWN)[number % 2])
    assert lost == [NetworkLost]


async def test_then_one_request_at_a_time_begins_in_growing_pauses(network: Network) -> None:
    for number in range(SITES):
        network.failed(f"{number}.example", NOT_THERE)
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
    network.answered()
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
