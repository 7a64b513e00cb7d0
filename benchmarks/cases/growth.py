"""Whether a permit costs the same however much there is: waiters, scopes in use, nodes."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Self

from benchmarks.harness.figures import in_turn
from benchmarks.harness.report import Cell, Goal, Report
from benchmarks.harness.server import metered
from benchmarks.harness.simulated_node import SimulatedNode
from semaphore_middleware.model.limits import Limit
from tests.support.nodes import KEYS
from tests.support.servers import RedisServer

BATCH = 100  # permits a call
FULL, AROUND, LEAVING = "full.example", "around.example", "leaving.example"
SITE_LIMIT = Limit(2)  # of a site in use: there is room for one more

SMALL, WAITERS, SCOPES, NODES = "small end", "waiters", "scopes", "nodes"
COLUMNS = ("", SMALL, WAITERS, SCOPES, NODES, "worst ratio")
MOST_TIMES = 1.2  # times the small end's
MOST_BYTES_OF_A_SITE = 400
MOST_BYTES_OF_WAITERS = 10_000

BATCHES = f"permit, {BATCH} a call, us"
SPREAD = f"permit, {BATCH} sites a call, us"
SINGLE = "permit, 1 a call, us"
GIVE_UP = "give up, 1 a call, us"
FULL_SITE, SITE = "bytes of a full site", "bytes of a site in use"
KEYS_LEFT = "keys left"


def measure(quick: bool) -> Report:
    waiters, scopes, nodes = (1000, 2000, 20) if quick else (10_000, 100_000, 200)
    sizes = {
        SMALL: Size(),
        WAITERS: Size(waiters=waiters, nodes=10),
        SCOPES: Size(scopes=scopes),
        NODES: Size(nodes=nodes),
    }
    return asyncio.run(_measure(sizes, quick))


async def _measure(sizes: Mapping[str, Size], quick: bool) -> Report:
    rows: dict[str, list[float]] = defaultdict(list)
    async with AsyncExitStack() as stack:
        crowds = [await stack.enter_async_context(Crowd(size)) for size in sizes.values()]
        rows[FULL_SITE] = [crowd.bytes_of_a_full_site() for crowd in crowds]
        rows[SITE] = [crowd.bytes_of_a_site() for crowd in crowds]
        for crowd in crowds:
            await _round(crowd, quick, defaultdict(list))  # scripts and caches are new
        found: dict[Crowd, dict[str, list[float]]] = {crowd: defaultdict(list) for crowd in crowds}
        for crowd in in_turn(2 if quick else 9, crowds):
            await _round(crowd, quick, found[crowd])
        for figures in found.values():
            for figure, values in figures.items():
                rows[figure].append(median(values))
        for crowd in crowds:
            await crowd.give_all_back()
        rows[KEYS_LEFT] = [crowd.keys_left() for crowd in crowds]
    return _report(sizes, rows)


def _report(sizes: Mapping[str, Size], found: Mapping[str, list[float]]) -> Report:
    rows: list[list[Cell]] = []
    goals = []
    for figure, values in found.items():
        worst = None
        if figure not in (FULL_SITE, SITE, KEYS_LEFT):
            worst = max(values) / values[0]
            goals.append(Goal(f"{figure}: worst ratio", worst, at_most=MOST_TIMES))
        rows.append([figure, *values, worst])
    of_waiters = dict(zip(sizes, found[FULL_SITE], strict=True))[WAITERS]
    small, waiters = sizes[SMALL], sizes[WAITERS]
    all_who_wait = f"{waiters.waiters:,} waiters of {waiters.nodes} nodes"
    goals += [
        Goal(f"bytes of a site with {all_who_wait}", of_waiters, at_most=MOST_BYTES_OF_WAITERS),
        Goal(SITE, max(found[SITE]), at_most=MOST_BYTES_OF_A_SITE),
        Goal("keys left when all is given back", sum(found[KEYS_LEFT]), at_most=0),
    ]
    how = (
        f"The small end has {small.waiters} waiters, {small.scopes} sites in use by others and "
        f"{small.nodes} nodes; a large end {all_who_wait}, or {sizes[SCOPES].scopes:,} sites, or "
        f"{sizes[NODES].nodes} nodes, which are simulated. Four servers, measured in turn."
    )
    return Report("growth: the same from end to end", COLUMNS, rows, goals, [how])


async def _round(crowd: Crowd, quick: bool, found: dict[str, list[float]]) -> None:
    """Add to `found` what each takes, in microseconds."""
    batches, spread, around, give_ups = (5, 5, 50, 10) if quick else (200, 20, 200, 200)
    with metered(found[BATCHES], batches * BATCH, crowd.server):
        await crowd.batches(batches)
    with metered(found[SPREAD], spread * BATCH, crowd.server):
        await crowd.spread(spread)
    with metered(found[SINGLE], around, crowd.server):
        await crowd.around(around)
    leavers = crowd.leavers(give_ups)
    await crowd.want(leavers, 1)
    with metered(found[GIVE_UP], give_ups, crowd.server):
        await crowd.want(leavers, -1)


# Simulated nodes: who holds, who waits, and what there is besides -------------------------------


@dataclass(frozen=True, slots=True)
class Size:
    """What there is on a server while it is measured."""

    waiters: int = 10  # for each site that is full; at least one a node
    scopes: int = BATCH  # in use by others, one permit each
    nodes: int = 2


class Crowd:
    """Nodes reduced to their statements, each with its two connections, in this one process."""

    def __init__(self, size: Size) -> None:
        self._size = size
        self._random = random.Random(1)
        self._limits = {FULL: Limit(BATCH * size.nodes), AROUND: Limit(1), LEAVING: Limit(1)}
        self._sites = [f"site-{number}.example" for number in range(size.scopes)]
        self._holders: asyncio.Queue[SimulatedNode] = asyncio.Queue()  # of the one that goes around
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self.server = stack.enter_context(RedisServer())
            names = [f"node-{number}" for number in range(self._size.nodes)]
            self._nodes = [SimulatedNode(self.server.url, name) for name in names]
            for node in self._nodes:
                await stack.enter_async_context(node)
                await node.listen(partial(self._on_grant, node))
            await self._settle_in()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def _on_grant(self, node: SimulatedNode, scope: str) -> None:
        if scope == AROUND:
            self._holders.put_nowait(node)

    async def _say(self, node: SimulatedNode, site: str, more: int = 0, give_back: int = 0) -> None:
        await node.say_of([site], self._limits[site], more, give_back)

    # What there is ------------------------------------------------------------------------------

    async def _settle_in(self) -> None:
        await self._nodes[-1].say_of(self._sites, SITE_LIMIT, more=1)
        for node in self._nodes:
            await self._say(node, FULL, more=BATCH)
        self._holder = self._nodes[0]
        await self._say(self._holder, AROUND, more=1)
        await self._say(self._holder, LEAVING, more=1)
        each, rest = divmod(max(self._size.waiters, self._size.nodes), len(self._nodes))
        for number, node in enumerate(self._nodes):
            for site in self._limits:
                await self._say(node, site, more=each + (number < rest))

    async def give_all_back(self) -> None:
        """First all who wait give up, or what is given back is granted to them."""
        await self._nodes[-1].say_of(self._sites, SITE_LIMIT, give_back=1)
        for site in self._limits:
            for node in self._nodes:
                await self._say(node, site, more=-node.book(site).waiting)
            for node in self._nodes:
                await self._say(node, site, give_back=node.held(site))

    # What is measured ---------------------------------------------------------------------------

    async def batches(self, times: int) -> None:
        """At a full site, a node gives a batch back and asks for one: it holds the fewest then."""
        node = self._nodes[0]
        for _ in range(times):
            await self._say(node, FULL, more=BATCH, give_back=BATCH)
            assert node.held(FULL) == BATCH

    async def spread(self, times: int) -> None:
        """Take and give back a permit at each of a batch of sites, from all that are in use."""
        for _ in range(times):
            sites = self._random.sample(self._sites, BATCH)
            await self._nodes[0].say_of(sites, SITE_LIMIT, more=1)
            await self._nodes[0].say_of(sites, SITE_LIMIT, give_back=1)

    async def around(self, times: int) -> None:
        """Hand one permit from node to node."""
        for _ in range(times):
            await self._say(self._holder, AROUND, more=1, give_back=1)
            if not self._holder.held(AROUND):  # else it was its own turn again
                self._holder = await self._holders.get()

    def leavers(self, times: int) -> list[SimulatedNode]:
        """Nodes, each drawn by chance: any place in the queue may be theirs."""
        return self._random.choices(self._nodes, k=times)

    async def want(self, nodes: list[SimulatedNode], more: int) -> None:
        """Each of the nodes wants so many more permits of the site that some leave, or fewer."""
        for node in nodes:
            await self._say(node, LEAVING, more)

    # What is left -------------------------------------------------------------------------------

    def bytes_of_a_site(self) -> int:
        """Memory for each of the sites in use, of which one permit is held."""
        return max(map(self._bytes_of, self._sites[:BATCH]))

    def bytes_of_a_full_site(self) -> int:
        """Memory for one with all that wait for it."""
        return self._bytes_of(LEAVING)

    def _bytes_of(self, site: str) -> int:
        with self.server.client() as client:
            usages = [client.memory_usage(key, samples=0) for key in KEYS.of(site)]
        return sum(usage or 0 for usage in usages)

    def keys_left(self) -> int:
        """Keys on the server, but for the epoch."""
        with self.server.client() as client:
            return sum(key != KEYS.epoch for key in client.scan_iter("{semaphore}:*", count=1000))
