"""In a cluster all our keys are in one slot, and its owner is found by asking any node."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from redis.crc import key_slot

from semaphore_middleware import FairSemaphore, ServerUnreachableError
from semaphore_middleware.core.keys import Keys
from semaphore_middleware.core.observer import StoreLost
from semaphore_middleware.link import location
from semaphore_middleware.link.connection import Address, Connection, Connector
from semaphore_middleware.link.location import Server
from tests.support.crawls import Patch
from tests.support.nodes import Recorder, calls_of, eventually, found_by, refusal, renew
from tests.support.servers import (
    Cluster,
    ClusterServer,
    RedisServer,
    SentinelServer,
    free_port,
    wait_until,
)
from tests.support.times import ENDLESS_S

SLOT = key_slot(Keys("semaphore").epoch)
NOBODY = "127.0.0.1:1"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


async def test_any_node_tells_who_owns_the_slot_of_a_prefix(cluster: Cluster) -> None:
    owner = cluster.owner(SLOT).address
    for node in cluster.nodes:
        for kind in ("redis", "redis+cluster"):
            assert await found_by(f"{kind}://{node.address}") == owner
    assert await found_by(f"redis+cluster://{NOBODY},{cluster.nodes[2].address}") == owner
    found = {await found_by(cluster.url, prefix=f"group-{number}") for number in range(20)}
    assert found == {node.address for node in cluster.nodes}


async def test_each_time_another_node_is_asked(cluster: Cluster, monkeypatch: Patch) -> None:
    """So one that hangs, or is cut off from the others, costs one attempt at most."""
    owner = cluster.owner(SLOT)
    other = next(node for node in cluster.nodes if node is not owner)
    server = Server(f"redis+cluster://{other.address}", 0.3)
    await (await reached(server)).close()
    asked = calls_of(monkeypatch, Connector, "ask")
    with other.frozen():
        connection = await reached(server)
    assert connection.address.port == owner.tcp_port
    await connection.close()
    assert len({address for _, address, *_ in asked[:2]}) == len(asked[:2])


async def reached(server: Server) -> Connection:
    """In as many attempts as it takes: on a busy machine no node may respond in time."""
    while True:
        with suppress(ServerUnreachableError):
            return await server.connect()


async def test_a_node_that_has_gone_is_not_asked_any_more(cluster: Cluster) -> None:
    """Each would cost the time of a call, and pods get new addresses again and again."""
    known = Server(f"redis+cluster://{NOBODY},{cluster.nodes[0].address}", ENDLESS_S)._cluster
    known._nodes.append(Address("127.0.0.1", 2))  # as an answer named it
    await known.find()
    assert set(map(str, known._nodes)) == {NOBODY, *(node.address for node in cluster.nodes)}


async def test_a_replica_owns_no_slot_but_is_asked_when_its_master_is_away() -> None:
    master, replica = Address("10.0.0.1", 1), Address("10.0.0.2", 2)
    asked = []

    class Known:
        async def ask(self, address: Address, *_: object) -> Any:
            asked.append(address)
            if len(asked) > 1 and address == master:
                raise ServerUnreachableError("away")
            return [[0, 16383, [b"10.0.0.1", 1, b"m"], [b"10.0.0.2", 2, b"r"]]]

    known = location.Cluster([master], b"k", Known())  # type: ignore[arg-type]
    for _ in range(2):
        assert await known.find() == (master, [master])
    assert asked == [master, master, replica]


@pytest.mark.parametrize("with_keys", [True, False])
async def test_a_slot_that_moves_is_a_loss_of_data(cluster: Cluster, with_keys: bool) -> None:
    """If its keys come with it they are of another incarnation of the server."""
    home = cluster.owner(SLOT)
    there = next(node for node in cluster.nodes if node is not home)
    seen = Recorder()
    url = f"redis://{there.address}"  # the address of any node will do
    async with FairSemaphore(url, recovery_wait=0.5, observers=[seen]) as semaphore:
        permit = await semaphore.acquire("s", 1)
        for target in (there, home):
            losses = seen.count(StoreLost)
            cluster.move(SLOT, target, with_keys=with_keys)

            async def is_registered(target: RedisServer = target, losses: int = losses) -> bool:
                renew(semaphore)
                return seen.count(StoreLost) > losses and target.members() == {"s": (1, 0)}

            await eventually(is_registered)
        async with FairSemaphore(cluster.url) as other:
            waiting = asyncio.create_task(other.acquire("s", 1))
            permit.release()
            (await waiting).release()
            await semaphore.admin.configure("s", 2)
            assert [one.scope for one in await other.admin.survey()] == ["s"]
            await other.admin.reset("s")


async def test_while_keys_move_each_call_asks_who_owns_the_slot(cluster: Cluster) -> None:
    """ASK where all keys have gone, TRYAGAIN where some have, MOVED when another master owns it."""
    here = cluster.owner(SLOT)
    there = next(node for node in cluster.nodes if node is not here)
    keys = Keys("semaphore")
    both = ("HEXISTS", keys.epoch, "a"), ("DEL", keys.epoch, keys.rules)
    first, moving, moved = [await Server(cluster.url, ENDLESS_S).connect() for _ in range(3)]
    await first.execute([("HSET", keys.epoch, "a", 1), ("HSET", keys.rules, "a", "{}")])
    cluster.begin_to_move(SLOT, there)
    cluster.carry(SLOT, there, [keys.epoch])
    for one, call in ((first, both[:1]), (moving, both[1:])):
        with pytest.raises(ServerUnreachableError, match="the slot of our keys is being moved"):
            await one.call(call)
    cluster.move(SLOT, there)
    with pytest.raises(ServerUnreachableError, match="the slot of our keys was moved"):
        await moved.call(both[:1])
    assert not any(one.is_open for one in (first, moving, moved))
    last = await Server(cluster.url, ENDLESS_S).connect()
    assert await last.execute(both) == [1, 2]
    await last.close()
    cluster.move(SLOT, here)


@pytest.mark.parametrize("lost", [SLOT, SLOT - 1], ids=["our slot", "another slot"])
async def test_a_slot_that_nobody_serves_stops_all(lost: int) -> None:
    with ClusterServer() as node:
        url = f"redis://{node.address}"
        with node.client() as client:

            def say(*command: object) -> None:
                client.execute_command("CLUSTER", *command)

            def wait_for(state: bytes) -> None:
                wait_until(lambda: state in client.execute_command("CLUSTER", "INFO"))

            with pytest.raises(ServerUnreachableError, match=f"knows no owner of slot {SLOT}"):
                await found_by(url)
            assert "write redis+cluster://host:port" in await refusal(node.url)
            say("ADDSLOTS", *range(16384))
            wait_for(b"cluster_state:ok")
            async with FairSemaphore(url, recovery_wait=0) as semaphore:  # one node is a cluster
                async with semaphore.permit("s", 1):
                    pass
                connection = await Server(url, ENDLESS_S).connect()
                say("DELSLOTS", lost)
                wait_for(b"cluster_state:fail")
                with pytest.raises(ServerUnreachableError, match="lost the connection to"):
                    await connection.call([("HLEN", Keys("semaphore").epoch)])
                waiting = asyncio.create_task(semaphore.acquire("s", 1))
                await asyncio.sleep(0.1)
                assert not waiting.done()
                client.config_set("cluster-require-full-coverage", "no")
                if lost == SLOT:
                    await asyncio.sleep(0.1)
                    assert not waiting.done()
                    say("ADDSLOTS", lost)
                (await waiting).release()


async def test_nodes_that_are_known_by_their_host_names(cluster: Cluster) -> None:
    """One that announces none is known by its address."""
    with cluster.nodes[0].client() as client:
        if client.info("server")["redis_version"] < "7":
            pytest.skip("this server knows no host names")
    names = ("", "localhost", "localhost")
    announced: dict[RedisServer, str] = dict(zip(cluster.nodes, names, strict=True))

    def announce(kind: str, names: dict[RedisServer, str]) -> None:
        for node, name in names.items():
            with node.client() as client:
                client.config_set("cluster-preferred-endpoint-type", kind)
                client.config_set("cluster-announce-hostname", name)

    def are_known(count: int) -> bool:
        slots = [str(cluster.say(one, "SLOTS")) for one in cluster.nodes]
        return all(min(said.count("b'localhost'"), 2) == count for said in slots)

    announce("hostname", announced)
    wait_until(lambda: are_known(2))
    found = [await found_by(cluster.url, prefix=str(number)) for number in range(12)]
    assert {one.partition(":")[0] for one in found} == {"127.0.0.1", "localhost"}
    announce("ip", dict.fromkeys(announced, ""))
    wait_until(lambda: are_known(0))


async def test_what_is_not_a_cluster_is_refused() -> None:
    with RedisServer(tcp_port=free_port()) as server, SentinelServer() as sentinel:
        for one in (server, sentinel):
            url = f"redis+cluster://{one.address}"
            assert "is not a cluster node" in await refusal(url)
        with pytest.raises(ServerUnreachableError, match=f"cannot reach .* at {NOBODY}"):
            await FairSemaphore(f"{url},{NOBODY}").open(wait=False)  # it may be there soon
