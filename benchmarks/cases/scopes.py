"""What a second and a third scope cost a request: processor time of its node, and of the server."""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.harness.crawls import crawl, with_add_on
from benchmarks.harness.meter import Meter
from benchmarks.harness.report import Goal, Report
from benchmarks.harness.site import site
from tests.support.servers import RedisServer

LATENCY = 5.0  # of the site, milliseconds
LIMIT = 64  # permits of each scope: four times as many as are ever wanted at once
DELAY = {"concurrency": LIMIT, "rate": "100000/s", "burst": LIMIT}  # holds nothing back, but counts
ONE, TWO, THREE = "one scope", "two scopes", "three scopes"
PACED = "two scopes, each start counts in both"
CRAWLS: dict[str, dict[str, Any]] = {
    ONE: {},
    TWO: {"SEMAPHORE_SCOPES": ["host", "all"], "SEMAPHORE_LIMITS": {"all": LIMIT}},
    THREE: {
        "SEMAPHORE_SCOPES": ["host", "domain", "all"],
        "SEMAPHORE_LIMITS": {"domain:*": LIMIT, "all": LIMIT},
    },
    PACED: {
        "SEMAPHORE_SCOPES": ["host", "all"],
        "SEMAPHORE_LIMITS": {"127.0.0.1": DELAY, "all": DELAY},
    },
}


def measure(quick: bool) -> Report:
    rounds, pages, warm_up = (1, 300, 100) if quick else (7, 2000, 500)
    times: dict[str, list[float]] = {name: [] for name in CRAWLS}
    names = list(CRAWLS)
    server = RedisServer().start()
    try:
        with site() as pages_of, server.client() as client:
            meters = {name: Meter(client) for name in CRAWLS}
            for _ in range(rounds):
                for name in names:
                    own = {"CONCURRENT_REQUESTS_PER_DOMAIN": LIMIT, **CRAWLS[name]}
                    count = warm_up + pages
                    with meters[name].running(count):
                        outcome = crawl(
                            with_add_on(server.url, **own),
                            [(pages_of.pages(LATENCY), count)],
                            warm_up,
                        )
                    assert outcome.pages == count
                    times[name].append(outcome.time_per_page)
                names.append(names.pop(0))  # none is always the first
    finally:
        server.remove()
    more = {name: _ratio(times[name], times[ONE]) for name in CRAWLS}
    return Report(
        title="scopes: what a second and a third scope cost a request",
        columns=["crawl", "ms a request", "times one scope's", "server, us a request", "calls"],
        rows=[
            (
                name,
                1000 * median(times[name]),
                more[name],
                median(meters[name].microseconds),
                median(meters[name].commands),
            )
            for name in CRAWLS
        ],
        goals=[Goal(f"{THREE} / {ONE}, processor time", more[THREE], at_most=1.2)],
        notes=(
            f"{rounds} rounds, each crawl once in each; medians, and medians of their ratios.",
            f"{pages} pages a crawl, after {warm_up} to warm up; no limit holds one back.",
            f"The site answers in {LATENCY:g} ms.",
            "Calls: commands that were sent, and run by scripts, a request.",
        ),
    )


def _ratio(times: list[float], yardstick: list[float]) -> float:
    """Of each round, and so of crawls that ran within seconds of each other."""
    return median(ours / theirs for ours, theirs in zip(times, yardstick, strict=True))
