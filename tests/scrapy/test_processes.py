"""Which crawls keep a site's limit together: those of several processes, with a given server or an
embedded one, and those of one process, as one node.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request

from tests.support.crawls import ADD_ON, Crawl, pages, scrapy, waiting
from tests.support.nodes import eventually
from tests.support.servers import RedisServer
from tests.support.site import Site


class Embedded(RedisServer):
    """The server that crawls without a URL start themselves: here it is only looked at."""

    def __init__(self) -> None:
        self.directory = Path(os.environ["SEMAPHORE_EMBEDDED_DIRECTORY"])
        self.path = self.directory / "server.sock"

    @property
    def pid(self) -> int:
        with self.client() as client:
            return int(client.info("server")["process_id"])


def runs(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_embedded_server_ends_with_the_last_process(site: Site, tmp_path: Path) -> None:
    settings = {**ADD_ON, "CONCURRENT_REQUESTS_PER_DOMAIN": 1}
    embedded = Embedded()
    async with (
        scrapy(tmp_path, Request(site.url("/slow/a")), **settings) as a,
        scrapy(tmp_path, Request(site.url("/slow/b")), **settings) as b,
    ):
        await site.until(lambda: site.now == 1)
        await eventually(lambda: waiting(embedded))
        pid = embedded.pid
        site.let_go()
        assert await a.ended() == 0
        assert await b.ended() == 0
    assert site.most == 1
    assert sorted(site.arrivals) == ["/slow/a", "/slow/b"]
    await eventually(lambda: not runs(pid))


@pytest.mark.slow
async def test_embedded_server_outlives_a_killed_process(site: Site, tmp_path: Path) -> None:
    settings = {**ADD_ON, "CONCURRENT_REQUESTS_PER_DOMAIN": 1, "SEMAPHORE_LEASE": 0.5}
    embedded = Embedded()
    async with scrapy(tmp_path, Request(site.url("/slow/killed")), **settings) as first:
        await site.until(lambda: site.now == 1)
        pid = embedded.pid
        async with scrapy(tmp_path, Request(site.url("/slow/heir")), **settings) as heir:
            await eventually(lambda: waiting(embedded))
            first.kill()
            # Its permit comes free when its lease has ended.
            await site.until(lambda: site.arrivals == ["/slow/killed", "/slow/heir"])
            assert embedded.pid == pid
            heir.kill()
    assert site.most == 1
    await eventually(lambda: not runs(pid))


# Crawls of one process are one node, if they use the same server in the same way ------------------


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
    ("name", "value"), [("NODE", "other"), ("LEASE", 14.0), ("TURN", 0.05), ("JOB", "other")]
)
async def test_other_settings(server: RedisServer, site: Site, name: str, value: Any) -> None:
    first = Crawl(server, *pages(site, 3, "/slow/a"))
    crawls = [first, Crawl(server, *pages(site, 3, "/slow/b"), **{f"SEMAPHORE_{name}": value})]
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
