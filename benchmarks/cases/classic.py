"""The semaphores of the literature and this one, under what goes wrong."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from benchmarks.classics import COUNTING, LOCK
from benchmarks.classics.asking import Asking
from benchmarks.harness.contender import OURS, WITHOUT_TURNS, Contender, Place
from benchmarks.harness.death import WORK, dead_holders, long_holder
from benchmarks.harness.race import APART, HOLD, LONG_WORK, MARGIN, Judge, Race
from benchmarks.harness.report import Cell, Goal, Report
from tests.support.servers import RedisServer

LIMIT = 4
LEASE = 10.0  # seconds, as in the book
SHORT_LEASE = 1.6  # seconds, where it matters when a lease ends
COLUMNS = (
    "semaphore",
    "under",
    "passed",
    "stolen",
    "disorder",
    "trips",
    "per s",
    "back, s",
)
OURS_AS_LOCK = replace(OURS, name="ours of 1")
ALL_OURS = OURS, WITHOUT_TURNS, OURS_AS_LOCK


@dataclass(slots=True)
class Trial:
    contender: Contender
    limit: int
    rows: list[tuple[Cell, ...]] = field(default_factory=list)
    judges: list[Judge] = field(default_factory=list)

    def place(self, lease: float, suffix: str, server: RedisServer) -> Place:
        return Place(str(server.path), f"{self.contender.name}: {suffix}", self.limit, lease)

    def note(self, under: str, judge: Judge, *rest: Cell) -> None:
        self.judges.append(judge)
        cells = (*rest, *[None] * (3 - len(rest)))
        found = judge.passed, judge.stolen, judge.out_of_order
        self.rows.append((self.contender.name, under, *found, *cells))


def measure(quick: bool) -> Report:
    server = RedisServer().start()
    try:
        race, lease = (Race(8, 0.1), 1.3) if quick else (Race(32, 2.0), SHORT_LEASE)
        trials = asyncio.run(_measure(server, race, lease))
    finally:
        server.remove()
    ours = [judge for trial in trials if trial.contender in ALL_OURS for judge in trial.judges]
    without_turns = [j for t in trials if t.contender is WITHOUT_TURNS for j in t.judges]
    goals = [
        Goal("ours: limit passed", sum(judge.passed for judge in ours), at_most=0),
        Goal("ours: permits stolen", sum(judge.stolen or 0 for judge in ours), at_most=0),
        Goal(
            "ours, turn 0: grants out of order",
            sum(judge.out_of_order for judge in without_turns),
            at_most=0,
        ),
    ]
    what = (
        "timestamps: a sorted set by time of asking. counter: owners by a counter, called fair. "
        "locked: that under a lock. refreshed: that with refresh. in Lua: in one step. lock of 1: "
        f"SET NX PX with a token. Who is refused asks again after {Asking.retry * 1e3:.0f} ms, "
        "+-50 %."
    )
    who = (
        f"{race.clients} clients in one process, each with its own connection (ours: a node); "
        f"limit {LIMIT}, or 1; {HOLD * 1e3:.0f} ms inside. Trips a permit, and permits a "
        "second, are counted with no time spent inside."
    )
    trouble = (
        f"Clocks: half of them are {APART:g} s ahead, and one client stays inside for "
        f"{LONG_WORK:g} leases of {lease:g} s. Death: a process takes a permit and is killed; "
        "three others come and go; back is when its permit was granted to one of them. Work: one "
        f"works for {WORK:g} leases, and in the midst of that another asks."
    )
    columns = (
        "Passed: times one went in above the limit. Stolen: permits that the semaphore no longer "
        "counted as theirs when their living holders left. Disorder: grants that came "
        f"{MARGIN * 1e3:.0f} ms or more before one which had been asked for as much earlier. A "
        "node's turn lets its own next request pass another node's; with turn 0 nothing does."
    )
    rows = [row for trial in trials for row in trial.rows]
    return Report(
        "classic: the semaphores of the literature",
        COLUMNS,
        rows,
        goals,
        [what, who, trouble, columns],
    )


async def _measure(server: RedisServer, race: Race, lease: float) -> list[Trial]:
    trials = [
        *(Trial(contender, LIMIT) for contender in COUNTING),
        Trial(LOCK, 1),
        Trial(OURS, LIMIT),
        Trial(WITHOUT_TURNS, LIMIT),
        Trial(OURS_AS_LOCK, 1),
    ]
    with server.client() as client:
        for trial in trials:
            judge = await race.judged(trial.contender, trial.place(LEASE, "race", server))
            place = trial.place(LEASE, "speed", server)
            trial.note("race", judge, *await race.timed(trial.contender, place, client))
            place = trial.place(lease, "clocks", server)
            trial.note("clocks", await race.judged(trial.contender, place, apart=True))
    # These mostly wait, so all at once. One permit is the dead one's, one is for the living.
    dead = [_at(trial.place(lease, "dead", server), min(2, trial.limit)) for trial in trials]
    long = [_at(trial.place(lease, "long", server), 1) for trial in trials]
    contenders = [trial.contender for trial in trials]
    deaths = await dead_holders(list(zip(contenders, dead, strict=True)))
    works = await asyncio.gather(*map(long_holder, contenders, long))
    for trial, death, work in zip(trials, deaths, works, strict=True):
        trial.note("death", death.judge, None, None, death.back_after or "never")
        trial.note("work", work)
    return trials


def _at(place: Place, limit: int) -> Place:
    return replace(place, limit=limit)
