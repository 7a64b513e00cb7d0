"""A billion pages a day on one server: what it takes, and how that grows with sites and nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lab.benchmarks.harness import large_crawl
from lab.benchmarks.harness.drawing import PICTURES, draw_scale
from lab.benchmarks.harness.figures import percentile
from lab.benchmarks.harness.report import Goal, Report
from lab.benchmarks.harness.server import metered
from lab.benchmarks.harness.simulated_node import SimulatedNode
from semaphore_middleware.core.outbox import ACCOUNTS_AT_ONCE
from semaphore_middleware.redis.protocol import batches
from tests.support.servers import RedisServer

BILLION_A_DAY = 11_600  # permits a second
SHARE_GOAL = 0.5  # of a core of the server's
MOST_BYTES_OF_A_SITE = 400
SHARE_AT_FULL_SITES = 0.1  # of the permits, about
COLUMNS = (
    "sites in use",
    "nodes",
    "permits a second",
    "over a limit",
    "server time a permit, us",
    f"of a core at {BILLION_A_DAY:,}/s",
    "calls a permit",
    "hand-off p50, ms",
    "hand-off p99, ms",
)


@dataclass(frozen=True, slots=True)
class Size:
    """How much there is."""

    sites: Sequence[int]  # each with the nodes of the middle
    nodes: Sequence[int]  # each with all the sites
    middle: int  # nodes: each fetches what one process of Scrapy can
    rate: int  # permits a second
    seconds: float  # of each of the loads


class Row(NamedTuple):
    """As in COLUMNS."""

    sites: int
    nodes: int
    rate: float
    over: int
    microseconds: float
    share: float
    calls: float
    p50_ms: float
    p99_ms: float


FULL = Size((1_000, 10_000, 100_000, 1_000_000), (3, 10, 30, 300), 100, 1_500, 8.0)
QUICK = Size((1_000, 10_000), (3,), 10, 500, 1.0)


def measure(quick: bool) -> Report:
    size = QUICK if quick else FULL
    with RedisServer() as server:
        results, bytes_of_a_site, renewal_us = asyncio.run(_measure(server, size))
    rows, sites = [_row(result) for result in results], size.sites[-1]
    if not quick:
        by_sites = [(row.sites, row.share, row.p99_ms) for row in rows if row.nodes == size.middle]
        by_nodes = [(row.nodes, row.share, row.p99_ms) for row in rows if row.sites == sites]
        growth = {"sites in use": by_sites, "nodes": sorted(by_nodes)}
        draw_scale(PICTURES / "scale.svg", growth, SHARE_GOAL)
    largest = next(row for row in rows if (row.sites, row.nodes) == (sites, size.middle))
    of_it = f"{sites:,} sites, {size.middle} nodes"
    at_that_rate = f"share of a core at {BILLION_A_DAY:,} permits a second ({of_it})"
    goals = (
        Goal("permits over a limit, in all", sum(row.over for row in rows), at_most=0),
        Goal(f"permits a second ({of_it})", largest.rate, at_least=0.97 * size.rate),
        Goal(at_that_rate, largest.share, at_most=SHARE_GOAL),
        Goal("bytes of a site in use", bytes_of_a_site, at_most=MOST_BYTES_OF_A_SITE),
    )
    how = (
        f"{size.seconds:g} s for each row. A tenth of the permits are of sites with a limit of 1 "
        f"that {large_crawl.QUEUE} nodes want. To renew a site takes {renewal_us:.3g} us of the "
        "server's time."
    )
    return Report("scale: a billion pages a day", COLUMNS, rows, goals, [how])


async def _measure(
    server: RedisServer, size: Size
) -> tuple[list[large_crawl.LargeResult], float, float]:
    """What was seen of each load; bytes of a site in use, and microseconds to renew one."""
    results = []
    renewal: list[float] = []
    held = 0
    async with SimulatedNode(server.url, "holder") as holder:
        before = _used_memory(server)
        for sites in size.sites:
            await _hold(holder, range(held, sites))
            held = sites
            used = _used_memory(server) - before
            results.append(await _load(server, size, sites, size.middle))
        results += [await _load(server, size, held, nodes) for nodes in size.nodes]
        with metered(renewal, len(holder.books), server):
            await holder.say_of(holder.books, large_crawl.SITE_LIMIT)
    return results, used / held, renewal[0]


async def _hold(holder: SimulatedNode, sites: range) -> None:
    """A permit of each from now on. It remembers the last of them only."""
    for some in batches(sites, ACCOUNTS_AT_ONCE):
        holder.books.clear()
        await holder.say_of(map(large_crawl.name_of, some), large_crawl.SITE_LIMIT, more=1)


async def _load(server: RedisServer, size: Size, sites: int, nodes: int) -> large_crawl.LargeResult:
    at_full_sites = SHARE_AT_FULL_SITES * size.rate
    rate, full_sites = size.rate - at_full_sites, int(at_full_sites * large_crawl.PAGE_S)
    crawl = large_crawl.LargeCrawl(nodes, sites, rate, full_sites)
    return await asyncio.to_thread(large_crawl.run, server, crawl, size.seconds)


def _used_memory(server: RedisServer) -> int:
    with server.client() as client:
        return int(client.info("memory")["used_memory"])


def _row(
    result: large_crawl.LargeResult,
) -> Row:
    permits, load, handoffs = len(result.counted), result.load, result.handoffs
    microseconds = load.server.seconds * 1e6 / permits
    return Row(
        result.crawl.sites,
        result.crawl.nodes,
        permits / (load.end - load.begin),
        result.over,
        microseconds,
        microseconds * BILLION_A_DAY / 1e6,
        load.server.calls / permits,
        1000 * percentile(handoffs, 0.5),
        1000 * percentile(handoffs, 0.99),
    )
