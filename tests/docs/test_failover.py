"""docs/many-machines.md, "Replicas behind HAProxy": the limit holds while a replica takes over."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from semaphore_middleware import FairSemaphore, PermitLostError
from semaphore_middleware.core.observer import PermitGranted, StoreLost
from tests.docs.pages import blocks
from tests.support.nodes import Recorder, eventually, in_asyncio
from tests.support.servers import RedisServer, free_port

LEASE_S = 3.0  # three times the lag that redis.conf allows
LIMIT = 2

pytestmark = pytest.mark.slow


def block(kind: str) -> str:
    """The one block of this kind in docs/many-machines.md."""
    page = "docs/many-machines.md"
    (found,) = [found for found in blocks() if (found.page, found.kind) == (page, kind)]
    return found.text


@contextmanager
def three_servers() -> Iterator[list[RedisServer]]:
    """A master and two replicas, with the user and the options that the page names."""
    words = block("redis").split()
    options = [f"--{words[0]}", words[1], f"--{words[2]}", words[3]]
    user = ("--user", "crawler", "on", ">long-and-random", "~*", "&*", "+@all")
    servers: list[RedisServer] = []
    try:
        for number in range(3):
            server = RedisServer(*options, *user, tcp_port=free_port(), started_empty=False)
            servers.append(server.start())
            if number:
                follow(server, servers[0])
        yield servers
    finally:
        for server in servers:
            server.remove()


def follow(replica: RedisServer, master: RedisServer | None) -> None:
    """Make a server the replica of another one, or a master."""
    with replica.client() as client:
        client.replicaof(*(("127.0.0.1", master.tcp_port) if master else ("NO", "ONE")))


async def has_replica(master: RedisServer) -> bool:
    with master.client() as client:
        return bool(client.info("replication").get("min_slaves_good_slaves", 0))


@contextmanager
def haproxy(servers: list[RedisServer], directory: Path) -> Iterator[str]:
    """HAProxy with the page's configuration, before these servers. Gives its address."""
    program = shutil.which("haproxy")
    if program is None:
        pytest.skip("no haproxy")
    port = free_port()
    text = block("haproxy").replace("10.0.0.4:6379", f"127.0.0.1:{port}")
    ports = iter([server.tcp_port for server in servers])
    text = re.sub(r"10\.0\.0\.\d:6379", lambda _: f"127.0.0.1:{next(ports)}", text)
    config = directory / "haproxy.cfg"
    config.write_text(text + "\n")
    process = subprocess.Popen([program, "-f", config])
    try:
        yield f"redis://crawler:long-and-random@127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


class Site:
    """Requests at a site, as it counts them."""

    def __init__(self) -> None:
        self.open = self.most = self.served = 0

    async def visit(self, semaphore: FairSemaphore) -> None:
        """Make requests until cancelled."""
        while True:
            try:
                async with semaphore.permit("s", LIMIT):
                    self.open += 1
                    self.most = max(self.most, self.open)
                    try:
                        await asyncio.sleep(0.02)
                        self.served += 1
                    finally:
                        self.open -= 1
            except PermitLostError:
                continue

    async def serves_more(self) -> None:
        before = self.served

        async def more() -> bool:
            return self.served >= before + 50

        await eventually(more)


@asynccontextmanager
async def visitors(site: Site, *urls: str) -> AsyncIterator[list[Recorder]]:
    """Nodes that use these servers, and always have three requests each."""
    recorders = [Recorder() for _ in urls]
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(FairSemaphore(url, lease=LEASE_S, observers=[recorder]))
            for url, recorder in zip(urls, recorders, strict=True)
        ]
        tasks = [asyncio.ensure_future(site.visit(node)) for node in nodes for _ in range(3)]
        try:
            yield recorders
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@in_asyncio
async def test_the_limit_holds_while_haproxy_leads_to_a_promoted_replica(tmp_path: Path) -> None:
    site = Site()
    with three_servers() as servers, haproxy(servers, tmp_path) as url:
        master, heir, other = servers
        await eventually(lambda: has_replica(master))
        async with visitors(site, url, url) as nodes:
            await site.serves_more()
            master.kill()
            follow(heir, None)
            follow(other, heir)
            await site.serves_more()
            assert site.most == LIMIT
            assert [node.count(StoreLost) for node in nodes] == [2, 2]


@in_asyncio
async def test_a_master_that_is_cut_off_from_its_replicas_grants_nothing() -> None:
    site = Site()
    with three_servers() as servers:
        master, heir, other = servers
        await eventually(lambda: has_replica(master))
        async with visitors(site, master.tcp_url) as (at_master,):
            await site.serves_more()
            follow(heir, None)  # as if the master could not be reached from there
            follow(other, heir)
            async with visitors(site, heir.tcp_url):
                await site.serves_more()
                granted = at_master.count(PermitGranted)
                await site.serves_more()
                assert at_master.count(PermitGranted) == granted
                assert site.most == LIMIT
