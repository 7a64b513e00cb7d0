"""A delay between starts: how near to it the starts are, with one node and with ten."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from benchmarks.harness.crawls import crawl_together
from benchmarks.harness.figures import all_at_work
from benchmarks.harness.report import Cell, Goal, Report

DELAY = 0.1  # seconds
NODES = 1, 10
SERVICE = 50  # milliseconds that a page takes
TITLE = f"delay: starts {1000 * DELAY:g} ms apart, as the site sees them"
COLUMNS = ("nodes", "starts", "least gap, ms", "median", "longest", "share of the rate allowed")
HOW = "Counted from when all nodes have begun to when the first asks for its last page."


def measure(quick: bool) -> Report:
    rows: list[list[Cell]] = []
    goals: list[Goal] = []
    for nodes in NODES[:1] if quick else NODES:
        starts = _starts(nodes, 1.0 if quick else 15.0)
        gaps = [1000 * (later - earlier) for earlier, later in pairwise(starts)]
        rate = (len(starts) - 1) / (starts[-1] - starts[0]) * DELAY
        rows.append([nodes, len(starts), min(gaps), median(gaps), max(gaps), rate])
        goals.append(Goal(f"share of the rate, {nodes} nodes", rate, at_least=0.98))
    return Report(TITLE, COLUMNS, rows, goals, [HOW])


def _starts(nodes: int, seconds: float) -> Sequence[float]:
    """When the site saw requests begin, while all nodes were at work."""
    pages = max(6, round(seconds / DELAY / nodes))
    spaced = {"DOWNLOAD_DELAY": DELAY, "DOWNLOAD_DELAY_JITTER": 0}
    visits = crawl_together(nodes, SERVICE, pages, **spaced)
    since, until = all_at_work(visits)
    return sorted(visit.begin for visit in visits if since <= visit.begin <= until)
