"""A replica that lacks the last writes becomes the master while real crawls have requests open."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request

from semaphore_middleware.link.lease import GRACE
from tests.docs.pages import block_of
from tests.support.crawls import ADD_ON, more_hosts, scrapy
from tests.support.haproxy import PAGE, USER, HAProxy
from tests.support.nodes import eventually
from tests.support.proxy import Wire
from tests.support.servers import RedisServer
from tests.support.site import Site

pytestmark = pytest.mark.slow

HOSTS, LIMIT = 4, 2  # fewer permits than nodes: nodes reuse and return them
LEASE_S = 6.0  # longer than HAProxy takes to find the new master
QUICK, SLOW = "/take/0.03/", "/take/8/"  # of the latter, a failover takes the permits
PAGES = [f"{SLOW if number % 20 == 5 else QUICK}{number}" for number in range(100)]
ALONE_S = 3.0  # after which a master with the docs' options notices that it has no replica

Servers = tuple[RedisServer, RedisServer, RedisServer]


@pytest.fixture
def servers() -> Iterator[Servers]:
    """A master, and two servers that will follow it. Other tests may have used them before."""
    with ExitStack() as stack:
        one, two, three = (stack.enter_context(RedisServer(started_empty=False)) for _ in range(3))
        yield one, two, three


def at(url: str) -> tuple[str, str]:
    """A node's own server: the spiders are the same."""
    return "-s", f"SEMAPHORE_REDIS_URL={url}"


def say(server: RedisServer, *words: str | float) -> Any:
    with server.client() as client:
        return client.execute_command(*words)


async def follow(replica: RedisServer, master: RedisServer, stack: AsyncExitStack) -> Wire:
    """Let a server follow another one, and wait until it has the same data."""
    wire = await stack.enter_async_context(Wire(master.path))
    say(master, "CONFIG", "SET", "repl-diskless-sync-delay", 0)
    say(replica, "REPLICAOF", wire.host, wire.port)
    await eventually(lambda: say(replica, "INFO", "replication")["master_link_status"] == "up")
    return wire


@asynccontextmanager
async def crawling(site: Site, directory: Path, *urls: str) -> AsyncIterator[None]:
    """Nodes of one crawl of all hosts, one for each address of a server. At the end all pages are
    there, and no host has had more requests open than its limit.
    """
    hosts = ["127.0.0.1", *await more_hosts(site, HOSTS - 1)]
    requests = [Request(site.url(path, host)) for path in PAGES for host in hosts]
    settings = {
        "SCHEDULER": "semaphore_middleware.Scheduler",
        "CRAWL": "promoted",
        "CRAWL_LEASE": LEASE_S,
        "SEMAPHORE_LEASE": LEASE_S,
        "CONCURRENT_REQUESTS_PER_DOMAIN": LIMIT,
        "RETRY_TIMES": 10,
    }
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(
                scrapy(directory, *requests, options=at(url), **ADD_ON, **settings)
            )
            for url in urls
        ]
        yield
        assert [await node.ended() for node in nodes] == [0] * len(nodes)
    assert {(visit.host, visit.path) for visit in site.visits if visit.status == 200} == {
        (host, path) for path in PAGES for host in hosts
    }
    assert site.most == LIMIT
    assert [error for node in nodes for error in node.errors] == []


async def full_use(site: Site) -> None:
    """Until a new request has taken the last free place of every host."""
    since, full = len(site.visits), set[str]()

    def is_full() -> bool:
        for visit in site.visits[since:]:
            if visit.is_open and site.hosts[visit.host].now == LIMIT:
                full.add(visit.host)
        return len(full) == HOSTS

    await site.until(is_full)


async def outlasting(site: Site) -> None:
    """Until a page is open that has begun just now, and takes longer than a lease."""
    since = len(site.visits)
    await site.until(lambda: any(visit.path.startswith(SLOW) for visit in site.visits[since:]))


@pytest.mark.skipif(not shutil.which("haproxy"), reason="haproxy is not installed")
async def test_haproxy_leads_to_a_replica_that_lagged(
    site: Site, servers: Servers, tmp_path: Path
) -> None:
    master, heir, _ = servers
    async with AsyncExitStack() as stack:
        wire, _ = [await follow(replica, master, stack) for replica in servers[1:]]
        for server in servers:
            say(server, *USER)
        haproxy = await stack.enter_async_context(HAProxy(tmp_path / "haproxy", servers))
        await eventually(lambda: asyncio.to_thread(haproxy.leads_to, master))
        url = f"unix://{haproxy.path}"
        async with crawling(site, tmp_path, url, url, url):
            await full_use(site)
            wire.cut()
            say(master, "SET", "mark", "the replica never hears of it")
            await full_use(site)
            await outlasting(site)
            master.kill()
            say(heir, "REPLICAOF", "NO", "ONE")
            assert say(heir, "GET", "mark") is None
            await eventually(lambda: asyncio.to_thread(haproxy.leads_to, heir))
            await full_use(site)


async def test_a_split_brain_with_the_options_of_the_docs(
    site: Site, servers: Servers, tmp_path: Path
) -> None:
    """The master is cut off from its replicas and from all nodes but one. One of the replicas is
    promoted as soon as the lease and the options allow it.
    """
    master, heir, other = servers
    async with AsyncExitStack() as stack:
        wires = [await follow(replica, master, stack) for replica in (heir, other)]
        for server in servers:
            for line in block_of(PAGE, "redis").splitlines():
                say(server, "CONFIG", "SET", *line.split())
        lonely, others = [await stack.enter_async_context(Wire(master.path)) for _ in range(2)]
        async with crawling(site, tmp_path, lonely.url, others.url, others.url):
            await full_use(site)
            await outlasting(site)
            for wire in wires:
                wire.cut()
            await asyncio.sleep(max(0.0, ALONE_S - (1 - GRACE) * LEASE_S))
            say(heir, "REPLICAOF", "NO", "ONE")
            await follow(other, heir, stack)
            others.target = heir.path
            others.drop_connections()
            await eventually(lambda: "errorstat_NOREPLICAS" in say(master, "INFO", "errorstats"))
            await full_use(site)
            roles = [say(server, "INFO", "replication")["role"] for server in (master, heir)]
            assert roles == ["master", "master"]
            lonely.target = heir.path
            master.kill()
            await full_use(site)
