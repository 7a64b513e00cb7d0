"""All faults by name, in the order of the table."""

from tests.chaos import (
    combined_faults,
    master_faults,
    network_faults,
    node_faults,
    server_faults,
)
from tests.chaos.fault import FAULTS, Fault, fault
from tests.chaos.world import Setup, World

__all__ = [
    "FAULTS",
    "Fault",
    "combined_faults",
    "master_faults",
    "network_faults",
    "node_faults",
    "server_faults",
]


@fault()
async def three_at_random(world: World) -> None:
    """One after the other, for what one leaves behind may be what the next one trips over."""
    anywhere = [fault for fault in FAULTS.values() if fault.setup == Setup()]
    for chosen in world.dice.sample(anywhere, 3):
        if chosen.happens is not three_at_random:
            await world.up_to_strength()
            await chosen.strike(world)
