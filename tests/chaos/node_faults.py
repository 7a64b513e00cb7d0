"""What happens to nodes."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable

from tests.chaos.fault import HOUR_S, fault
from tests.chaos.nodes import Node
from tests.chaos.world import Setup, World

LAST_TRANSFER_S = 2.0  # from the last transfer of a node that was told to end to its exit
INTERRUPTED = "Received SIGINT, shutting down gracefully"
TERMINATED = "Received SIGTERM, shutting down gracefully"
INTERRUPTED_TWICE = "Received SIGINT twice, forcing unclean shutdown"


@fault()
async def node_killed(world: World) -> None:
    await world.kill(world.any_node())
    await world.recovers()


@fault()
async def node_killed_and_replaced(world: World) -> None:
    await world.kill(world.any_node())
    new = await world.start_node()
    await world.recovers()
    await world.until(lambda: new.name in world.site.visitors, "the new node")
    world.prove("a new node took part", new.name in world.site.visitors)


@fault()
async def all_nodes_but_one_killed(world: World) -> None:
    for node in world.living[1:]:
        await world.kill(node)
    world.prove("one node was left", len(world.living) == 1)
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
    _, woken = await _block(world, 0.1, 0.3)
    await woken()
    await world.recovers()


@fault()
async def node_blocked_for_more_than_a_lease(world: World) -> None:
    node, woken = await _block(world, 1.3, 2.5)
    async with world.afflicted(node):
        await world.recovers()
        await woken()
    await world.recovers()


async def _block(
    world: World, least: float, most: float
) -> tuple[Node, Callable[[], Awaitable[None]]]:
    """Let the next callback compute for so many leases: that of which node, and how to wait for its
    end.
    """
    seconds = world.dice.uniform(least, most) * world.lease
    world.site.compute = seconds
    await world.until(lambda: not world.site.compute, "a page that makes its callback compute")
    (node,) = (node for node in world.nodes if node.name == world.site.computes)
    before = len(node.noted("computed"))

    async def woken() -> None:
        await world.eventually(
            lambda: len(node.noted("computed")) > before, "the end of a computation"
        )
        took = node.noted("computed")[-1].seconds
        world.prove(f"{node.name} stood still for {took:.1f} of {seconds:.1f} s", took >= seconds)

    return node, woken


@fault()
async def node_interrupted(world: World) -> None:
    await _told_to_end(world, signal.SIGINT, INTERRUPTED)


@fault()
async def node_terminated(world: World) -> None:
    await _told_to_end(world, signal.SIGTERM, TERMINATED)


async def _told_to_end(world: World, number: signal.Signals, says: str) -> None:
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
            "exited", node.name, seconds=seconds, promise=LAST_TRANSFER_S, count=status
        )

    await asyncio.gather(world.recovers(), exits())
    world.prove(f"{node.name} ended as it was told to", says in node.log)


@fault()
async def node_interrupted_twice(world: World) -> None:
    node = world.any_node()
    node.was_told_to_end = True
    node.send(signal.SIGINT)
    await world.eventually(lambda: INTERRUPTED in node.log, "a node to hear of its end")
    node.send(signal.SIGINT)
    await world.happens(node.ended, "the end of a node")
    world.prove(f"{node.name} was told twice to end", INTERRUPTED_TWICE in node.log)
    world.history.note("killed", node.name)
    await world.recovers()


@fault(Setup(node_clocks=(HOUR_S, -HOUR_S, 0.0)))
async def node_clocks_an_hour_off(world: World) -> None:
    true = time.time() - time.monotonic()
    for node, off in zip(world.nodes, (HOUR_S, -HOUR_S, 0.0), strict=True):
        (clock,) = node.noted("clock")
        world.prove(f"the clock of {node.name} is off", abs(clock.seconds - true - off) < 1)
    await world.kill(world.any_node())
    await world.recovers()
