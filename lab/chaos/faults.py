"""The faults: small functions with a name, each of a kind of its own.

A fault is done to a world in full swing. It proves that it has done what its name says
(`World.prove`): a run in which it did not shows nothing. It waits for what it has to see
(`recovers`: full use again), and lets time pass only where the length of time is
what the fault is. They are what only real processes, servers, networks and clocks can show; what
becomes of the protocol when messages and data are lost, lab/simulation shows.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable

from lab.chaos.proxy import Proxy
from lab.chaos.world import Node, World
from semaphore_middleware.model.lease import GRACE
from tests.docs.pages import block_of
from tests.support.haproxy import PAGE, USER, HAProxy
from tests.support.servers import RedisServer

Happens = Callable[[World], Awaitable[None]]


FAULTS: dict[str, Happens] = {}
"""By name: what goes wrong in a run."""


def fault(happens: Happens) -> Happens:
    """Enter a function into `FAULTS` under its own name."""
    FAULTS[happens.__name__.replace("_", "-")] = happens
    return happens


def why_not_here(name: str) -> str:
    """Why this machine cannot have the fault; empty if it can."""
    lacks = name.startswith("haproxy") and not shutil.which("haproxy")
    return "haproxy is not installed" if lacks else ""


# Nodes ------------------------------------------------------------------------------------------


@fault
async def node_killed_and_replaced(world: World) -> None:
    await world.kill(world.any_node())
    new = await world.start_node()
    await world.recovers()
    await world.in_time(world.site.until(lambda: new.name in world.site.visitors), "the new node")


@fault
async def node_frozen_for_more_than_a_lease(world: World) -> None:
    node = world.any_node()
    async with world.afflicted(node), world.stopped(node.pid):
        await world.recovers()
        await world.some_time(1.1, 2.5)
    await world.recovers()


@fault
async def node_blocked_by_a_callback(world: World) -> None:
    """It computes for longer than a lease."""
    world.site.compute = seconds = world.dice.uniform(1.3, 2.5) * world.lease
    await world.in_time(world.site.until(lambda: not world.site.compute), "a page to compute with")
    (node,) = (node for node in world.nodes if node.name == world.site.computes)

    def has_computed() -> bool:
        return any(still.end - still.start >= seconds for still in node.stills)

    async with world.afflicted(node):
        await world.recovers()
        await world.sees(has_computed, "the end of a computation")
    await world.recovers()


# The network ------------------------------------------------------------------------------------


async def drop_connections(world: World, *nodes: Node) -> None:
    """Reset these nodes' connections, as whoever redirects a name does, once there are any."""
    for node in nodes:
        await world.sees(lambda node=node: node.proxy.drop_connections() > 0, "a connection")  # type: ignore[misc]


@fault
async def node_cut_off_for_more_than_a_lease(world: World) -> None:
    """Nothing passes, and nobody tells. What was held back arrives in the end."""
    node = world.any_node()
    async with world.afflicted(node):
        node.proxy.cut()
        passed = node.proxy.passed
        await world.recovers()
        await world.some_time(1.1, 2)
        await world.in_time(node.proxy.held_back.wait(), "something to hold back")
        world.prove(f"{node.name} was cut off", node.proxy.passed == passed)
        node.proxy.heal()
    await world.recovers()


# Another server becomes the master --------------------------------------------------------------

MARK = "{semaphore}-mark"  # a key beside those of the nodes: what befalls it, befalls these
BEFORE = b"what was before the lag"
UNHEARD_S = 3.0  # after which a master with the docs' options has noticed that it has no replica


async def follow(world: World, replica: RedisServer, master: RedisServer) -> Proxy:
    """Let a server follow another one until it is in step. The proxy has the stream of writes."""
    stream = await world.proxy_of(master)
    await world.command("CONFIG", "SET", "repl-diskless-sync-delay", 0, at=master)
    await world.command("REPLICAOF", "127.0.0.1", stream.port, at=replica)

    async def is_in_step() -> bool:
        return bool((await world.info("replication", at=replica))["master_link_status"] == "up")

    await world.sees(is_in_step, "a replica in step")
    return stream


async def lag(world: World, replica: RedisServer, stream: Proxy) -> None:
    """Hold back what the server writes, for good."""
    await world.command("SET", MARK, BEFORE)

    async def has_it() -> bool:
        return bool(await world.command("GET", MARK, at=replica) == BEFORE)

    await world.sees(has_it, "a replica to hear of a write")
    stream.cut()
    await world.command("SET", MARK, "what the replica never hears of")
    await world.more(world.dice.randint(100, 500))
    await world.transfers_under_way()


@fault
async def haproxy_with_a_replica_that_lags(world: World) -> None:
    master, heir, other = world.server, await world.start_server(), await world.start_server()
    stream = await follow(world, heir, master)
    await follow(world, other, master)
    for server in (master, heir, other):
        await world.command(*USER, at=server)
    haproxy = HAProxy(world.directory / "haproxy", [master, heir, other])
    await world.put_before_the_server(haproxy)
    await world.sees(
        lambda: asyncio.to_thread(haproxy.leads_to, master), "HAProxy to find the master"
    )
    await drop_connections(world, *world.living)
    await world.recovers()
    await lag(world, heir, stream)
    master.kill()
    await world.command("REPLICAOF", "NO", "ONE", at=heir)
    await world.sees(
        lambda: asyncio.to_thread(haproxy.leads_to, heir), "HAProxy to find the new master"
    )
    world.server = heir
    found = await world.command("GET", MARK)
    world.prove("the server has what was before the lag alone", found == BEFORE)
    await world.recovers()


@fault
async def split_brain_with_min_replicas(world: World) -> None:
    """The master is cut off from its replicas and from all nodes but one. One of the replicas is
    promoted, as soon as the lease and the options of the docs allow it.
    """
    master, heir, other = world.server, await world.start_server(), await world.start_server()
    streams = [await follow(world, replica, master) for replica in (heir, other)]
    for server in (heir, other, master):
        for line in block_of(PAGE, "redis").splitlines():
            await world.command("CONFIG", "SET", *line.split(), at=server)
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
        await world.recovers()
        roles = {(await world.info("replication", at=one))["role"] for one in (master, heir)}
        world.prove("both are masters", roles == {"master"})
        refused = (await world.info("errorstats", at=master)).get("errorstat_NOREPLICAS")
        world.prove(f"{node.name} was refused by the first", refused)
    node.proxy.target = heir.path
    master.kill()
    await world.recovers()
    await world.command("CONFIG", "SET", "min-replicas-to-write", 0)
