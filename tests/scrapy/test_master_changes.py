"""Another server becomes the master in mid-crawl; the site judges."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request

from tests.support.crawls import ADD_ON, asyncio_test, scrapy
from tests.support.servers import RedisServer, SentinelServer, free_port
from tests.support.site import Site

pytestmark = pytest.mark.slow

LIMIT = 2
LEASE_S = 2.0
PAGES = 6  # of each node
SETTINGS: dict[str, Any] = {
    **ADD_ON,
    "CONCURRENT_REQUESTS_PER_DOMAIN": LIMIT,
    "SEMAPHORE_LEASE": LEASE_S,
    "RETRY_TIMES": 10,  # a transfer that outlives its lease is ended, and made again
}


class Trio:
    """A master, a replica, and three sentinels that watch them."""

    def __init__(self, stack: ExitStack) -> None:
        self.master = RedisServer(tcp_port=free_port())
        of_master = ("--replicaof", "127.0.0.1", str(self.master.tcp_port))
        self.replica = RedisServer(*of_master, tcp_port=free_port(), started_empty=False)
        self.sentinels = [SentinelServer() for _ in range(3)]
        for server in (self.master, self.replica, *self.sentinels):
            stack.callback(server.remove)
            server.start()
        wait_until(lambda: self._says("master_link_status:up", self.replica))
        for sentinel in self.sentinels:
            sentinel.watch(self.master.tcp_port, down_after_milliseconds=300, failover_timeout=3000)
        address = f"127.0.0.1:{self.master.tcp_port}"
        know_all = f"status=ok,address={address},slaves=1,sentinels=3"
        wait_until(lambda: all(self._says(know_all, one) for one in self.sentinels))

    @property
    def url(self) -> str:
        addresses = ",".join(f"127.0.0.1:{one.tcp_port}" for one in self.sentinels)
        return f"redis+sentinel://{addresses}/mymaster"

    def _says(self, what: str, server: RedisServer) -> bool:
        with server.client() as client:
            client.response_callbacks.clear()  # as text
            return what in client.execute_command("INFO").decode()


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def trio() -> Iterator[Trio]:
    with ExitStack() as stack:
        yield Trio(stack)


def pages(site: Site, node: str) -> list[Request]:
    return [Request(site.url(f"/slow/{number}?{node}")) for number in range(PAGES)]


@asyncio_test
async def test_sentinels_replace_a_master_that_was_killed(
    trio: Trio, site: Site, tmp_path: Path
) -> None:
    settings = {**SETTINGS, "SEMAPHORE_REDIS_URL": trio.url}
    async with (
        scrapy(tmp_path, *pages(site, "a"), **settings) as a,
        scrapy(tmp_path, *pages(site, "b"), **settings) as b,
    ):
        await site.until(lambda: site.now == LIMIT)
        trio.master.kill()
        for crawl in (a, b):
            await crawl.says(f"at 127.0.0.1:{trio.replica.tcp_port} is new, or may have lost")
        site.let_go()
        assert await a.ended() == 0
        assert await b.ended() == 0

    assert site.most == LIMIT
    answered = {visit.path for visit in site.visits if visit.status == 200}
    assert len(answered) == 2 * PAGES
    assert trio.replica.members() == {}
    assert "Traceback" not in a.log + b.log
