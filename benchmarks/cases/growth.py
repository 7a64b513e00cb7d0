"""Whether a permit costs the same however much there is: waiters, scopes in use, nodes."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median

from benchmarks.harness.crowd import BATCH, Crowd, Size
from benchmarks.harness.handover import percentile
from benchmarks.harness.meter import Meter
from benchmarks.harness.report import Cell, Goal, Report

COLUMNS = ("", "small end", "waiters", "ratio", "scopes", "ratio", "nodes", "ratio")
MOST_TIMES = 1.2  # times the small end's
MOST_BYTES_OF_A_SITE = 400
MOST_BYTES_OF_WAITERS = 10_000

BATCHES = f"permit, {BATCH} a call, us"
SPREAD = f"permit, {BATCH} sites a call, us"
SINGLE = "permit, 1 a call, us"
P50 = "hand-off, p50, ms"
P99 = "hand-off, p99, ms"  # without a goal: it shows the machine's worst moments as well
GIVE_UP = "give up, 1 a call, us"
GIVE_UPS = "give up, 10 a call, us"
FIGURES = (BATCHES, SPREAD, SINGLE, P50, P99, GIVE_UP, GIVE_UPS)


@dataclass(frozen=True, slots=True)
class Times:
    """How many rounds there are, and how often each is done in a round."""

    rounds: int
    batches: int
    spread: int
    around: int
    give_ups: int


@dataclass(slots=True)
class Log:
    """What was measured on one server."""

    crowd: Crowd
    microseconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    handoffs: list[float] = field(default_factory=list)

    @contextmanager
    def metered(self, figure: str, permits: int) -> Iterator[None]:
        with self.crowd.server.client() as client:
            meter = Meter(client)
            with meter.running(permits):
                yield
        self.microseconds[figure] += meter.microseconds

    async def round(self, times: Times) -> None:
        crowd = self.crowd
        with self.metered(BATCHES, times.batches * BATCH):
            await crowd.batches(times.batches)
        with self.metered(SPREAD, times.spread * BATCH):
            await crowd.spread(times.spread)
        with self.metered(SINGLE, times.around):
            self.handoffs += await crowd.around(times.around)
        for figure, requests in ((GIVE_UP, 1), (GIVE_UPS, 10)):
            leavers = crowd.leavers(times.give_ups)
            await crowd.queue_up(leavers, requests)
            with self.metered(figure, times.give_ups * requests):
                await crowd.give_up(leavers, requests)

    def forget(self) -> None:
        self.microseconds.clear()
        self.handoffs.clear()

    def figures(self) -> dict[str, float]:
        found = {figure: median(values) for figure, values in self.microseconds.items()}
        found[P50] = percentile(self.handoffs, 0.5) * 1e3
        found[P99] = percentile(self.handoffs, 0.99) * 1e3
        return found


def measure(quick: bool) -> Report:
    if quick:
        ends = Size(), Size(waiters=1000, nodes=10), Size(scopes=2000), Size(nodes=20)
        return asyncio.run(_measure(ends, Times(2, 5, 5, 50, 10)))
    ends = Size(), Size(waiters=10_000, nodes=10), Size(scopes=100_000), Size(nodes=200)
    return asyncio.run(_measure(ends, Times(9, 200, 20, 200, 200)))


async def _measure(sizes: tuple[Size, Size, Size, Size], times: Times) -> Report:
    async with AsyncExitStack() as stack:
        crowds = [await stack.enter_async_context(Crowd(size)) for size in sizes]
        _, waiters, scopes, _ = crowds
        bytes_of = waiters.bytes_of_the_waiters(), scopes.bytes_of_a_site()
        logs = [Log(crowd) for crowd in crowds]
        for number in range(1 + times.rounds):
            for log in logs if number % 2 == 0 else reversed(logs):
                await log.round(times)
                if number == 0:  # scripts, caches and the allocator are new
                    log.forget()
        for crowd in crowds:
            await crowd.give_all_back()
        keys = [crowd.keys_left() for crowd in crowds]
    return _report(sizes, [log.figures() for log in logs], bytes_of, keys)


def _report(
    sizes: tuple[Size, Size, Size, Size],
    found: list[dict[str, float]],
    bytes_of: tuple[int, int],
    keys: list[int],
) -> Report:
    small, *large = found
    names = COLUMNS[2::2]
    rows: list[list[Cell]] = []
    goals = []
    for figure in FIGURES:
        row: list[Cell] = [figure, small[figure]]
        ratios = {}
        for name, end in zip(names, large, strict=True):
            ratios[name] = end[figure] / small[figure]
            row += [end[figure], ratios[name]]
        rows.append(row)
        if figure != P99:
            worst = max(ratios, key=lambda name: ratios[name])
            what = f"{figure}: worst ratio ({worst})"
            goals.append(Goal(what, ratios[worst], at_most=MOST_TIMES))
    first, more_waiters, more_scopes, more_nodes = sizes
    of_waiters, of_a_site = bytes_of
    rows.append(["bytes of a full site", None, of_waiters, *[None] * 5])
    rows.append(["bytes of a site in use", None, None, None, of_a_site, *[None] * 3])
    rows.append(["keys left", keys[0], *(cell for left in keys[1:] for cell in (left, None))])
    all_who_wait = f"{more_waiters.waiters:,} waiters of {more_waiters.nodes} nodes"
    goals += [
        Goal(f"bytes of a site with {all_who_wait}", of_waiters, at_most=MOST_BYTES_OF_WAITERS),
        Goal("bytes of a site in use", of_a_site, at_most=MOST_BYTES_OF_A_SITE),
        Goal("keys left when all is given back", sum(keys), at_most=0),
    ]
    sizes_of_ends = (
        f"The small end has {first.waiters} waiters, {first.scopes} sites in use by others and "
        f"{first.nodes} nodes; a large end {all_who_wait}, or {more_scopes.scopes:,} sites, or "
        f"{more_nodes.nodes} nodes (each with a waiter). Four servers, measured in turn; the nodes "
        "are simulated, with two connections each. Bytes: MEMORY USAGE of all keys of a site."
    )
    how = (
        "Sites are full: a permit given back goes to the first node in the queue, and its own asks "
        f"for another. With {BATCH} a call every node holds {BATCH} of the site. Hand-offs are of "
        "single permits, with both ends in this process. Who gives up is drawn by chance."
    )
    return Report("growth: the same from end to end", COLUMNS, rows, goals, [sizes_of_ends, how])
