"""An adaptive limit against a fixed one, at a site that can do less than either allows."""

from __future__ import annotations

from typing import Any

from benchmarks.harness.crawls import crawl_together
from benchmarks.harness.figures import mean
from benchmarks.harness.report import Cell, Goal, Report
from benchmarks.harness.site import REFUSING

NODES = 3
CAPACITY = 10
SERVICE = 100  # milliseconds that a page takes, up to the capacity
LIMIT = 2 * CAPACITY
FIXED, ADAPTIVE = f"fixed, {LIMIT}", f"adaptive, up to {LIMIT}"
LIMITS: dict[str, Any] = {
    FIXED: LIMIT,
    ADAPTIVE: {"concurrency": LIMIT, "adaptive": True},
    f"fixed, {CAPACITY}: as if one knew": CAPACITY,
}
COLUMNS = ("limit", "in hand, mean", "errors", "pages a second")


def measure(quick: bool) -> Report:
    pages = round((2.0 if quick else 8.0) * CAPACITY * 1000 / SERVICE / NODES)
    rows: list[list[Cell]] = []
    goals: list[Goal] = []
    for name, limit in LIMITS.items():
        if quick and name == FIXED:
            continue  # it spends its time in pauses
        limits = {"site.test": limit}
        visits = crawl_together(NODES, f"{SERVICE}@{CAPACITY}", pages, SEMAPHORE_LIMITS=limits)
        by_begin = sorted(visits, key=lambda visit: visit.begin)
        settled = by_begin[len(visits) // 4 : len(visits) * 9 // 10]
        begin, end = settled[0].begin, settled[-1].begin
        in_hand = mean(visits, begin, end)
        answered = sum(visit.status == 200 for visit in settled)
        rows.append([name, in_hand, len(settled) - answered, answered / (end - begin)])
        if name == ADAPTIVE:
            times = in_hand / CAPACITY
            goals.append(Goal("in hand, times the capacity", times, at_least=0.8, at_most=1.2))
    how = (
        f"{NODES} nodes; a page takes {SERVICE} ms, and above {REFUSING:g} times the capacity the "
        "site answers 503. It counts itself, from a quarter of the requests to nine tenths."
    )
    title = f"adaptive: a site whose latency doubles above {CAPACITY} at once"
    return Report(title, COLUMNS, rows, goals, [how])
