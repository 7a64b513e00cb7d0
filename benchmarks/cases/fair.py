"""What the node with most of the work leaves to the others, and how long these wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.classics.timestamps import SetByTimestamp
from benchmarks.harness.contender import OURS, Contender, Place
from benchmarks.harness.contest import Result, contest, in_python
from benchmarks.harness.report import Cell, Goal, Report
from tests.support.servers import RedisServer

WINDOW_S = 5.0
COLUMNS = (
    "clients of the nodes",
    "limit",
    "semaphore",
    "Jain's index",
    f"least in {WINDOW_S:g} s",
    "small nodes' share",
    "places in use",
    "their longest wait, s",
    "median, s",
    "permits",
)


class Patient(SetByTimestamp):
    retry = 0.2  # seconds: with 312 of them, the server is asked 1,500 times a second all the same


AGAIN = Contender.of("asking again", Patient)


@dataclass(frozen=True, slots=True)
class Demand:
    """Who wants permits."""

    clients: Sequence[int]  # of each node, the large one first
    limit: int
    work_s: float  # with each permit


FIVE = Demand((300, 3, 3, 3, 3), limit=4, work_s=0.02)
TWO = Demand((50, 1), limit=2, work_s=0.005)


@dataclass(frozen=True, slots=True)
class Seen:
    """Who got them."""

    demand: Demand
    result: Result
    window_s: float

    @property
    def jain(self) -> float:
        return self._jain(self.result.begin, self.result.end)

    @property
    def least_jain(self) -> float:
        """Of the windows that begin a second after each other."""
        seconds = int(self.result.end - self.result.begin - self.window_s + 1e-6)
        begins = (self.result.begin + second for second in range(seconds + 1))
        return min(self._jain(begin, begin + self.window_s) for begin in begins)

    def _jain(self, begin: float, end: float) -> float:
        permits = [0] * len(self.demand.clients)
        for visit in self.result.counted:
            permits[visit.node] += begin <= visit.begin < end
        return sum(permits) ** 2 / (len(permits) * sum(own**2 for own in permits))

    @property
    def small_share(self) -> float:
        small = sum(visit.node > 0 for visit in self.result.counted)
        return small / len(self.result.counted)

    @property
    def in_use(self) -> float:
        return self.result.mean / self.demand.limit

    @property
    def waits(self) -> list[float]:
        """Of the small nodes' requests that waited in the counted time, be it at its end."""
        begin, end = self.result.begin, self.result.end
        small = (visit for visit in self.result.visits if visit.node > 0)
        return [v.begin - v.asked for v in small if v.begin >= begin and v.asked < end]


def measure(quick: bool) -> Report:
    seconds, window = (1.0, 0.5) if quick else (20.0, WINDOW_S)
    rows: list[tuple[Cell, ...]] = []
    goals: list[Goal] = []
    server = RedisServer().start()
    try:
        for demand, time_s in ((FIVE, seconds), (TWO, seconds / 2)):
            for contender in (OURS, AGAIN):
                name = f"{contender.name}: {demand.clients}"
                place = Place(str(server.path), name, demand.limit)
                join = in_python(contender)
                result = contest(server, join, place, demand.clients, demand.work_s, time_s)
                seen = Seen(demand, result, window)
                rows.append(_row(contender, seen))
                if contender is OURS:
                    goals += _goals(seen)
    finally:
        server.remove()
    how = (
        "Each node is a process; each client always waits or works, for "
        f"{1000 * FIVE.work_s:g} ms with each permit, or {1000 * TWO.work_s:g} ms where there are "
        f"two nodes. Counted for {seconds:g} s, and {seconds / 2:g} s of two nodes. Jain's index "
        "is that of the permits to each node: were all the same it would be 1, were all one's it "
        f"would be 1 / nodes. Windows of {window:g} s begin each second."
    )
    waits = (
        "The small nodes are all but the first: what they get together, and how long their "
        "requests wait. Asking again: the sorted set by timestamp of Redis in Action, every "
        f"{Patient.retry * 1e3:.0f} ms, +-50 %."
    )
    return Report("fair: one node with most of the work", COLUMNS, rows, goals, [how, waits])


def _row(contender: Contender, seen: Seen) -> tuple[Cell, ...]:
    return (
        ", ".join(map(str, seen.demand.clients)),
        seen.demand.limit,
        contender.name,
        seen.jain,
        seen.least_jain,
        seen.small_share,
        seen.in_use,
        max(seen.waits),
        median(seen.waits),
        len(seen.result.counted),
    )


def _goals(seen: Seen) -> list[Goal]:
    if seen.demand is FIVE:
        return [
            Goal("five nodes: Jain's index", seen.jain, at_least=0.99),
            Goal(f"five nodes: the least in {WINDOW_S:g} s", seen.least_jain, at_least=0.95),
        ]
    return [
        Goal("one client beside 50: its share", seen.small_share, at_least=0.45),
        Goal("one client beside 50: places in use", seen.in_use, at_least=0.9),
    ]
