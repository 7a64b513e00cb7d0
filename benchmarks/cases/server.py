"""What a permit costs the server, against the least that a semaphore in Redis could cost.

The yardstick writes a holder down and takes it off again: a ZADD, and a ZREM when it is over, as
many of them in a round trip as ours takes permits in a call. It keeps no limit, no queue, no lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from statistics import median

from benchmarks.harness.meter import Meter
from benchmarks.harness.report import Cell, Goal, Report
from benchmarks.harness.simulated_node import SimulatedNode
from semaphore_middleware.model.limits import Limit
from tests.support.servers import RedisServer

SHAPES = ((1, 1), (10, 1), (100, 1), (100, 10), (100, 100))  # permits a call, sites they are of
CALLS = 100  # at least, in a round: fewer take too little time to be told
GOALS = {(1, 1): 3.0, (100, 1): 0.5, (100, 100): 10.0}

COLUMNS = (
    "permits a call",
    "sites",
    "ours, us a permit",
    "ZADD + ZREM, us",
    "ratio",
    "commands a permit",
)


def measure(quick: bool) -> Report:
    server = RedisServer().start()
    try:
        return asyncio.run(_measure(server, *((5, 200) if quick else (15, 2000))))
    finally:
        server.remove()


async def _measure(server: RedisServer, rounds: int, permits: int) -> Report:
    rows: list[Sequence[Cell]] = []
    goals = []
    async with SimulatedNode(server.url, "node") as node:
        with server.client() as client:
            for shape in SHAPES:
                ours, yardstick = Meter(client), Meter(client)
                await _alternate(rounds, permits, Batch(node, *shape), ours, yardstick)
                ratio = median(
                    a / b for a, b in zip(ours.microseconds, yardstick.microseconds, strict=True)
                )
                us = median(ours.microseconds), median(yardstick.microseconds)
                rows.append((*shape, *us, ratio, median(ours.commands)))
                if shape in GOALS:
                    what = "{} a call, of {}: ratio".format(*shape)
                    goals.append(Goal(what, ratio, at_most=GOALS[shape]))
    note = (
        f"Medians of {rounds} rounds of {permits} permits each or more, ours and the yardstick in "
        "turn, on one connection of one server. A permit is taken in one call and given back in "
        "another, and no turns are taken: statements are sent as they are. Commands: sent, and run "
        "by scripts."
    )
    return Report("server: processor time of the server a permit", COLUMNS, rows, goals, [note])


async def _alternate(
    rounds: int, permits: int, batch: Batch, ours: Meter, yardstick: Meter
) -> None:
    pair: list[tuple[Meter, Callable[[], Awaitable[None]]]] = [
        (ours, batch.take_and_give_back),
        (yardstick, batch.add_and_remove),
    ]
    times = max(CALLS, permits // batch.permits)
    for _ in range(10):  # loads the scripts
        await batch.take_and_give_back()
        await batch.add_and_remove()
    for _ in range(rounds):
        for meter, once in pair:
            with meter.running(times * batch.permits):
                for _ in range(times):
                    await once()
        pair.reverse()


class Batch:
    """So many permits at a time, of so many sites, both ways."""

    def __init__(self, node: SimulatedNode, permits: int, sites: int) -> None:
        self.permits = permits
        self._node = node
        self._sites = [f"site-{number}.example" for number in range(sites)]
        self._each = permits // sites
        self._last = 0

    async def take_and_give_back(self) -> None:
        node, each, limit = self._node, self._each, Limit(self._each)
        await node.say([node.statement(site, limit, more=each) for site in self._sites])
        assert all(node.accounts[site].held == each for site in self._sites)
        await node.say([node.statement(site, limit, give_back=each) for site in self._sites])

    async def add_and_remove(self) -> None:
        first = self._last + 1
        self._last += self._each  # always new ones, as a node's requests are
        members = [
            (f"yardstick:{site}", number, f"node:{number}")
            for site in self._sites
            for number in range(first, self._last + 1)
        ]
        call = self._node.connection.call
        await call([("ZADD", key, number, member) for key, number, member in members])
        await call([("ZREM", key, member) for key, _, member in members])
