"""An adaptive limit against a fixed one, at a site that can do less than either allows."""

from __future__ import annotations

from statistics import fmean, median
from typing import Any

from benchmarks.harness.crawls import crawl_together
from benchmarks.harness.in_hand import mean
from benchmarks.harness.report import Cell, Goal, Report
from benchmarks.harness.site import REFUSING

NODES = 3
CAPACITY = 10
SERVICE = 100  # milliseconds that a page takes, up to the capacity
LIMIT = 2 * CAPACITY


def measure(quick: bool) -> Report:
    seconds = 2.0 if quick else 8.0
    adaptive = {"concurrency": LIMIT, "adaptive": True}
    crawls: dict[str, dict[str, Any]] = {
        f"fixed, {LIMIT}, heedless": {**_limited(LIMIT), "SEMAPHORE_BACKOFF_CODES": []},
        f"fixed, {LIMIT}": _limited(LIMIT),
        f"adaptive, up to {LIMIT}": _limited(adaptive),
        f"fixed, {CAPACITY}: as if one knew": _limited(CAPACITY),
    }
    if quick:
        del crawls[f"fixed, {LIMIT}"]  # it spends its time in pauses
    rows: list[list[Cell]] = []
    goals: list[Goal] = []
    for name, settings in crawls.items():
        pages = round(seconds * CAPACITY * 1000 / SERVICE / NODES)
        visits = crawl_together(NODES, f"{SERVICE}@{CAPACITY}", pages, **settings)
        by_begin = sorted(visits, key=lambda visit: visit.begin)
        settled = by_begin[len(visits) // 4 : len(visits) * 9 // 10]
        in_hand = mean(visits, settled[0].begin, settled[-1].begin)
        answered = [visit for visit in settled if visit.status == 200]
        latencies = [1000 * (visit.end - visit.begin) for visit in answered]
        errors = len(settled) - len(answered)
        rate = len(answered) / (settled[-1].begin - settled[0].begin)
        rows.append([name, in_hand, median(latencies), fmean(latencies), errors, rate])
        if name.startswith("adaptive"):
            goals.append(
                Goal(
                    "in hand, times the capacity",
                    in_hand / CAPACITY,
                    at_least=0.8,
                    at_most=1.2,
                )
            )
    return Report(
        title=f"adaptive: a site whose latency doubles above {CAPACITY} at once",
        columns=[
            "limit",
            "in hand, mean",
            "latency, ms: median",
            "mean",
            "errors",
            "pages a second",
        ],
        rows=rows,
        goals=goals,
        notes=(
            f"{NODES} nodes; a page takes {SERVICE} ms, twice that above the capacity.",
            f"Above {REFUSING:g} times the capacity the site answers 503; heedless: a crawl that",
            "takes no answer for 'not now'.",
            "Counted from a quarter of the requests to nine tenths; the site itself counts.",
        ),
    )


def _limited(limit: Any) -> dict[str, Any]:
    return {"SEMAPHORE_LIMITS": {"site.test": limit}}
