"""What a permit costs the server, against the least that a semaphore in Redis could cost.

The yardstick writes a holder down and takes it off again: a ZADD, and a ZREM when it is over, as
many of them in a round trip as ours takes permits in a call. It keeps no limit, no queue, no lease.
"""

from __future__ import annotations

import asyncio
from statistics import median

from lab.benchmarks.harness.figures import in_turn, median_ratio
from lab.benchmarks.harness.report import Goal, Report
from lab.benchmarks.harness.server import metered
from lab.benchmarks.harness.simulated_node import Batch, SimulatedNode
from tests.support.servers import RedisServer

GOALS = {(1, 1): 3.0, (100, 1): 0.5, (100, 100): 10.0}
"""Ratios, by how many permits there are a call, and of how many sites."""
CALLS = 100  # at least, in a round: fewer take too little time to be told
COLUMNS = ("permits a call", "sites", "ours, us a permit", "ZADD + ZREM, us", "ratio")


def measure(quick: bool) -> Report:
    with RedisServer() as server:
        return asyncio.run(_measure(server, *((5, 200) if quick else (15, 2000))))


async def _measure(server: RedisServer, rounds: int, permits: int) -> Report:
    rows = []
    goals = []
    async with SimulatedNode(server.url, "node") as node:
        for (a_call, sites), goal in GOALS.items():
            ours, yardstick = await _alternate(server, rounds, permits, Batch(node, a_call, sites))
            ratio = median_ratio(ours, yardstick)
            rows.append((a_call, sites, median(ours), median(yardstick), ratio))
            goals.append(Goal(f"{a_call} a call, of {sites}: ratio", ratio, at_most=goal))
    note = (
        f"Medians of {rounds} rounds of {permits} permits each or more, ours and the yardstick in "
        "turn, on one connection of one server. A permit is taken in one call and given back in "
        "another, and no turns are taken: statements are sent as they are."
    )
    return Report("server: processor time of the server a permit", COLUMNS, rows, goals, [note])


async def _alternate(
    server: RedisServer, rounds: int, permits: int, batch: Batch
) -> tuple[list[float], list[float]]:
    """Microseconds a permit of ours and of the yardstick, in each round."""
    ours: list[float] = []
    yardstick: list[float] = []
    pair = [(ours, batch.take_and_give_back), (yardstick, batch.add_and_remove)]
    times = max(CALLS, permits // batch.permits)
    for _, once in 10 * pair:  # loads the scripts
        await once()
    for found, once in in_turn(rounds, pair):
        with metered(found, times * batch.permits, server):
            for _ in range(times):
                await once()
    return ours, yardstick
