"""Separate processes keep a site's limit together, with a given server or an embedded one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from scrapy import Request

from tests.support.crawls import ADD_ON, scrapy, waiting
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
