"""What happens between nodes and the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from tests.chaos import proxy
from tests.chaos.fault import fault
from tests.chaos.nodes import Node
from tests.chaos.proxy import ALL_KINDS, BOTH_WAYS, Kind, Way
from tests.chaos.world import Setup, World

GRANTS_ONLY = frozenset({Kind.GRANTS})
ON_ITS_WAY_S = 0.2  # after which what was sent before an unplugging has arrived


# What networks do, with the proof that they did it ----------------------------------------------


@asynccontextmanager
async def cut_off(
    world: World,
    *nodes: Node,
    ways: frozenset[Way] = BOTH_WAYS,
    kinds: frozenset[Kind] = ALL_KINDS,
) -> AsyncIterator[None]:
    """Nothing passes these ways between these nodes and the server, for as long as the body takes
    and until there was something to hold back. That arrives in the end.
    """
    before = {}
    for node in nodes:
        node.proxy.cut(ways, kinds)
        before[node] = _passed(node, ways, kinds)
    yield
    for node in nodes:
        await world.happens(node.proxy.held_back, f"{node.name} to say or hear something")
        world.prove(f"{node.name} was cut off", _passed(node, ways, kinds) == before[node])
        node.proxy.heal()


def _passed(node: Node, ways: frozenset[Way], kinds: frozenset[Kind]) -> int:
    return sum(node.proxy.passed[kind, way] for kind in kinds for way in ways)


@asynccontextmanager
async def connections_dead(world: World, *nodes: Node) -> AsyncIterator[None]:
    """Nothing passes over the connections that these nodes have, and nobody tells them. New ones
    work. What was held back arrives in the end.
    """
    dead = {}
    for node in nodes:
        await world.eventually(node.proxy.is_connected, f"a connection of {node.name}")
        node.proxy.cut_connections()
        dead[node] = {one: one.passed for one in node.proxy.connections}
    yield
    for node, connections in dead.items():
        new = node.proxy.connections - connections.keys()
        silent = all(one.passed == passed for one, passed in connections.items())
        world.prove(f"nothing passed over the old connections of {node.name}", silent)
        world.prove(f"new connections of {node.name} worked", any(one.passed for one in new))
        node.proxy.heal()


@asynccontextmanager
async def slow(world: World, leases: float) -> AsyncIterator[None]:
    """All that is said to the server, and all that it says, takes so long."""
    for node in world.nodes:
        node.proxy.delay = leases * world.lease
    yield
    for node in world.nodes:
        took = await node.proxy.ping()
        world.prove(f"{node.name} and the server were slow", took >= 2 * node.proxy.delay)
        node.proxy.heal()


async def drop_connections(world: World, *nodes: Node, kinds: frozenset[Kind] = ALL_KINDS) -> None:
    """Reset these nodes' connections, once there are any."""
    for node in nodes:
        connected = partial(node.proxy.is_connected, kinds)
        await world.eventually(connected, f"a connection of {node.name} to drop")
        dropped = node.proxy.drop_connections(kinds)
        world.prove(f"a connection of {node.name} was dropped", dropped)


# The faults -------------------------------------------------------------------------------------


@fault()
async def node_cut_off_for_less_than_a_lease(world: World) -> None:
    async with cut_off(world, world.any_node()):
        await world.some_time(0.1, 0.9)
    await world.recovers()


@fault()
async def node_cut_off_for_more_than_a_lease(world: World) -> None:
    await _cut_off_for_long(world, BOTH_WAYS)


@fault()
async def requests_of_a_node_cut_off(world: World) -> None:
    await _cut_off_for_long(world, frozenset({Way.REQUESTS}))


@fault()
async def replies_to_a_node_cut_off(world: World) -> None:
    await _cut_off_for_long(world, frozenset({Way.REPLIES}))


async def _cut_off_for_long(world: World, ways: frozenset[Way]) -> None:
    node = world.any_node()
    async with cut_off(world, node, ways=ways), world.afflicted(node):
        await world.recovers()
        await world.some_time(1.1, 2)
    await world.recovers()


@fault()
async def all_nodes_cut_off(world: World) -> None:
    async with cut_off(world, *world.living):
        await world.some_time(1.1, 2)
    await world.recovers()


@fault()
async def connections_dropped(world: World) -> None:
    for _ in range(5):
        await drop_connections(world, world.any_node())
        await world.more(20)
    await world.recovers()


@fault()
async def connections_dead_while_new_ones_work(world: World) -> None:
    """As behind a firewall that has forgotten them."""
    async with connections_dead(world, *world.living):
        await world.recovers()
        await world.some_time(1.1, 2)
    await world.recovers()


@fault()
async def replies_dropped(world: World) -> None:
    """The command was run; the node that sent it never hears so."""
    await _spoil(world, proxy.replies, "a reply")


@fault()
async def grants_dropped(world: World) -> None:
    """The connection breaks between a grant and its delivery."""
    await _spoil(world, proxy.grants, "a grant")


async def _spoil(world: World, spoils: proxy.Spoils, what: str) -> None:
    for _ in range(5):
        with world.any_node().proxy.spoiling(spoils) as spoilt:
            await world.happens(spoilt, f"{what} to drop")
        world.prove(f"{what} was dropped", spoilt.is_set())
    await world.recovers()


@fault()
async def grants_channel_dropped(world: World) -> None:
    for _ in range(5):
        await drop_connections(world, *world.living, kinds=GRANTS_ONLY)
        await world.more(20)
    await world.recovers()


@fault()
async def grants_channel_cut_off(world: World) -> None:
    async with cut_off(world, world.any_node(), kinds=GRANTS_ONLY):
        await world.recovers()  # renewals tell what the channel would have told
        await world.some_time(1.1, 2)
    await world.recovers()


@fault()
async def slow_server(world: World) -> None:
    async with slow(world, world.dice.uniform(0.02, 0.1)):
        await world.some_time(1.5, 3)
    await world.recovers()


@fault()
async def server_too_slow(world: World) -> None:
    """Every call runs into its time-out, and is run all the same."""
    before = {node: node.proxy.accepted for node in world.living}
    async with slow(world, 0.5):
        await world.some_time(1.5, 3)
        for node, accepted in before.items():
            world.prove(f"{node.name} gave a connection up", node.proxy.accepted > accepted)
    await world.recovers()


@fault(Setup(namespace=True))
async def node_unplugged(world: World) -> None:
    """A real network without a cable: nothing is told, and packets are lost for good."""
    assert world.namespace
    node = world.nodes[0]
    world.namespace.unplug_the_server()
    await asyncio.sleep(ON_ITS_WAY_S)
    before = _passed(node, frozenset({Way.REQUESTS}), ALL_KINDS)
    async with world.afflicted(node):
        await world.recovers()
        await world.some_time(1.1, 2)
    after = _passed(node, frozenset({Way.REQUESTS}), ALL_KINDS)
    world.prove(f"{node.name} was unplugged", after == before and world.namespace.is_unplugged)
    world.namespace.plug_in_the_server()
    await world.recovers()
