"""From a release on one node to the grant on another."""

from __future__ import annotations

from benchmarks import rivals
from benchmarks.harness.bare import PUBLISH, TOKEN_LIST
from benchmarks.harness.contender import OURS
from benchmarks.harness.handover import hand_over, percentile
from benchmarks.harness.report import Cell, Goal, Report
from tests.support.servers import RedisServer

TITLE = "handoff: from a release on one node to the grant on another"
COLUMNS = (
    "handed over by",
    "p50, ms",
    "p99, ms",
    "p50 / PUBLISH's",
    "p99 / PUBLISH's",
    "hand-overs",
)
HOW = (
    "Two processes on one server hand one permit to and fro; the contenders play in turn. Counted "
    "from just before the release to when the task that waited goes on, if it had asked before: "
    "what the one who gave it has snatched back is not in it."
)


def measure(quick: bool) -> Report:
    rivals.check_installed()
    peers = rivals.contenders()
    server = RedisServer().start()
    try:
        contenders = [OURS, PUBLISH, TOKEN_LIST, *peers]
        rounds, turns = (1, 50) if quick else (5, 400)
        times = hand_over(str(server.path), contenders, rounds, turns)
    finally:
        server.remove()
    p50 = {name: percentile(values, 0.5) * 1e3 for name, values in times.items()}
    p99 = {name: percentile(values, 0.99) * 1e3 for name, values in times.items()}
    rows: list[tuple[Cell, ...]] = [
        (
            name,
            p50[name],
            p99[name],
            p50[name] / p50[PUBLISH.name],
            p99[name] / p99[PUBLISH.name],
            len(values),
        )
        for name, values in times.items()
    ]
    ours, bare = OURS.name, PUBLISH.name
    goals = [
        Goal("p50, times PUBLISH's", p50[ours] / p50[bare], at_most=2.0),
        Goal("p99, times PUBLISH's", p99[ours] / p99[bare], at_most=3.0),
        Goal("p50, ms, below the best peer's", p50[ours], at_most=min(p50[p.name] for p in peers)),
        Goal("p99, ms, below the best peer's", p99[ours], at_most=min(p99[p.name] for p in peers)),
    ]
    return Report(TITLE, COLUMNS, rows, goals, [HOW, f"Peers: {rivals.versions()}."])
