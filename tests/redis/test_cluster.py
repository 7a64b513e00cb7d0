"""In a cluster all our keys are in one slot, and its owner is found by asking any node."""

from __future__ import annotations

import asyncio
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
from semaphore_middleware.frontier.client import CrawlClient
from semaphore_middleware.frontier.crawls import Crawls
from semaphore_middleware.redis.connection import Address
from semaphore_middleware.redis.keys import Keys
from semaphore_middleware.redis.location import Server
from tests.support.nodes import Recorder, eventually, in_asyncio
from tests.support.servers import (
    Cluster,
    ClusterServer,
    RedisServer,
    SentinelServer,
    free_port,
    wait_until,
)

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
async def test_each_time_another_node_is_asked_also_of_those_that_were_named(
    cluster: Cluster,
) -> None:
    """So one that hangs, or is cut off from the others, costs one attempt at most."""
    owner = cluster.owner(SLOT)
    other = next(node for node in cluster.nodes if node is not owner)
    server = Server(f"redis+cluster://{address(other)}", 0.3)  # less than a node may be silent
    await (await server.connect()).close()
    other.freeze()
    try:
        connection = await server.connect()
    finally:
        other.thaw()
    assert connection.address.port == owner.tcp_port
    await connection.close()


@in_asyncio
async def test_a_node_that_has_gone_is_not_asked_any_more(cluster: Cluster) -> None:
    """Each would cost the time of a call, and pods get new addresses again and again."""
    known = Server(f"redis+cluster://{NOBODY},{address(cluster.nodes[0])}", 5.0)._cluster
    gone = Address("127.0.0.1", 2)
    known._nodes.append(gone)  # as an answer named it
    await known.find_master()
    named = {Address("127.0.0.1", 1)}  # may come back
    assert set(known._nodes) == named | {Address("127.0.0.1", n.tcp_port) for n in cluster.nodes}


@in_asyncio
async def test_a_prefix_is_a_slot(cluster: Cluster) -> None:
    ports = {await port_of(cluster.url, prefix=f"group-{number}") for number in range(20)}
    assert ports == {node.tcp_port for node in cluster.nodes}


@in_asyncio
async def test_shared_crawls_of_all_masters_are_listed(cluster: Cluster) -> None:
    names = [f"crawl-{number}" for number in range(9)]
    crawls = [CrawlClient(cluster.url, name, "node") for name in names]
    assert {(await crawl.connect()).address.port for crawl in crawls} == {
        node.tcp_port for node in cluster.masters
    }
    for crawl in crawls:
        await crawl.join()
    for url in (cluster.url, f"redis://{address(cluster.nodes[0])}"):
        assert list(await Crawls(url).survey()) == names
    for crawl in crawls:
        await crawl.drop()
        await crawl.disconnect()


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
async def test_while_a_slot_s_keys_are_on_their_way_each_call_asks_again_who_owns_it(
    cluster: Cluster,
) -> None:
    """ASK where all keys have gone, TRYAGAIN where some have, MOVED when another master owns it."""
    here = cluster.owner(SLOT)
    there = next(node for node in cluster.nodes if node is not here)
    keys = Keys("semaphore")
    both = ("HEXISTS", keys.epoch, "a"), ("DEL", keys.epoch, keys.rules)
    first = await Server(cluster.url, 5.0).connect()
    await first.execute([("HSET", keys.epoch, "a", 1), ("HSET", keys.rules, "a", "{}")])
    moving = await Server(cluster.url, 5.0).connect()
    moved = await Server(cluster.url, 5.0).connect()
    cluster.begin_to_move(SLOT, there)
    cluster.carry(SLOT, there, [keys.epoch])
    with pytest.raises(ServerUnreachableError, match="the slot of our keys is being moved"):
        await first.call(both[:1])
    with pytest.raises(ServerUnreachableError, match="the slot of our keys is being moved"):
        await moving.call(both[1:])
    cluster.move(SLOT, there)
    with pytest.raises(ServerUnreachableError, match="the slot of our keys was moved"):
        await moved.call(both[:1])
    assert not any(one.is_open for one in (first, moving, moved))
    last = await Server(cluster.url, 5.0).connect()
    assert await last.execute(both) == [1, 2]
    await last.close()
    cluster.move(SLOT, here)


@pytest.mark.parametrize("lost", [SLOT, SLOT - 1], ids=["our slot", "another slot"])
@in_asyncio
async def test_a_slot_that_nobody_serves_stops_all_unless_the_cluster_is_told_not_to(
    lost: int,
) -> None:
    node = ClusterServer().start()
    try:
        with node.client() as client:
            client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
            wait_until(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"))
            async with FairSemaphore(f"redis://{address(node)}", recovery_wait=0) as semaphore:
                async with semaphore.permit("s", 1):
                    pass
                connection = await Server(f"redis://{address(node)}", 5.0).connect()
                client.execute_command("CLUSTER", "DELSLOTS", lost)
                wait_until(
                    lambda: b"cluster_state:fail" in client.execute_command("CLUSTER", "INFO")
                )
                with pytest.raises(ServerUnreachableError, match="lost the connection to"):
                    await connection.call([("HLEN", Keys("semaphore").epoch)])
                assert not connection.is_open
                waiting = asyncio.create_task(semaphore.acquire("s", 1))
                await asyncio.sleep(0.1)
                assert not waiting.done()
                client.config_set("cluster-require-full-coverage", "no")
                if lost == SLOT:
                    await asyncio.sleep(0.1)
                    assert not waiting.done()
                    client.execute_command("CLUSTER", "ADDSLOTS", lost)
                (await waiting).release()
    finally:
        node.remove()


@in_asyncio
async def test_nodes_that_are_known_by_their_host_names() -> None:
    """One that announces none is known by its address."""
    cluster = Cluster()
    try:
        cluster.start()
        with cluster.nodes[0].client() as client:
            if client.info("server")["redis_version"] < "7":
                pytest.skip("this server knows no host names")
        for number, node in enumerate(cluster.nodes):
            with node.client() as client:
                client.config_set("cluster-preferred-endpoint-type", "hostname")
                if number:
                    client.config_set("cluster-announce-hostname", "localhost")
        wait_until(
            lambda: all(
                str(cluster.say(one, "SLOTS")).count("b'localhost'") >= 2 for one in cluster.nodes
            )
        )
        found = {
            (str(connection.address), prefix)
            for prefix in map(str, range(12))
            for connection in [await Server(cluster.url, 5.0, prefix=prefix).connect()]
        }
        assert {one.partition(":")[0] for one, _ in found} == {"127.0.0.1", "localhost"}
    finally:
        cluster.remove()


@in_asyncio
async def test_a_cluster_that_does_not_serve_our_slot_is_waited_for() -> None:
    node = ClusterServer().start()
    try:
        url = f"redis://{address(node)}"
        with pytest.raises(ServerUnreachableError, match=f"knows no owner of slot {SLOT}"):
            await port_of(url)
        with pytest.raises(ServerRefusedError, match=r"write redis\+cluster://host:port"):
            await FairSemaphore(node.url).open(wait=False)
        with node.client() as client:
            client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        async with FairSemaphore(url, recovery_wait=0) as semaphore, semaphore.permit("s", 1):
            pass  # one node is a cluster, too
    finally:
        node.remove()


@in_asyncio
async def test_what_is_not_a_cluster_is_refused() -> None:
    server, sentinel = RedisServer(tcp_port=free_port()), SentinelServer()
    try:
        server.start()
        sentinel.start()
        for url in (f"redis+cluster://{address(server)}", f"redis+cluster://{address(sentinel)}"):
            with pytest.raises(ServerRefusedError, match="is not a node of a cluster"):
                await FairSemaphore(url).open(wait=False)
        with pytest.raises(ServerUnreachableError, match=f"cannot reach .* at {NOBODY}"):
            await FairSemaphore(f"{url},{NOBODY}").open(wait=False)  # it may be there soon
    finally:
        server.remove()
        sentinel.remove()


@pytest.mark.parametrize("rest", ["", "a,", "a/service", "a:port", "a?sentinel_password=x"])
def test_addresses_that_cannot_be_read_are_refused(rest: str) -> None:
    with pytest.raises(SettingsError, match=r"^REDIS_URL: "):
        FairSemaphore(f"redis+cluster://{rest}", url_from="REDIS_URL")


def test_a_cluster_is_named_without_its_password() -> None:
    name = str(Server("rediss+cluster://u:t0p-secret@a,b:1?ssl_cert_reqs=none", 1.0))
    assert name == "rediss+cluster://a:6379,b:1/0"
