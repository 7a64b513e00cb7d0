"""A broad crawl: what a permit costs the server and a node where each page is of another site."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from multiprocessing import get_context
from random import Random
from statistics import median

from redis.asyncio import Redis

from benchmarks.harness.meter import Reading
from benchmarks.harness.report import Cell, Goal, Report
from semaphore_middleware import FairSemaphore, Limit
from tests.support.servers import RedisServer

NODES, REQUESTS = 4, 100  # at once, of each node
SITES = 25_000  # of each node's own
PAGE_S = 0.06, 0.54
FULL_SITES, FULL_PAGE_S = 4, 0.03  # of all nodes together; as many pages as they allow
FULL_LIMIT = Limit(1)
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

    name: str
    limit: Limit | None  # None: the yardstick, which limits nothing
    full: float = 0.0  # share of the pages that are of full sites
    server_goal: float = 1.0
    node_goal: float | None = None


YARDSTICK = Crawl("ZADD + ZREM", None)
CRAWLS = (
    Crawl("without a delay", Limit(8), node_goal=0.75),
    Crawl("a delay of 1 s", Limit(8, delay=1.0), server_goal=1.5),
    Crawl("a tenth at full sites", Limit(8), full=0.1, server_goal=1.5),
)


@dataclass(frozen=True, slots=True)
class Cost:
    permits: int
    server_us: float
    node_us: float


def measure(quick: bool) -> Report:
    rounds, seconds = (1, 0.5) if quick else (3, 8.0)
    found: dict[Crawl, list[Cost]] = {crawl: [] for crawl in (YARDSTICK, *CRAWLS)}
    for _ in range(rounds):
        for crawl, costs in found.items():
            costs.append(_run(crawl, seconds))
    rows: list[list[Cell]] = []
    goals: list[Goal] = []
    for crawl, costs in found.items():
        pairs = list(zip(costs, found[YARDSTICK], strict=True))
        server = median(cost.server_us / bare.server_us for cost, bare in pairs)
        node = median(cost.node_us / bare.node_us for cost, bare in pairs)
        of_server, of_node = (cost.server_us for cost in costs), (cost.node_us for cost in costs)
        permits = sum(cost.permits for cost in costs)
        rows.append([crawl.name, permits, median(of_server), server, median(of_node), node])
        if crawl is not YARDSTICK:
            goals.append(Goal(f"{crawl.name}: server", server, at_most=crawl.server_goal))
        if crawl.node_goal:
            goals.append(Goal(f"{crawl.name}: node", node, at_most=crawl.node_goal))
    how = (
        f"{rounds} rounds of {seconds:g} s, in turn, medians. {NODES} processes with {REQUESTS} "
        f"requests at once, each to one of {SITES:,} sites of its process; a page takes "
        f"{PAGE_S[0]:g} to {PAGE_S[1]:g} s. The yardstick: in "
        "each the same by redis-py, from a pool."
    )
    return Report("broad: each page of another site", COLUMNS, rows, goals, [how])


def _run(crawl: Crawl, seconds: float) -> Cost:
    server = RedisServer().start()
    context = get_context("fork")
    told = context.SimpleQueue()

    def node(number: int) -> None:
        told.put(asyncio.run(_node(server.url, crawl, number, seconds)))

    try:
        with server.client() as client:
            nodes = [context.Process(target=node, args=(number,)) for number in range(NODES)]
            before = Reading.now(client)
            for process in nodes:
                process.start()
            of_nodes = [told.get() for _ in nodes]
            for process in nodes:
                process.join()
            used = (Reading.now(client) - before).seconds
    finally:
        server.remove()
    permits = sum(count for count, _ in of_nodes)
    of_all_nodes = sum(spent for _, spent in of_nodes)
    return Cost(permits, used * 1e6 / permits, of_all_nodes * 1e6 / permits)


async def _node(url: str, crawl: Crawl, number: int, seconds: float) -> tuple[int, float]:
    """How many permits it took, and its processor time in seconds."""
    begin, spent, count = time.monotonic(), time.process_time(), 0
    random = Random(number)

    async def fetch_on(fetch: Callable[[str], Awaitable[object]]) -> None:
        nonlocal count
        await asyncio.sleep(random.uniform(*PAGE_S))  # they do not all begin at once
        while time.monotonic() < begin + seconds:
            await fetch(f"{number}-{random.randrange(SITES)}.test")
            count += 1

    if crawl.limit is None:
        async with Redis.from_url(url, max_connections=REQUESTS) as redis:

            async def bare(site: str) -> None:
                name = random.random()
                await redis.zadd(site, {str(name): time.time()})
                await asyncio.sleep(random.uniform(*PAGE_S))
                await redis.zrem(site, str(name))

            await asyncio.gather(*(fetch_on(bare) for _ in range(REQUESTS)))
    else:
        limit = crawl.limit
        async with FairSemaphore(url) as semaphore:

            async def ours(site: str) -> None:
                is_full = random.random() < crawl.full
                site = f"{random.randrange(FULL_SITES)}.full.test" if is_full else site
                async with semaphore.permit(site, FULL_LIMIT if is_full else limit):
                    page = FULL_PAGE_S if is_full else random.uniform(*PAGE_S)
                    await asyncio.sleep(page)

            await asyncio.gather(*(fetch_on(ours) for _ in range(REQUESTS)))
    return count, time.process_time() - spent
