"""The semaphores on PyPI and this one: every row, our losses too."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from benchmarks import rivals
from benchmarks.harness.contender import OURS, Contender, Place
from benchmarks.harness.death import LEASES, LIVING, WORK, dead_holders, long_holder
from benchmarks.harness.handover import hand_over, percentile
from benchmarks.harness.race import HOLD, MARGIN, Race
from benchmarks.harness.report import Cell, Goal, Report
from tests.support.servers import RedisServer

LIMIT = 4
LEASE = 2.0  # seconds: the peers take whole ones
TICK = 1  # decimals of a second: those who come and go see no finer
MORE_IS_BETTER = "race: permits a second"
# Has no goal: a node's turn lets its own next request pass another node's (docs/guarantees.md).
OUT_OF_ORDER = "race: out of order"
NEVER = "never"


@dataclass(slots=True)
class Results:
    """Rows by what they measure; a figure for each contender."""

    rows: dict[str, list[Cell]] = field(default_factory=dict)

    def add(self, what: str, cell: Cell) -> None:
        self.rows.setdefault(what, []).append(cell)

    def goals(self) -> list[Goal]:
        """Ours against the best of the others that has the figure at all."""
        goals = []
        for what, (ours, *others) in self.rows.items():
            figures = [cell for cell in others if isinstance(cell, int | float)]
            if isinstance(ours, int | float) and figures and what != OUT_OF_ORDER:
                bound = max(figures) if what == MORE_IS_BETTER else min(figures)
                if what == MORE_IS_BETTER:
                    goals.append(Goal(what, ours, at_least=bound))
                else:
                    goals.append(Goal(what, ours, at_most=bound))
        return goals


def measure(quick: bool) -> Report:
    rivals.check_installed()
    contenders = [OURS, *rivals.contenders()]
    server = RedisServer().start()
    race, rounds, turns = (Race(8, 0.3), 1, 50) if quick else (Race(32, 3.0), 5, 400)
    lease = 1.0 if quick else LEASE
    results = Results()
    try:
        asyncio.run(_race(server, contenders, race, results))
        times = hand_over(str(server.path), contenders, rounds, turns)
        for name in times:
            results.add("hand-off: p50, ms", percentile(times[name], 0.5) * 1e3)
            results.add("hand-off: p99, ms", percentile(times[name], 0.99) * 1e3)
        asyncio.run(_death(server, contenders, lease, results))
    finally:
        server.remove()
    rows = [(what, *cells) for what, cells in results.rows.items()]
    columns = ("", *(contender.name for contender in contenders))
    how = (
        f"Race: {race.clients} clients in one process, each with its own connections (ours: a "
        f"node); limit {LIMIT}, {HOLD * 1e3:.0f} ms inside, and none when permits a second and "
        f"round trips are counted. Out of order: by {MARGIN * 1e3:.0f} ms or more, both ways. "
        "Hand-off: as in the benchmark of that name."
    )
    death = (
        f"Death: a process takes a permit and is killed; its lease is {lease:g} s. Then {LIVING} "
        "others come and go on another permit, or a single one waits for it. Never: not within "
        f"{LEASES:g} leases. Work: somebody holds the only permit for {WORK:g} leases, and in the "
        "midst of that a newcomer asks."
    )
    peers = f"{rivals.versions()}; the tokens of two of them have no names, so none can be stolen."
    notes = [how, death, peers]
    return Report("peers: the semaphores on PyPI", columns, rows, results.goals(), notes)


async def _race(
    server: RedisServer, contenders: Sequence[Contender], race: Race, results: Results
) -> None:
    with server.client() as client:
        for contender in contenders:
            place = Place(str(server.path), f"race-{contender.name}", LIMIT)
            judge = await race.judged(contender, place)
            results.add("race: limit passed", judge.passed)
            results.add("race: permits stolen", judge.stolen)
            results.add(OUT_OF_ORDER, judge.out_of_order)
            place = replace(place, scope=f"speed-{contender.name}")
            round_trips, permits = await race.timed(contender, place, client)
            results.add("race: round trips a permit", round_trips)
            results.add(MORE_IS_BETTER, permits)


async def _death(
    server: RedisServer, contenders: Sequence[Contender], lease: float, results: Results
) -> None:
    def places(test: str, limit: int) -> list[tuple[Contender, Place]]:
        """A scope of its own for each test: what one leaves behind is not the next one's."""
        path = str(server.path)
        return [(c, Place(path, f"{test}-{c.name}", limit, lease)) for c in contenders]

    for death in await dead_holders(places("busy", limit=2)):
        results.add("death: permit back at a busy site, s", _tick(death.back_after))
    for death in await dead_holders(places("quiet", limit=1), others=1):
        results.add("death: permit back at a quiet site, s", _tick(death.back_after))
    for judge in await asyncio.gather(*(long_holder(*pair) for pair in places("work", limit=1))):
        results.add("work: limit passed", judge.passed)
        results.add("work: permits stolen", judge.stolen)


def _tick(seconds: float | None) -> Cell:
    return NEVER if seconds is None else round(seconds, TICK)
