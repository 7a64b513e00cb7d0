"""What a fault is: a small function with a name, done to a world.

A fault is done to a world in full swing. It proves that it has done what its name says
(`World.prove`): a run in which it did not shows nothing. It waits for what it has to see
(`recovers` measures the way back to full use), and lets time pass only where the length of time is
what the fault is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.chaos import machine
from tests.chaos.world import Setup, World
from tests.support.haproxy import why_no_haproxy

Happens = Callable[[World], Awaitable[None]]
HOUR_S = 3600.0


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong in a run, by its name, and what it needs from the start."""

    name: str
    happens: Happens
    setup: Setup

    async def strike(self, world: World) -> None:
        """Let it happen while transfers are under way, and demand proof."""
        await world.transfers_under_way()
        before = world.proofs
        await self.happens(world)
        world.prove(f"{self.name} has proved something", world.proofs > before)

    def why_not_here(self) -> str:
        """Why this machine cannot have it; empty if it can."""
        if self.setup.server_clock:
            return machine.why_no_server_clock()
        if self.setup.node_clocks:
            return machine.why_no_clocks()
        if self.setup.namespace:
            return machine.why_no_namespaces()
        if self.setup.haproxy:
            return why_no_haproxy()
        return ""


FAULTS: dict[str, Fault] = {}


def fault(setup: Setup = Setup()) -> Callable[[Happens], Happens]:  # noqa: B008  (it is frozen)
    """Enter a function into `FAULTS` under its own name."""

    def enter(happens: Happens) -> Happens:
        name = happens.__name__.replace("_", "-")
        FAULTS[name] = Fault(name, happens, setup)
        return happens

    return enter


@fault()
async def nothing(world: World) -> None:
    before = await world.life()
    await world.recovers()
    world.prove("all nodes live on", len(world.living) == world.plan.nodes)
    world.prove("the server lives on", await world.life() == before)
