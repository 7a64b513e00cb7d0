"""A site says "not now" to one node: how soon all others fall silent, and for how long."""

from __future__ import annotations

from statistics import median

from benchmarks.harness.crawls import crawl_together
from benchmarks.harness.report import Cell, Goal, Report

NODES, LIMIT = 4, 12
SERVICE = 50  # milliseconds that a page takes
PAUSE = 2  # seconds that the site asks for
EACH = 150  # pages of each node
LAST = 300  # the request that is too many: all nodes are at work by then


def measure(quick: bool) -> Report:
    rows: list[list[Cell]] = []
    for number in range(1 if quick else 5):
        manner = f"{SERVICE}!{LAST}-{PAUSE}"
        visits = crawl_together(NODES, manner, EACH, CONCURRENT_REQUESTS_PER_DOMAIN=LIMIT)
        refused = [visit for visit in visits if visit.status == 429]
        told = min(visit.end for visit in refused)
        starts = sorted(visit.begin for visit in visits if visit.begin > told)
        within = [begin for begin in starts if begin < told + PAUSE]
        after = [begin for begin in starts if begin >= told + PAUSE]
        silent = 1000 * (max(within) - told) if within else 0.0
        quiet = after[0] - told
        refusing = {visit.visitor for visit in refused}
        rows.append([number + 1, len(refused), len(refusing), len(within), silent, quiet])
    late = [float(row[4] or 0) for row in rows]
    quiets = [float(row[5] or 0) for row in rows]
    return Report(
        title=f"refusal: a 429 with Retry-After: {PAUSE}, as the site sees it",
        columns=[
            "round",
            "refused",
            "of nodes",
            "starts after the first 429",
            "the last of them, ms after it",
            "first start after the pause, s",
        ],
        rows=rows,
        goals=[
            Goal("last start after the first 429, ms", max(late), at_most=100),
            Goal("quiet time, s", min(quiets), at_least=PAUSE),
        ],
        notes=(
            f"{NODES} nodes, limit {LIMIT}, pages of {SERVICE} ms.",
            f"Median of the quiet times: {median(quiets):.3f} s.",
        ),
    )
