"""Faults at once: one hides the other, or keeps a node from hearing of it."""

from __future__ import annotations

from functools import partial

from tests.chaos.fault import HOUR_S, fault
from tests.chaos.machine import Clock
from tests.chaos.network_faults import cut_off, drop_connections
from tests.chaos.server_faults import (
    APPEND_ONLY,
    BRIEF_JUMP_S,
    follow,
    lag,
    mark,
    promote,
    prove_clock,
    prove_mark,
    set_clock,
)
from tests.chaos.world import Setup, World

JUMPS = (HOUR_S, BRIEF_JUMP_S, -BRIEF_JUMP_S, -HOUR_S)


@fault(Setup(server_clock=True))
async def server_clock_set_while_a_node_is_cut_off(world: World) -> None:
    """The lease of the node that cannot renew must not end before it knows."""
    node = world.any_node()
    async with cut_off(world, node), world.afflicted(node):
        await world.some_time(0, 0.6)
        await set_clock(world, world.dice.choice(JUMPS))
        await world.recovers_from_loss()
    await world.recovers()


@fault(Setup(server_clock=True))
async def server_back_empty_and_its_clock_set_ahead(world: World) -> None:
    """As a machine boots that has no clock of its own: it learns the time after it has begun."""
    assert world.clock
    await mark(world, "data")
    await world.restart_server(world.dice.uniform(0, 0.5), partial(world.clock.jump, -HOUR_S))
    await prove_mark(world, None)
    await world.some_time(0, 0.5)
    await set_clock(world, 0.0)
    await _prove_age(world)
    await world.recovers_from_loss()


@fault(Setup(server_clock=True, server_options=APPEND_ONLY))
async def server_back_with_its_data_and_its_clock_set(world: World) -> None:
    assert world.clock
    await mark(world, "all data")
    jump = world.dice.choice(JUMPS)
    await world.restart_server(world.dice.uniform(0, 0.5), partial(world.clock.jump, jump))
    await prove_clock(world, jump)
    await prove_mark(world, "all data")
    await world.recovers_from_loss()


@fault(Setup(server_clock=True))
async def server_replaced_by_an_old_empty_one(world: World) -> None:
    """The address moves to a server that has been up for long and knows nothing, and a node that
    holds permits can reach neither.
    """
    await mark(world, "data")
    clock = Clock(world.directory / "other-clock")
    clock.jump(-HOUR_S)
    other = await world.start_server(clock)
    clock.jump(0.0)
    node = world.any_node()
    async with cut_off(world, node), world.afflicted(node):
        world.use(other)
        await prove_mark(world, None)
        await _prove_age(world)
        await drop_connections(world, *(one for one in world.living if one is not node))
        await world.recovers_from_loss()
    await world.recovers()


async def _prove_age(world: World) -> None:
    """Although the server has just begun."""

    async def says_so() -> bool:
        return bool((await world.info("server"))["uptime_in_seconds"] >= HOUR_S - 1)

    await world.sees(says_so, "a server that takes itself for old")
    world.prove("the server takes itself for old", await says_so())


@fault()
async def failover_that_lags_while_a_node_is_cut_off(world: World) -> None:
    """It holds permits that the new master has never heard of, and cannot tell."""
    replica = await world.start_server()
    stream = await follow(world, replica, world.server)
    await lag(world, replica, stream)
    node = world.any_node()
    async with cut_off(world, node), world.afflicted(node):
        world.server.kill()
        await promote(world, replica)
        await prove_mark(world, "what was before the lag")
        await drop_connections(world, *(one for one in world.living if one is not node))
        await world.recovers_from_loss()
    await world.recovers()
