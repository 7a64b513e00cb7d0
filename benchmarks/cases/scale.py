"""A billion pages a day on one server: what it takes, and how that grows with sites and nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.drawing import draw_scale
from benchmarks.harness.handover import percentile
from benchmarks.harness.large_crawl import PAGE_S, QUEUE, Holder, LargeCrawl, Result, put_under_load
from benchmarks.harness.meter import Meter
from benchmarks.harness.report import Cell, Goal, Report
from tests.support.servers import RedisServer

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
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
    "clients, cores",
)


@dataclass(frozen=True, slots=True)
class Size:
    """How much there is."""

    sites: Sequence[int]  # each with the nodes of the middle
    nodes: Sequence[int]  # each with all the sites
    middle: int  # nodes: each fetches what one process of Scrapy can
    rate: int  # permits a second
    seconds: float  # of each of the loads


FULL = Size((1_000, 10_000, 100_000, 1_000_000), (3, 10, 30, 100, 300), 100, 1_500, 8.0)
QUICK = Size((1_000, 10_000), (3, 10), 10, 500, 1.0)


@dataclass(frozen=True, slots=True)
class Point:
    """One load, and what was measured under it."""

    sites: int
    nodes: int
    result: Result

    @property
    def microseconds(self) -> float:
        return self.result.server.seconds * 1e6 / self.result.permits

    @property
    def share(self) -> float:
        """Of one core, that the server needs for a billion permits a day."""
        return self.microseconds * BILLION_A_DAY / 1e6

    @property
    def handoff_p99(self) -> float:
        return percentile(self.result.handoffs, 0.99)

    @property
    def row(self) -> list[Cell]:
        result = self.result
        seconds = result.end - result.begin
        return [
            self.sites,
            self.nodes,
            result.permits / seconds,
            result.over,
            self.microseconds,
            self.share,
            result.calls / result.permits,
            percentile(result.handoffs, 0.5) * 1e3,
            self.handoff_p99 * 1e3,
            result.client_seconds / seconds,
        ]


@dataclass(frozen=True, slots=True)
class AtRest:
    """What the sites in use cost while nothing happens there."""

    bytes_of_a_site: float
    renewal: float  # of a site, microseconds


def measure(quick: bool) -> Report:
    size = QUICK if quick else FULL
    server = RedisServer().start()
    try:
        points, at_rest = asyncio.run(_measure(server, size))
    finally:
        server.remove()
    if not quick:
        _draw(size, points)
    return _report(size, points, at_rest)


def _draw(size: Size, points: Sequence[Point]) -> None:
    by_sites = [point for point in points if point.nodes == size.middle]
    by_nodes = sorted(
        (point for point in points if point.sites == size.sites[-1]), key=lambda p: p.nodes
    )
    draw_scale(
        PICTURES / "scale.svg",
        {
            "sites in use": [(point.sites, point.share, point.handoff_p99) for point in by_sites],
            "nodes": [(point.nodes, point.share, point.handoff_p99) for point in by_nodes],
        },
        SHARE_GOAL,
    )


async def _measure(server: RedisServer, size: Size) -> tuple[list[Point], AtRest]:
    points = []
    async with Holder(server) as holder:
        before = _used_memory(server)
        for sites in size.sites:
            await holder.hold(sites)
            at_rest = _used_memory(server) - before
            points.append(await _point(server, size, sites, size.middle))
        points += [
            await _point(server, size, sites, nodes) for nodes in size.nodes if nodes != size.middle
        ]
        with server.client() as client:
            meter = Meter(client)
            with meter.running(1):
                renewed = await holder.renew()
    (renewal,) = meter.microseconds
    return points, AtRest(at_rest / sites, renewal / renewed)


async def _point(server: RedisServer, size: Size, sites: int, nodes: int) -> Point:
    at_full_sites = SHARE_AT_FULL_SITES * size.rate
    crawl = LargeCrawl(
        nodes,
        sites,
        rate=size.rate - at_full_sites,
        full_sites=int(at_full_sites * PAGE_S),
        seconds=size.seconds,
    )
    return Point(sites, nodes, await asyncio.to_thread(put_under_load, server, crawl))


def _used_memory(server: RedisServer) -> int:
    with server.client() as client:
        return int(client.info("memory")["used_memory"])


def _report(size: Size, points: Sequence[Point], at_rest: AtRest) -> Report:
    largest = next(p for p in points if (p.sites, p.nodes) == (size.sites[-1], size.middle))
    of_it = f"{largest.sites:,} sites, {largest.nodes} nodes"
    rate = largest.result.permits / size.seconds
    return Report(
        title="scale: a billion pages a day",
        columns=COLUMNS,
        rows=[point.row for point in points],
        goals=(
            Goal("permits over a limit, in all", sum(p.result.over for p in points), at_most=0),
            Goal(f"permits a second ({of_it})", rate, at_least=0.97 * size.rate),
            Goal(
                f"share of a core at {BILLION_A_DAY:,} permits a second ({of_it})",
                largest.share,
                at_most=SHARE_GOAL,
            ),
            Goal("bytes of a site in use", at_rest.bytes_of_a_site, at_most=MOST_BYTES_OF_A_SITE),
        ),
        notes=[
            f"A request comes to a site drawn by chance and takes {PAGE_S:g} s on average.",
            f"A tenth of the permits are of sites with a limit of 1 that {QUEUE} nodes want.",
            "The nodes are simulated, in two processes beside the server.",
            "They are batched as a session does it, and write down what they held, and when.",
            f"{size.seconds:g} s for each row.",
            f"To renew a site takes {at_rest.renewal:.3g} us of server time, with 100 in a call.",
        ],
    )
