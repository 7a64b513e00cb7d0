"""Another server becomes the master in mid-crawl; the site judges."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot
from scrapy import Request

from semaphore_middleware.redis.keys import Keys
from tests.support.crawls import ADD_ON, asyncio_test, scrapy
from tests.support.scrapy_process import ScrapyProcess
from tests.support.servers import Cluster, RedisServer, SentinelServer, free_port, wait_until
from tests.support.site import Site

pytestmark = pytest.mark.slow

LIMIT = 2
LEASE_S = 2.0
PAGES = 6  # of each node
SLOT = key_slot(Keys("semaphore").epoch)
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


@pytest.fixture(scope="module", autouse=True)
def imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The first of all processes takes seconds, which are none of a crawl's."""
    directory = tmp_path_factory.mktemp("first")
    log = directory / "log"
    ScrapyProcess("version", directory=directory, log_file=log, environment=os.environ).wait()


@pytest.fixture
def trio() -> Iterator[Trio]:
    with ExitStack() as stack:
        yield Trio(stack)


def pages(site: Site, node: str) -> list[Request]:
    return [Request(site.url(f"/slow/{number}?{node}")) for number in range(PAGES)]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three masters; ours has a replica."""
    cluster = Cluster(guarded=SLOT)
    try:
        yield cluster.start()
    finally:
        cluster.remove()


async def crawl_while(
    change: Callable[[], RedisServer], url: str, site: Site, directory: Path
) -> None:
    """Two nodes crawl; in the middle another server becomes the master, which is returned."""
    settings = {**SETTINGS, "SEMAPHORE_REDIS_URL": url}
    async with (
        scrapy(directory, *pages(site, "a"), **settings) as a,
        scrapy(directory, *pages(site, "b"), **settings) as b,
    ):
        await site.until(lambda: site.now == LIMIT)
        heir = await asyncio.to_thread(change)
        for crawl in (a, b):
            await crawl.says(f"at 127.0.0.1:{heir.tcp_port} is new, or may have lost")
        site.let_go()
        assert await a.ended() == 0
        assert await b.ended() == 0

    assert site.most == LIMIT
    answered = {visit.path for visit in site.visits if visit.status == 200}
    assert len(answered) == 2 * PAGES
    assert heir.members() == {}
    assert "Traceback" not in a.log + b.log


@asyncio_test
async def test_sentinels_replace_a_master_that_was_killed(
    trio: Trio, site: Site, tmp_path: Path
) -> None:
    def change() -> RedisServer:
        trio.master.kill()
        return trio.replica

    await crawl_while(change, trio.url, site, tmp_path)


@asyncio_test
async def test_a_cluster_replaces_a_master_that_was_killed(
    cluster: Cluster, site: Site, tmp_path: Path
) -> None:
    def change() -> RedisServer:
        cluster.owner(SLOT).kill()
        return cluster.nodes[-1]

    await crawl_while(change, cluster.url, site, tmp_path)


@asyncio_test
async def test_a_planned_failover_in_a_cluster(
    cluster: Cluster, site: Site, tmp_path: Path
) -> None:
    def change() -> RedisServer:
        cluster.say(cluster.nodes[-1], "FAILOVER")
        return cluster.nodes[-1]

    await crawl_while(change, cluster.url, site, tmp_path)


@pytest.mark.parametrize("with_keys", [True, False])
@asyncio_test
async def test_our_slot_is_given_to_another_master(
    cluster: Cluster, site: Site, tmp_path: Path, with_keys: bool
) -> None:
    def change() -> RedisServer:
        cluster.move(SLOT, cluster.nodes[0], with_keys=with_keys)
        return cluster.nodes[0]

    # The address of any node will do.
    url = f"redis://127.0.0.1:{cluster.nodes[2].tcp_port}"
    await crawl_while(change, url, site, tmp_path)
