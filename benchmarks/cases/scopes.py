"""What a second and a third scope cost a request: processor time of its node, and of the server."""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.harness.crawls import LATENCY_MS, UNLIMITED, crawl_in_turn, with_add_on
from benchmarks.harness.figures import median_ratio
from benchmarks.harness.report import Goal, Report
from tests.support.servers import RedisServer

ONE, TWO, THREE = "one scope", "two scopes", "three scopes"
SETTINGS: dict[str, dict[str, Any]] = {
    ONE: {},
    TWO: {"SEMAPHORE_SCOPES": ["host", "all"], "SEMAPHORE_LIMITS": {"all": UNLIMITED}},
    THREE: {
        "SEMAPHORE_SCOPES": ["host", "domain", "all"],
        "SEMAPHORE_LIMITS": {"domain:*": UNLIMITED, "all": UNLIMITED},
    },
}
TITLE = "scopes: what a second and a third scope cost a request"
COLUMNS = ("crawl", "ms a request", "times one scope's", "server, us a request")
HOW = f"In turn; medians, and medians of their ratios. The site answers in {LATENCY_MS:g} ms."


def measure(quick: bool) -> Report:
    with RedisServer() as server:
        crawls = {name: with_add_on(server.url, **own) for name, own in SETTINGS.items()}
        times, of_server = crawl_in_turn(server, crawls, quick)
    more = {name: median_ratio(times[name], times[ONE]) for name in times}
    rows = [
        (name, median(found), more[name], median(of_server[name])) for name, found in times.items()
    ]
    goal = Goal(f"{THREE} / {ONE}, processor time", more[THREE], at_most=1.2)
    return Report(TITLE, COLUMNS, rows, [goal], [HOW])
