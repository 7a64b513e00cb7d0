"""What the node with most of the work leaves to the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from lab.benchmarks.harness.contender import OURS, AskingAgain, Contender, Place
from lab.benchmarks.harness.contest import contest
from lab.benchmarks.harness.figures import mean
from lab.benchmarks.harness.load import Result
from lab.benchmarks.harness.report import Cell, Goal, Report
from tests.support.servers import RedisServer

WINDOW_S = 5.0
COLUMNS = (
    "clients of the nodes",
    "limit",
    "semaphore",
    "Jain's index",
    f"least in {WINDOW_S:g} s",
    "small nodes' share",
    "permits in use",
    "permits",
)


PAUSE_S = 0.2  # leaves the server time: by 312 clients it is asked 1,500 times a second
AGAIN = Contender.of("asking again", partial(AskingAgain, pause_s=PAUSE_S))


@dataclass(frozen=True, slots=True)
class Demand:
    """Who wants permits."""

    clients: tuple[int, ...]  # of each node, the large one first
    limit: int
    work_s: float  # with each permit


FIVE = Demand((300, 3, 3, 3, 3), limit=4, work_s=0.02)
TWO = Demand((50, 1), limit=2, work_s=0.005)


def jain(result: Result, nodes: int, begin: float, seconds: float) -> float:
    """Jain's index of the permits to each node in that time."""
    permits = [0] * nodes
    for visit in result.visits:
        permits[visit.node] += begin <= visit.begin < begin + seconds
    return sum(permits) ** 2 / (nodes * sum(own**2 for own in permits))


def measure(quick: bool) -> Report:
    seconds, window = (1.0, 0.5) if quick else (20.0, WINDOW_S)
    rows: dict[tuple[Contender, Demand], list[float]] = {}
    with RedisServer() as server:
        for demand, time_s in ((FIVE, seconds), (TWO, seconds / 2)):
            for contender in (OURS, AGAIN):
                name = f"{contender.name}: {demand.clients}"
                place = Place(str(server.path), name, demand.limit)
                result = contest(server, contender, place, demand.clients, demand.work_s, time_s)
                rows[contender, demand] = _figures(demand, result, window)
    five_jain, five_least, *_ = rows[OURS, FIVE]
    _, _, share_of_one, in_use, _ = rows[OURS, TWO]
    goals = [
        Goal("five nodes: Jain's index", five_jain, at_least=0.99),
        Goal(f"five nodes: the least in {window:g} s", five_least, at_least=0.95),
        Goal("one client beside 50: its share", share_of_one, at_least=0.45),
        Goal("one client beside 50: permits in use", in_use, at_least=0.9),
    ]
    how = (
        f"Each node is a process, for {seconds:g} s, or {seconds / 2:g} s where they are two. "
        f"Windows of {window:g} s begin each second. Asking again: the sorted set by timestamp of "
        f"Redis in Action, every {PAUSE_S * 1e3:.0f} ms, +-50 %."
    )
    cells: list[Sequence[Cell]] = [
        (", ".join(map(str, demand.clients)), demand.limit, contender.name, *figures)
        for (contender, demand), figures in rows.items()
    ]
    return Report("fair: one node with most of the work", COLUMNS, cells, goals, [how])


def _figures(demand: Demand, result: Result, window_s: float) -> list[float]:
    """As in COLUMNS, from Jain's index on."""
    load, counted, nodes = result.load, result.counted, len(demand.clients)
    seconds = load.end - load.begin
    begins = [load.begin + second for second in range(int(seconds - window_s + 1e-6) + 1)]
    return [
        jain(result, nodes, load.begin, seconds),
        min(jain(result, nodes, begin, window_s) for begin in begins),
        sum(visit.node > 0 for visit in counted) / len(counted),
        mean(result.visits, load.begin, load.end) / demand.limit,
        len(counted),
    ]
