"""What a permit costs the server, against the least that a semaphore in Redis could cost.

The yardstick writes a holder down and takes it off again: a ZADD, and a ZREM when it is over, as
many of them in a round trip as ours takes permits in a call. It keeps no limit, no queue, no lease.
The fast path of the script `sync` is worth its lines while the slow one alone costs 1.3 times more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from typing import TypeAlias

from lab.benchmarks.harness.figures import alternating, median_ratio
from lab.benchmarks.harness.report import Goal, Report
from lab.benchmarks.harness.simulated_node import Batch, SimulatedNode
from lab.simulation.power import script_file
from tests.support.server_time import metered
from tests.support.servers import RedisServer

GOALS = {(1, 1): 3.0, (100, 1): 0.5, (100, 100): 10.0}
"""Ratios, by how many permits there are a call, and of how many sites."""
LEAST_GAIN = 1.3  # of the fast path, for a single permit
FAST_PATH = "semaphore_middleware/core/lua/shared/fast_path.lua"
CALLS = 100  # at least, in a round: fewer take too little time to be told
Variant: TypeAlias = tuple[
    Callable[[], Awaitable[None]], Callable[[], AbstractContextManager[None]]
]
"""What is measured, and what it is measured in."""
COLUMNS = ("permits a call", "sites", "ours, us a permit", "ZADD + ZREM, us", "ratio")


def measure(quick: bool) -> Report:
    with RedisServer() as server:
        return asyncio.run(_measure(server, *((5, 200) if quick else (15, 2000))))


async def _measure(server: RedisServer, rounds: int, permits: int) -> Report:
    rows = []
    goals = []
    async with SimulatedNode(server.url, "node") as node:
        for (a_call, sites), goal in GOALS.items():
            batch = Batch(node, a_call, sites)
            pair = (batch.take_and_give_back, nullcontext), (batch.add_and_remove, nullcontext)
            ours, yardstick = await _alternate(server, rounds, permits, a_call, pair)
            ratio = median_ratio(ours, yardstick)
            rows.append((a_call, sites, median(ours), median(yardstick), ratio))
            goals.append(Goal(f"{a_call} a call, of {sites}: ratio", ratio, at_most=goal))
        once = Batch(node, 1, 1).take_and_give_back
        fast, slow = await _alternate(
            server, rounds, permits, 1, ((once, nullcontext), (once, _slow_path_alone))
        )
    gain = median_ratio(slow, fast)
    goals.append(Goal("one a call: gain of the fast path", gain, at_least=LEAST_GAIN))
    note = (
        f"Medians of {rounds} rounds of {permits} permits each or more, ours and the yardstick "
        "alternating, on one connection of one server. A permit is taken in one call and given "
        "back in another, and no permit is reused: updates are sent as they are."
    )
    return Report("server: processor time of the server a permit", COLUMNS, rows, goals, [note])


def _slow_path_alone() -> AbstractContextManager[None]:
    return script_file(FAST_PATH, "local function fast_path() end")


async def _alternate(
    server: RedisServer, rounds: int, permits: int, a_call: int, pair: Sequence[Variant]
) -> tuple[list[float], list[float]]:
    """Microseconds of the server a permit of both variants, in each round."""
    found: tuple[list[float], list[float]] = ([], [])
    times = max(CALLS, permits // a_call)
    for once, context in 10 * [*pair]:  # loads the scripts
        with context():
            await once()
    for figures, (once, context) in alternating(rounds, [*zip(found, pair, strict=True)]):
        with context(), metered(figures, times * a_call, server):
            for _ in range(times):
                await once()
    return found
