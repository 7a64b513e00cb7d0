"""Crawls keep a site's limit together, in one process or several; with the embedded server, too."""

import os
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request

from tests.support.crawls import ADD_ON, Crawl, pages, scrapy, waiting
from tests.support.nodes import eventually
from tests.support.servers import RedisServer
from tests.support.site import Site
from tests.support.visits import Visits


class Embedded(RedisServer):
    """The embedded server that crawls without a URL start; this class only reads from it."""

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


# Several crawls of one process --------------------------------------------------------------------


class Other(Visits):
    """A crawl of another name."""

    name = "other"


def nodes(server: RedisServer) -> list[str]:
    """The names of the nodes that hold or want a permit of the site."""
    with server.client() as client:
        fields = client.hkeys("{semaphore}:scope:127.0.0.1")
    return [field[5:].decode() for field in fields if field.startswith(b"node:")]


@pytest.mark.parametrize("name", ["", "here"], ids=["unnamed", "with SEMAPHORE_NODE"])
async def test_crawls_of_a_process_are_nodes(server: RedisServer, site: Site, name: str) -> None:
    crawls = [
        Crawl(
            server, *pages(site, 3, f"/slow/{spider}"), spider=spider, limit=2, SEMAPHORE_NODE=name
        )
        for spider in (Visits, Other)
    ]
    await site.until(lambda: site.now == 2)
    await eventually(lambda: len(nodes(server)) == 2)
    first, second = sorted(nodes(server), reverse=True)
    assert first.startswith(f"{name or 'visits'}-")
    assert second.startswith(f"{name or 'other'}-")
    site.let_go()
    for crawl in crawls:
        await crawl.finished()
        counts = [crawl.stat(f"semaphore/{name}") for name in ("acquired", "released", "lost")]
        assert counts == [3, 3, 0]
    assert (site.most, len(site.arrivals)) == (2, 6)
    assert server.members() == {}


async def test_what_closes_leaves_others_waiting(server: RedisServer, site: Site) -> None:
    """Its own waiting requests do not delay its end, even if they hold one of two permits."""
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
