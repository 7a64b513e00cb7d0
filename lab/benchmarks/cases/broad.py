"""A broad crawl: what a permit costs the server and a node where each page is of another site.

`python -m lab.benchmarks.cases.broad TOLD` is one of its nodes.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import Any

from redis.asyncio import Redis

from lab.benchmarks.harness.figures import alternating, median_ratio
from lab.benchmarks.harness.load import Timetable, put_under_load, take_part
from lab.benchmarks.harness.report import Cell, Goal, Report
from semaphore_middleware import FairSemaphore, Limit
from tests.support.servers import RedisServer

NODES, REQUESTS = 4, 100  # at once, of each node
SITES = 25_000  # of each node's own
PAGE_S = 0.06, 0.54
FULL_SITES, FULL_PAGE_S = 4, 0.03  # of all nodes together; as many pages as they allow
FULL_LIMIT = Limit(1)
WARM_UP_S = 1.0
COLUMNS = (
    "crawl",
    "permits",
    "server, us a permit",
    "times ZADD + ZREM",
    "node, us a permit",
    "times ZADD + ZREM by redis-py",
)


@dataclass(frozen=True, slots=True)
class Crawl:
    """How the sites are, and how much may be worse than with the yardstick."""

    limit: Limit
    full: float = 0.0  # share of the pages that are of full sites
    server_goal: float = 1.0
    node_goal: float | None = None


YARDSTICK = "ZADD + ZREM"  # by redis-py, which limits nothing
CRAWLS = {
    "without a delay": Crawl(Limit(8), node_goal=0.75),
    "a delay of 1 s": Crawl(Limit(8, delay=1.0), server_goal=1.5),
    "a tenth at full sites": Crawl(Limit(8), full=0.1, server_goal=1.5),
}


def measure(quick: bool) -> Report:
    rounds, seconds = (1, 2.0) if quick else (3, 8.0)
    found: dict[str, list[Sequence[float]]] = {name: [] for name in (YARDSTICK, *CRAWLS)}
    for name in alternating(rounds, list(found)):
        found[name].append(_run(name, seconds))
    _, bare_server, bare_node = zip(*found[YARDSTICK], strict=True)
    rows: list[list[Cell]] = []
    goals: list[Goal] = []
    for name, costs in found.items():
        permits, server, node = zip(*costs, strict=True)
        of_server, of_node = median_ratio(server, bare_server), median_ratio(node, bare_node)
        rows.append([name, sum(permits), median(server), of_server, median(node), of_node])
        if crawl := CRAWLS.get(name):
            goals.append(Goal(f"{name}: server", of_server, at_most=crawl.server_goal))
            if crawl.node_goal:
                goals.append(Goal(f"{name}: node", of_node, at_most=crawl.node_goal))
    how = (
        f"{rounds} rounds of {seconds:g} s, alternating, medians. {NODES} processes with "
        f"{REQUESTS} requests at once, each to one of {SITES:,} sites of its process, or to a "
        "full one."
    )
    return Report("broad: each page of another site", COLUMNS, rows, goals, [how])


def _run(name: str, seconds: float) -> Sequence[float]:
    """How many permits, and what one took of the server's time and of the nodes', in us."""
    with RedisServer() as server:
        told = [json.dumps([name, server.url, number]) for number in range(NODES)]
        commands = [(sys.executable, "-m", "lab.benchmarks.cases.broad", one) for one in told]
        load = put_under_load(server, commands, WARM_UP_S, seconds)
    permits = sum(load.seen)
    return permits, load.server.seconds * 1e6 / permits, load.client_seconds * 1e6 / permits


# In a process -----------------------------------------------------------------------------------

Fetch = Callable[[str, Random], Awaitable[None]]
"""A page of a site, with a permit."""


async def crawl_with(name: str, url: str, number: int) -> None:
    random = Random(number)
    counted = 0

    async def fetch_on(fetch: Fetch, times: Timetable) -> None:
        nonlocal counted
        await asyncio.sleep(random.uniform(*PAGE_S))  # they do not all begin at once
        while time.monotonic() < times.end:
            await fetch(f"{number}-{random.randrange(SITES)}.test", random)
            counted += times.begin <= time.monotonic() < times.end

    async with _bare(url) if name == YARDSTICK else _ours(url, CRAWLS[name]) as fetch:

        async def work(times: Timetable) -> Any:
            await asyncio.gather(*(fetch_on(fetch, times) for _ in range(REQUESTS)))
            return counted

        await take_part(work)


@asynccontextmanager
async def _bare(url: str) -> AsyncIterator[Fetch]:
    async with Redis.from_url(url, max_connections=REQUESTS) as redis:

        async def fetch(site: str, random: Random) -> None:
            name = str(random.random())
            await redis.zadd(site, {name: time.time()})
            await asyncio.sleep(random.uniform(*PAGE_S))
            await redis.zrem(site, name)

        yield fetch


@asynccontextmanager
async def _ours(url: str, crawl: Crawl) -> AsyncIterator[Fetch]:
    async with FairSemaphore(url) as semaphore:

        async def fetch(site: str, random: Random) -> None:
            limit, page_s = crawl.limit, random.uniform(*PAGE_S)
            if random.random() < crawl.full:
                site = f"{random.randrange(FULL_SITES)}.full.test"
                limit, page_s = FULL_LIMIT, FULL_PAGE_S
            async with semaphore.permit(site, limit):
                await asyncio.sleep(page_s)

        yield fetch


if __name__ == "__main__":
    asyncio.run(crawl_with(*json.loads(sys.argv[1])))
