"""What a site takes of the server's memory: one in use, and a full one with those that wait."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from lab.benchmarks.harness.report import Goal, Report
from lab.benchmarks.harness.simulated_node import SimulatedNode
from semaphore_middleware.model.limits import Limit
from tests.support.nodes import KEYS
from tests.support.servers import RedisServer

NODES = 10
SITES = [f"site-{number}.example" for number in range(100)]  # in use, one permit each
FULL = "full.example"
MOST_BYTES_OF_A_SITE = 400
MOST_BYTES_OF_WAITERS = 10_000
COLUMNS = ("", "bytes")


def measure(quick: bool) -> Report:
    waiters = 1000 if quick else 10_000
    with RedisServer() as server:
        asyncio.run(_fill(server, waiters))
        of_a_site = max(_bytes_of(server, site) for site in SITES)
        of_waiters = _bytes_of(server, FULL)
    full = f"a full site with {waiters:,} waiting requests of {NODES} nodes"
    rows = [("a site in use", of_a_site), (full, of_waiters)]
    goals = [
        Goal("bytes of a site in use", of_a_site, at_most=MOST_BYTES_OF_A_SITE),
        Goal(f"bytes of {full}", of_waiters, at_most=MOST_BYTES_OF_WAITERS),
    ]
    return Report("memory: the server's, for a site", COLUMNS, rows, goals, ["By MEMORY USAGE."])


async def _fill(server: RedisServer, waiters: int) -> None:
    async with AsyncExitStack() as stack:
        for number in range(NODES):
            node = SimulatedNode(server.url, f"node-{number}")
            await stack.enter_async_context(node)
            await node.say_of([FULL], Limit(1), more=waiters // NODES)
        await node.say_of(SITES, Limit(2), more=1)


def _bytes_of(server: RedisServer, site: str) -> int:
    with server.client() as client:
        return sum(client.memory_usage(key, samples=0) or 0 for key in KEYS.of(site))
