"""In a cluster all our keys are in one slot, and its owner is found by asking any node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis.crc import key_slot

from semaphore_middleware import (
    FairSemaphore,
    ServerRefusedError,
    ServerUnreachableError,
    SettingsError,
)
from semaphore_middleware.core.observer import StoreLost
from semaphore_middleware.redis.keys import Keys
from semaphore_middleware.redis.location import Server
from tests.support.nodes import Recorder, eventually, in_asyncio
from tests.support.servers import Cluster, ClusterServer, RedisServer, free_port

SLOT = key_slot(Keys("semaphore").epoch)
NOBODY = "127.0.0.1:1"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    try:
        yield cluster.start()
    finally:
        cluster.remove()


def address(node: RedisServer) -> str:
    return f"127.0.0.1:{node.tcp_port}"


async def port_of(url: str, prefix: str = "semaphore") -> int:
    """Of the server that a node would use."""
    connection = await Server(url, 5.0, prefix=prefix).connect()
    await connection.close()
    return connection.address.port


@in_asyncio
async def test_any_node_tells_who_owns_our_slot(cluster: Cluster) -> None:
    owner = cluster.owner(SLOT).tcp_port
    for node in cluster.nodes:
        assert await port_of(f"redis+cluster://{address(node)}") == owner
        assert await port_of(f"redis://{address(node)}") == owner
    assert await port_of(f"redis+cluster://{NOBODY},{address(cluster.nodes[2])}") == owner


@in_asyncio
async def test_a_prefix_is_a_slot(cluster: Cluster) -> None:
    ports = {await port_of(cluster.url, prefix=f"group-{number}") for number in range(20)}
    assert ports == {node.tcp_port for node in cluster.nodes}


@in_asyncio
async def test_permits_are_granted_and_notified_in_a_cluster(cluster: Cluster) -> None:
    one, two = (
        FairSemaphore(cluster.url, recovery_wait=0, turn=0),
        FairSemaphore(f"redis://{address(cluster.nodes[1])}", recovery_wait=0, turn=0),
    )
    async with one, two:
        for _ in range(3):
            async with one.permit("s", 1):
                pass
            async with two.permit("s", 1):
                pass
        await one.admin.configure("s", 2)
        assert [seen.scope for seen in await two.admin.survey()] == ["s"]
        await one.admin.reset("s")


@in_asyncio
async def test_our_slot_moves_under_connected_nodes(cluster: Cluster) -> None:
    """Its keys come with it: they are of another life of the server, so this is a loss."""
    home = cluster.owner(SLOT)
    there = next(node for node in cluster.nodes if node is not home)
    seen = Recorder()
    semaphore = FairSemaphore(cluster.url, lease=3, recovery_wait=0.5, observers=[seen])
    async with semaphore:
        permit = await semaphore.acquire("s", 1)
        for target in (there, home):
            losses = seen.count(StoreLost)
            cluster.move(SLOT, target)

            async def is_lost(losses: int = losses) -> bool:
                return seen.count(StoreLost) > losses

            await eventually(is_lost)

            async def is_registered(target: RedisServer = target) -> bool:
                return target.members() == {"s": (1, 0)}

            await eventually(is_registered)
        permit.release()
        async with semaphore.permit("s", 1):
            pass


@in_asyncio
async def test_a_slot_that_comes_without_its_keys_is_a_loss_of_data(cluster: Cluster) -> None:
    home = cluster.owner(SLOT)
    there = next(node for node in cluster.nodes if node is not home)
    url = f"redis://{address(there)}"  # the address of any node will do
    async with FairSemaphore(url, lease=3, recovery_wait=0.5) as semaphore:
        permit = await semaphore.acquire("s", 1)
        cluster.move(SLOT, there, with_keys=False)

        async def registered() -> bool:
            return there.members() == {"s": (1, 0)}

        await eventually(registered)
        permit.release()
    cluster.move(SLOT, home)


@in_asyncio
async def test_a_cluster_that_does_not_serve_our_slot_is_waited_for() -> None:
    node = ClusterServer().start()
    try:
        url = f"redis://{address(node)}"
        with pytest.raises(ServerUnreachableError, match=f"knows no owner of slot {SLOT}"):
            await port_of(url)
        with pytest.raises(ServerRefusedError, match=r"write redis\+cluster://host:port"):
            await FairSemaphore(node.url).open()
        with node.client() as client:
            client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        async with FairSemaphore(url, recovery_wait=0) as semaphore, semaphore.permit("s", 1):
            pass  # one node is a cluster, too
    finally:
        node.remove()


@in_asyncio
async def test_what_is_not_a_cluster_is_refused() -> None:
    server = RedisServer(tcp_port=free_port()).start()
    try:
        with pytest.raises(ServerRefusedError, match="is not a node of a cluster"):
            await FairSemaphore(f"redis+cluster://{address(server)}").open()
    finally:
        server.remove()


@pytest.mark.parametrize("rest", ["", "a,", "a/service", "a:port", "a?sentinel_password=x"])
def test_addresses_that_cannot_be_read_are_refused(rest: str) -> None:
    with pytest.raises(SettingsError, match=r"^REDIS_URL: "):
        FairSemaphore(f"redis+cluster://{rest}", url_from="REDIS_URL")


def test_a_cluster_is_named_without_its_password() -> None:
    name = str(Server("rediss+cluster://u:t0p-secret@a,b:1?ssl_cert_reqs=none", 1.0))
    assert name == "rediss+cluster://a:6379,b:1/0"
