"""What happens to nodes."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable

from tests.chaos.fault import HOUR, fault
from tests.chaos.nodes import Node
from tests.chaos.world import Setup, World

LAST_TRANSFER = 2.0  # seconds from the last transfer of a node that was told to end to its exit


@fault()
async def node_killed(world: World) -> None:
    await world.kill(world.any_node())
    await world.recovers()


@fault()
async def node_killed_and_replaced(world: World) -> None:
    await world.kill(world.any_node())
    await world.start_node()
    await world.recovers()
    await world.until(lambda: world.nodes[-1].name in world.site.visitors, "the new node")


@fault()
async def all_nodes_but_one_killed(world: World) -> None:
    for node in world.living[1:]:
        await world.kill(node)
    await world.recovers()


@fault()
async def node_frozen_for_less_than_a_lease(world: World) -> None:
    async with world.frozen(world.any_node()):
        await world.some_time(0.1, 0.5)
    await world.recovers()


@fault()
async def node_frozen_for_more_than_a_lease(world: World) -> None:
    async with world.frozen(world.any_node()):
        await world.recovers()
        await world.some_time(1.1, 2.5)
    await world.recovers()


@fault()
async def node_blocked_for_less_than_a_lease(world: World) -> None:
    _, woken = await _block(world, world.dice.uniform(0.1, 0.3))
    await woken
    await world.recovers()


@fault()
async def node_blocked_for_more_than_a_lease(world: World) -> None:
    node, woken = await _block(world, world.dice.uniform(1.3, 2.5))
    async with world.afflicted(node):
        await world.recovers()
        await woken
    await world.recovers()


async def _block(world: World, leases: float) -> tuple[Node, Awaitable[None]]:
    """Let the next callback compute: that of which node, and its end."""
    seconds = leases * world.lease
    world.site.compute = seconds
    await world.until(lambda: not world.site.compute, "a page that makes its callback compute")
    (node,) = (node for node in world.nodes if node.name == world.site.computes)
    return node, asyncio.create_task(asyncio.sleep(seconds))


@fault()
async def node_interrupted(world: World) -> None:
    await _told_to_end(world, signal.SIGINT)


@fault()
async def node_terminated(world: World) -> None:
    await _told_to_end(world, signal.SIGTERM)


async def _told_to_end(world: World, number: signal.Signals) -> None:
    node = world.any_node()
    node.was_told_to_end = True
    node.send(number)
    since = time.monotonic()

    async def exits() -> None:
        await world.happens(node.ended, "the end of a node")
        last = max(since, world.site.last_end.get(node.name, since))
        seconds = time.monotonic() - last
        status = node.status or 0
        world.history.note(
            "exited", node.name, seconds=seconds, promise=LAST_TRANSFER, count=status
        )

    await asyncio.gather(world.recovers(), exits())


@fault()
async def node_interrupted_twice(world: World) -> None:
    node = world.any_node()
    node.was_told_to_end = True
    node.send(signal.SIGINT)
    await node.says("Received SIGINT, shutting down gracefully")
    node.send(signal.SIGINT)
    await world.happens(node.ended, "the end of a node")
    world.history.note("killed", node.name)
    await world.recovers()


@fault(Setup(node_clocks=(HOUR, -HOUR, 0.0)))
async def node_clocks_an_hour_off(world: World) -> None:
    await world.kill(world.any_node())
    await world.recovers()
