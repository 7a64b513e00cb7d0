"""A site says "not now" to one node: how soon all others fall silent, and for how long."""

from __future__ import annotations

from benchmarks.harness.crawls import crawl_together
from benchmarks.harness.report import Goal, Report

NODES, LIMIT = 4, 12
SERVICE = 50  # milliseconds that a page takes
PAUSE = 2  # seconds that the site asks for
EACH = 150  # pages of each node
LAST = 300  # the request that is too many: all nodes are at work by then
TITLE = f"refusal: a 429 with Retry-After: {PAUSE}, as the site sees it"
COLUMNS = (
    "round",
    "refused",
    "last start after the first 429, ms after it",
    "first start after the pause, s",
)
HOW = f"{NODES} nodes, limit {LIMIT}, pages of {SERVICE} ms."


def measure(quick: bool) -> Report:
    rows = []
    for number in range(1 if quick else 5):
        manner = f"{SERVICE}!{LAST}-{PAUSE}"
        visits = crawl_together(NODES, manner, EACH, CONCURRENT_REQUESTS_PER_DOMAIN=LIMIT)
        refused = [visit for visit in visits if visit.status == 429]
        told = min(visit.end for visit in refused)
        after = [visit.begin - told for visit in visits if visit.begin > told]
        last = max((seconds for seconds in after if seconds < PAUSE), default=0.0)
        quiet = min(seconds for seconds in after if seconds >= PAUSE)
        rows.append((number + 1, len(refused), 1000 * last, quiet))
    goals = [
        Goal("last start after the first 429, ms", max(row[2] for row in rows), at_most=100),
        Goal("quiet time, s", min(row[3] for row in rows), at_least=PAUSE),
    ]
    return Report(TITLE, COLUMNS, rows, goals, [HOW])
