"""Crawls of one process are one node, if they use the same server in the same way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from scrapy import Request

from semaphore_middleware import HostDownError
from semaphore_middleware.core.observer import Event, Observer, PermitGranted
from tests.scrapy.test_throttler import Scrapy, opened, page, turns
from tests.support.crawls import Crawl, asyncio_test, until, waiting
from tests.support.nodes import in_asyncio
from tests.support.servers import RedisServer
from tests.support.site import Site


def requests(site: Site, who: str, number: int = 3) -> list[Request]:
    return [Request(site.url(f"/slow/{who}{n}")) for n in range(number)]


def nodes(server: RedisServer) -> int:
    """How many nodes hold or want a permit of the site."""
    with server.client() as client:
        fields = client.hkeys("{semaphore}:scope:127.0.0.1")
        return sum(field.startswith(b"node:") for field in fields)


@asyncio_test
async def test_two_crawls_of_a_process_are_one_node_within_the_limit(
    server: RedisServer, site: Site
) -> None:
    crawls = [Crawl(server, *requests(site, who), limit=2) for who in "ab"]

    await site.until(lambda: site.now == 2)
    await until(lambda: waiting(server))
    assert nodes(server) == 1
    site.let_go()
    for crawl in crawls:
        await crawl.finished()
    assert site.most == 2
    for crawl in crawls:
        counts = [crawl.stat(f"semaphore/{name}") for name in ("acquired", "released")]
        assert counts == [3, 3], "each crawl counts its own permits"
    assert server.members() == {}


@asyncio_test
async def test_the_end_of_one_crawl_leaves_the_other_its_permits(
    server: RedisServer, site: Site
) -> None:
    short = Crawl(server, Request(site.url("/page/")), limit=2)
    long = Crawl(server, *requests(site, "long"), limit=2)

    await short.finished()
    await site.until(lambda: site.now == 2)
    assert nodes(server) == 1
    site.let_go()
    await long.finished()
    assert long.stat("semaphore/acquired") == long.stat("semaphore/released") == 3
    assert long.stat("semaphore/lost") == 0
    assert site.most == 2
    assert server.members() == {}


@asyncio_test
async def test_a_crawl_that_is_stopped_while_it_waits_for_the_server_stops_alone(
    server: RedisServer, site: Site
) -> None:
    server.kill()
    crawls = [Crawl(server, Request(site.url("/page/"))) for _ in range(2)]
    await until(lambda: all(crawl.crawler.crawling for crawl in crawls))
    await asyncio.sleep(0)

    await crawls[0].crawler.stop_async()
    await crawls[0].finished()
    server.start()
    await crawls[1].finished()
    assert crawls[1].stat("semaphore/acquired") == 1
    assert site.arrivals == ["/page/"]


# Step by step -----------------------------------------------------------------------------------


@in_asyncio
async def test_each_crawl_counts_its_own_permits(server: RedisServer) -> None:
    async with opened(server) as one, opened(server) as other:
        await one.begin(page("a"))
        await one.begin(page("b"))
        await other.begin(page("c"))
        assert (one.held, other.held) == (2, 1)

    counts = [scrapy.crawler.stats.get_value("semaphore/acquired") for scrapy in (one, other)]
    assert counts == [2, 1]


@in_asyncio
async def test_each_crawl_counts_its_own_requests_that_fail_at_once(server: RedisServer) -> None:
    async with opened(server) as one, opened(server) as other:
        await one.begin(page("a", 1))
        waits = one.fetch(page("a", 2))
        channel = "{semaphore}:node:" + one.throttler.node
        with server.client() as client:
            await until(lambda: client.publish(channel, "down 60000 a") == 1)
        with pytest.raises(HostDownError):
            await waits

    counts = [scrapy.crawler.stats.get_value("semaphore/failed_at_once") for scrapy in (one, other)]
    assert counts == [1, None]


@in_asyncio
async def test_a_crawl_that_ends_leaves_the_other_its_permit(server: RedisServer) -> None:
    async with opened(server) as going_on:
        async with opened(server) as ends:
            request = page("a")
            await going_on.begin(request)
            await ends.begin(page("b"))
        assert server.members()["a"] == (1, 0)
        permit = going_on.permit_of(request)
        assert permit is not None
        assert not permit.lost
    assert server.members() == {}


@in_asyncio
async def test_a_crawl_that_closes_leaves_the_others_requests_waiting(server: RedisServer) -> None:
    async with opened(server) as closing, opened(server) as going_on:
        held, waits, stays = page(number=1), page(number=2), page(number=3)
        first = await closing.begin(held)
        returned, waiting = closing.fetch(waits), going_on.fetch(stays)
        await turns()
        closing.throttler._drain()
        assert (await returned).url == waits.url, "it goes back to the scheduler"
        assert not waiting.done()
        first.cancel()
        await until(lambda: going_on.permit_of(stays) is not None)


@in_asyncio
async def test_a_request_that_was_just_granted_a_permit_waits_for_no_other_when_its_crawl_closes(
    server: RedisServer,
) -> None:
    two_scopes = {"SEMAPHORE_SCOPES": ["host", "all"], "SEMAPHORE_LIMITS": {"all": 1}}
    async with opened(server, **two_scopes) as going_on, opened(server, **two_scopes) as closing:
        await going_on.begin(page("a"))
        granted = asyncio.Event()

        class CloseAtGrant(Observer):
            def on_event(self, event: Event) -> None:
                if isinstance(event, PermitGranted):
                    closing.throttler._drain()
                    granted.set()

        closing.throttler._semaphore._open_observers.append(CloseAtGrant())
        request = page("b")
        returned = closing.fetch(request)
        await granted.wait()
        await turns()
        assert returned.done()
        assert returned.result().url == request.url, "it goes back to the scheduler"


@pytest.mark.parametrize(
    "settings", [{"SEMAPHORE_NODE": "other"}, {"SEMAPHORE_LEASE": 14.0}, {"SEMAPHORE_TURN": 0.05}]
)
@in_asyncio
async def test_crawls_with_other_settings_are_nodes_of_their_own(
    server: RedisServer, settings: dict[str, Any]
) -> None:
    one, same, other = Scrapy(server), Scrapy(server), Scrapy(server, **settings)
    assert one.throttler.node == same.throttler.node != other.throttler.node
