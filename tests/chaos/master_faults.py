"""Another server becomes the master: chosen by sentinels or in a cluster, behind proxies, or while
the one before still takes itself for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from redis.crc import key_slot

from semaphore_middleware.model.lease import GRACE
from semaphore_middleware.redis.keys import Keys
from tests.chaos.fault import fault
from tests.chaos.network_faults import drop_connections
from tests.chaos.server_faults import follow, lag, mark, prove_mark
from tests.chaos.world import Setup, World
from tests.docs.pages import block_of
from tests.support.command_proxy import CommandProxy, Subscriptions
from tests.support.haproxy import PAGE, USER, HAProxy
from tests.support.servers import Cluster, RedisServer, Watched

SLOT = key_slot(Keys("semaphore").epoch)
IN_STEP_MS = 10_000  # for which a replica is waited for
UNHEARD_S = 3.0  # after which a master with the docs' options has noticed that it has no replica


def cluster() -> Cluster:
    """Three masters; that of our slot has a replica."""
    return Cluster(guarded=SLOT)


WATCHED, CLUSTER = Setup(deployment=Watched), Setup(deployment=cluster)


async def all_heard(world: World, text: str) -> None:
    """Write something to the server, and wait until its replica has heard of it."""
    await mark(world, text)
    world.prove("a replica is in step", await world.command("WAIT", 1, IN_STEP_MS))


async def take_over(
    world: World, heir: RedisServer, has_happened: Callable[[], bool], text: str | None
) -> None:
    """Wait until this server is the one that the others name, with what was written; and until all
    nodes have found it, have noticed that it is another one, and grant again.
    """
    before = world.server
    await world.sees(partial(_so, has_happened), "another master")
    world.use(heir)
    is_master = (await world.info("replication"))["role"] == "master"
    world.prove("another server is the master", is_master and heir is not before)
    await prove_mark(world, text)
    await world.recovers_from_loss()
    await world.all_log(f"at 127.0.0.1:{heir.tcp_port} is new, or may have lost its data")


# Sentinels --------------------------------------------------------------------------------------


@fault(WATCHED)
async def sentinels_replace_a_killed_master(world: World) -> None:
    await all_heard(world, "all data")
    world.server.kill()
    await _sentinels_choose(world)


@fault(WATCHED)
async def sentinels_replace_a_frozen_master(world: World) -> None:
    """Until it hears of its heir, it answers as if nothing had happened."""
    await all_heard(world, "all data")
    watched = _watched(world)
    async with world.server_frozen():
        await world.sees(partial(_so, watched.have_chosen, watched.replica), "another master")
    await _sentinels_choose(world)


async def _sentinels_choose(world: World) -> None:
    watched = _watched(world)
    heir = watched.replica
    await take_over(world, heir, partial(watched.have_chosen, heir), "all data")


def _watched(world: World) -> Watched:
    assert isinstance(world.deployment, Watched)
    return world.deployment


# A cluster --------------------------------------------------------------------------------------


@fault(CLUSTER)
async def cluster_replaces_a_killed_master(world: World) -> None:
    await all_heard(world, "all data")
    heir = await _replica(world)
    world.server.kill()
    await _cluster_chooses(world, heir, "all data")


@fault(CLUSTER)
async def planned_failover_in_a_cluster(world: World) -> None:
    await all_heard(world, "all data")
    master, heir = world.server, await _replica(world)
    _cluster(world).say(heir, "FAILOVER")
    await _cluster_chooses(world, heir, "all data")

    async def is_replica() -> bool:
        return bool((await world.info("replication", at=master))["role"] == "slave")

    await world.sees(is_replica, "the old master to become a replica")


@fault(CLUSTER)
async def slot_moved_with_its_keys(world: World) -> None:
    await _move_the_slot(world, with_keys=True)


@fault(CLUSTER)
async def slot_moved_without_its_keys(world: World) -> None:
    await _move_the_slot(world, with_keys=False)


async def _move_the_slot(world: World, with_keys: bool) -> None:
    cluster, master = _cluster(world), world.server
    await mark(world, "all data")
    heir = next(node for node in cluster.masters if node is not master and node.is_running)
    await asyncio.to_thread(cluster.move, SLOT, heir, with_keys=with_keys)
    await _cluster_chooses(world, heir, "all data" if with_keys else None)


async def _cluster_chooses(world: World, heir: RedisServer, text: str | None) -> None:
    cluster = _cluster(world)
    await take_over(world, heir, lambda: cluster.master is heir, text)


async def _replica(world: World) -> RedisServer:
    """That of the server."""
    ((_, port, _),) = (await world.command("ROLE"))[2]
    return next(node for node in _cluster(world).nodes if node.tcp_port == int(port))


def _cluster(world: World) -> Cluster:
    assert isinstance(world.deployment, Cluster)
    return world.deployment


# Proxies ----------------------------------------------------------------------------------------


@fault(Setup(haproxy=True))
async def haproxy_with_a_replica_that_lags(world: World) -> None:
    master, heir, other = world.server, await world.start_server(), await world.start_server()
    stream = await follow(world, heir, master)
    await follow(world, other, master)
    for server in (master, heir, other):
        await world.command(*USER, at=server)
    haproxy = HAProxy(world.directory / "haproxy", [master, heir, other])
    await world.put_before_the_server(haproxy)
    await world.sees(partial(_so, haproxy.leads_to, master), "HAProxy to find the master")
    await drop_connections(world, *world.living)
    await world.recovers()
    await lag(world, heir, stream)
    master.kill()
    await world.command("REPLICAOF", "NO", "ONE", at=heir)
    await world.sees(partial(_so, haproxy.leads_to, heir), "HAProxy to find the new master")
    world.look_at(heir)
    await prove_mark(world, "what was before the lag")
    await world.recovers_from_loss()


@fault()
async def hidden_failover(world: World) -> None:
    """By a proxy that keeps the nodes' connections, and their subscriptions."""
    await _fail_over_hidden(world, Subscriptions.MOVED)


@fault()
async def hidden_failover_that_closes_subscriptions(world: World) -> None:
    await _fail_over_hidden(world, Subscriptions.CLOSED)


@fault()
async def hidden_failover_that_forgets_subscriptions(world: World) -> None:
    await _fail_over_hidden(world, Subscriptions.FORGOTTEN)


async def _fail_over_hidden(world: World, subscriptions: Subscriptions) -> None:
    """To a replica that lags; the nodes' connections stay, and no command fails."""
    master, heir = world.server, await world.start_server()
    stream = await follow(world, heir, master)
    proxy = CommandProxy(world.directory / "proxy", master.path, subscriptions)
    await world.put_before_the_server(proxy)
    await drop_connections(world, *world.living)
    await world.eventually(lambda: len(proxy.clients) >= 2 * len(world.living), "all nodes")
    await world.recovers()
    await lag(world, heir, stream)
    await world.command("REPLICAOF", "NO", "ONE", at=heir)
    kept = await proxy.switch(heir.path)
    world.prove(f"{kept} connections were kept", kept >= len(world.living))
    world.look_at(heir)
    await prove_mark(world, "what was before the lag")
    await world.recovers_from_loss()


# A split brain ----------------------------------------------------------------------------------


@fault()
async def split_brain_with_min_replicas(world: World) -> None:
    """The master is cut off from its replicas and from all nodes but one. One of the replicas is
    promoted, as soon as the lease and the options of the docs allow it.
    """
    master, heir, other = world.server, await world.start_server(), await world.start_server()
    streams = [await follow(world, replica, master) for replica in (heir, other)]
    for server in (heir, other, master):
        for option, value in min_replicas():
            await world.command("CONFIG", "SET", option, value, at=server)
    node, *others = world.dice.sample(world.living, len(world.living))
    for stream in streams:
        stream.cut()
    await asyncio.sleep(max(0.0, UNHEARD_S - (1 - GRACE) * world.lease))
    await world.command("REPLICAOF", "NO", "ONE", at=heir)
    await follow(world, other, heir)
    world.use(heir)
    node.proxy.target = master.path
    await drop_connections(world, *others)
    async with world.afflicted(node):
        await world.recovers_from_loss()
        roles = {(await world.info("replication", at=one))["role"] for one in (master, heir)}
        world.prove("both are masters", roles == {"master"})
        world.prove(f"{node.name} was refused by the first", await _refused(world, master))
    node.proxy.target = heir.path
    master.kill()
    await world.recovers()
    await world.command("CONFIG", "SET", "min-replicas-to-write", 0)


def min_replicas() -> list[tuple[str, str]]:
    """The options that docs/many-machines.md names, with their values."""
    return [
        (option, value) for option, value in map(str.split, block_of(PAGE, "redis").splitlines())
    ]


async def _refused(world: World, server: RedisServer) -> int:
    """How often a server that had no replica has refused to write."""
    errors = await world.info("errorstats", at=server)
    return int(errors.get("errorstat_NOREPLICAS", {}).get("count", 0))


async def _so(is_so: Callable[..., bool], *arguments: object) -> bool:
    """Ask what blocks."""
    return await asyncio.to_thread(is_so, *arguments)
