"""Crawls of one process are one node, if they use the same server in the same way."""

from __future__ import annotations

from typing import Any

import pytest
from scrapy import Request

from tests.support.crawls import Crawl, pages, waiting
from tests.support.nodes import eventually
from tests.support.servers import RedisServer
from tests.support.site import Site


def nodes(server: RedisServer) -> int:
    """How many nodes hold or want a permit of the site."""
    with server.client() as client:
        fields = client.hkeys("{semaphore}:scope:127.0.0.1")
        return sum(field.startswith(b"node:") for field in fields)


async def test_two_crawls_of_a_process_are_one_node(server: RedisServer, site: Site) -> None:
    short = Crawl(server, Request(site.url("/page/")), limit=2)
    crawls = [Crawl(server, *pages(site, 3, f"/slow/{who}"), limit=2) for who in "ab"]
    await short.finished()
    await site.until(lambda: site.now == 2)
    await eventually(lambda: waiting(server) == 4)
    assert nodes(server) == 1
    site.let_go()
    for crawl in crawls:
        await crawl.finished()
        counts = [crawl.stat(f"semaphore/{name}") for name in ("acquired", "released", "lost")]
        assert counts == [3, 3, 0], "each crawl counts its own permits"
    assert site.most == 2
    assert server.members() == {}


@pytest.mark.parametrize(
    "settings",
    [
        {"SEMAPHORE_NODE": "other"},
        {"SEMAPHORE_LEASE": 14.0},
        {"SEMAPHORE_TURN": 0.05},
        {"SEMAPHORE_JOB": "other"},
    ],
)
async def test_other_settings(server: RedisServer, site: Site, settings: dict[str, Any]) -> None:
    first = Crawl(server, *pages(site, 3, "/slow/a"))
    crawls = [first, Crawl(server, *pages(site, 3, "/slow/b"), **settings)]
    await site.until(lambda: site.now == 1)
    await eventually(lambda: nodes(server) == 2)
    site.let_go()
    for crawl in crawls:
        await crawl.finished()
    assert site.most == 1


async def test_what_closes_leaves_others_waiting(server: RedisServer, site: Site) -> None:
    """And is not held up by its own ones, also if they have one of two permits already."""
    scopes: dict[str, Any] = {"SEMAPHORE_SCOPES": ["host", "all"], "SEMAPHORE_LIMITS": {"all": 1}}
    other_host = Request(site.url("/slow/closing", "localhost"))
    going_on = Crawl(server, *pages(site, 3, "/slow/on"), **scopes)
    await site.until(lambda: site.now == 1)
    closing = Crawl(server, other_host, *pages(site, 3, "/slow/closing"), limit=2, **scopes)
    await eventually(lambda: waiting(server) >= 3)
    await closing.crawler.engine.close_spider_async()
    await closing.finished()
    assert len(site.arrivals) == 1
    await going_on.gave_back(6, site)
