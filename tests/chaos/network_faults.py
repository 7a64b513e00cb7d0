"""What happens between nodes and the server."""

from __future__ import annotations

from tests.chaos import proxy
from tests.chaos.fault import fault
from tests.chaos.proxy import BOTH_WAYS, Kind, Way
from tests.chaos.world import Setup, World

GRANTS_ONLY = frozenset({Kind.GRANTS})


@fault()
async def node_cut_off_for_less_than_a_lease(world: World) -> None:
    node = world.any_node()
    node.proxy.cut()
    await world.some_time(0.1, 0.9)
    node.proxy.heal()
    await world.recovers()


@fault()
async def node_cut_off_for_more_than_a_lease(world: World) -> None:
    await _cut_off(world, BOTH_WAYS)


@fault()
async def requests_of_a_node_cut_off(world: World) -> None:
    await _cut_off(world, frozenset({Way.REQUESTS}))


@fault()
async def replies_to_a_node_cut_off(world: World) -> None:
    await _cut_off(world, frozenset({Way.REPLIES}))


async def _cut_off(world: World, ways: frozenset[Way]) -> None:
    node = world.any_node()
    node.proxy.cut(ways)
    async with world.afflicted(node):
        await world.recovers()
        await world.some_time(1.1, 2)
    node.proxy.heal()
    await world.recovers()


@fault()
async def all_nodes_cut_off(world: World) -> None:
    for node in world.nodes:
        node.proxy.cut()
    await world.some_time(1.1, 2)
    for node in world.nodes:
        node.proxy.heal()
    await world.recovers()


@fault()
async def connections_dropped(world: World) -> None:
    for _ in range(5):
        world.any_node().proxy.drop_connections()
        await world.more(20)
    await world.recovers()


@fault()
async def replies_dropped(world: World) -> None:
    """The command was run; the node that sent it never hears so."""
    for _ in range(5):
        with world.any_node().proxy.spoiling(proxy.replies) as spoilt:
            await world.happens(spoilt, "a reply to drop")
    await world.recovers()


@fault()
async def grants_dropped(world: World) -> None:
    """The connection breaks between a grant and its delivery."""
    for _ in range(5):
        with world.any_node().proxy.spoiling(proxy.grants) as spoilt:
            await world.happens(spoilt, "a grant to drop")
    await world.recovers()


@fault()
async def grants_channel_dropped(world: World) -> None:
    for _ in range(5):
        for node in world.nodes:
            node.proxy.drop_connections(GRANTS_ONLY)
        await world.more(20)
    await world.recovers()


@fault()
async def grants_channel_cut_off(world: World) -> None:
    node = world.any_node()
    node.proxy.cut(kinds=GRANTS_ONLY)
    await world.recovers()  # renewals tell what the channel would have told
    await world.some_time(1.1, 2)
    node.proxy.heal()
    await world.recovers()


@fault()
async def slow_server(world: World) -> None:
    for node in world.nodes:
        node.proxy.delay = world.dice.uniform(0.02, 0.1) * world.lease
    await world.some_time(1.5, 3)
    for node in world.nodes:
        node.proxy.heal()
    await world.recovers()


@fault()
async def server_too_slow(world: World) -> None:
    """Every call runs into its timeout, and is run all the same."""
    for node in world.nodes:
        node.proxy.delay = 0.5 * world.lease
    await world.some_time(1.5, 3)
    for node in world.nodes:
        node.proxy.heal()
    await world.recovers()


@fault(Setup(namespace=True))
async def node_unplugged(world: World) -> None:
    """A real network without a cable: nothing is told, and packets are lost for good."""
    assert world.namespace
    world.namespace.unplug_the_server()
    async with world.afflicted(world.nodes[0]):
        await world.recovers()
        await world.some_time(1.1, 2)
    world.namespace.plug_in_the_server()
    await world.recovers()
