"""Whether a permit costs the same however much there is: waiters, scopes in use, nodes."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median

from benchmarks.cases.server import processor_seconds
from benchmarks.harness.crowd import BATCH, Crowd, Size
from benchmarks.harness.handover import percentile
from benchmarks.harness.report import Cell, Goal, Report

COLUMNS = ("", "small end", "waiters", "ratio", "scopes", "ratio", "nodes", "ratio")
MOST_TIMES = 1.5  # times the small end's

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
    """How often each is done in a round."""

    rounds: int
    batches: int
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
            before = processor_seconds(client)
            yield
            used = processor_seconds(client) - before
        self.microseconds[figure].append(used * 1e6 / permits)

    async def round(self, times: Times) -> None:
        crowd = self.crowd
        with self.metered(BATCHES, times.batches * BATCH):
            await crowd.batches(times.batches)
        with self.metered(SPREAD, times.batches * BATCH):
            await crowd.spread(times.batches)
        with self.metered(SINGLE, times.around):
            self.handoffs += await crowd.around(times.around)
        await crowd.queue_up(2 * times.give_ups)
        with self.metered(GIVE_UP, times.give_ups):
            await crowd.give_up(times.give_ups, at_once=1)
        with self.metered(GIVE_UPS, times.give_ups):
            await crowd.give_up(times.give_ups, at_once=10)

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
        ends = Size(), Size(waiters=1000), Size(scopes=2000), Size(nodes=20)
        return asyncio.run(_measure(ends, Times(2, 5, 50, 10)))
    ends = Size(), Size(waiters=10_000), Size(scopes=100_000), Size(nodes=200)
    return asyncio.run(_measure(ends, Times(7, 20, 200, 30)))


async def _measure(sizes: tuple[Size, Size, Size, Size], times: Times) -> Report:
    async with AsyncExitStack() as stack:
        crowds = [await stack.enter_async_context(Crowd(size)) for size in sizes]
        logs = [Log(crowd) for crowd in crowds]
        for number in range(1 + times.rounds):
            for log in logs if number % 2 == 0 else reversed(logs):
                await log.round(times)
                if number == 0:  # scripts, caches and the allocator are new
                    log.forget()
        for crowd in crowds:
            await crowd.give_all_back()
        keys = [crowd.keys() for crowd in crowds]
    return _report(sizes, [log.figures() for log in logs], crowds, keys)


def _report(
    sizes: tuple[Size, Size, Size, Size],
    found: list[dict[str, float]],
    crowds: list[Crowd],
    keys: list[tuple[int, int]],
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
    _, waiters, scopes, _ = crowds
    rows.append(["bytes a scope in use", None, None, None, scopes.bytes_a_scope, None, None, None])
    rows.append(["bytes a waiter", None, waiters.bytes_a_waiter, *[None] * 5])
    for number, kind in enumerate(("scope", "epoch")):
        small_end, *ends = (pair[number] for pair in keys)
        rows.append(
            [f"{kind} keys left", small_end, *(cell for end in ends for cell in (end, None))]
        )
    goals.append(
        Goal("scope keys left when all is given back", sum(pair[0] for pair in keys), at_most=0)
    )
    first, more_waiters, more_scopes, more_nodes = sizes
    sizes_of_ends = (
        f"The small end has {first.waiters} waiters, {first.scopes} sites in use by others and "
        f"{first.nodes} nodes; a large end {more_waiters.waiters:,} waiters, or "
        f"{more_scopes.scopes:,} sites, or {more_nodes.nodes} nodes (each with a waiter). Four "
        "servers, measured in turn; the nodes are simulated, with two connections each."
    )
    how = (
        "Sites are full: a permit given back goes to the head of the line, and its node asks for "
        f"another. With {BATCH} a call every node holds {BATCH} of the site. Hand-offs are of "
        "single permits, with both ends in this process. Epoch keys, at most 256, are kept for 3 h "
        "on purpose."
    )
    return Report("scale: the same from end to end", COLUMNS, rows, goals, [sizes_of_ends, how])
