"""How fast one node crawls a free site while it also crawls many full ones."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any

from lab.benchmarks.harness.crawls import crawling, with_add_on
from lab.benchmarks.harness.figures import alternating, mean, median_ratio
from lab.benchmarks.harness.report import Cell, Goal, Report
from lab.benchmarks.harness.site import site
from tests.support.servers import RedisServer

ADD_ON, PLAIN = "add-on", "plain Scrapy"
FREE = "free.test"
SLOTS = 16  # slots of CONCURRENT_REQUESTS, without what full sites may have on the wire
QUICK_MS, SLOW_MS = 250, 5000  # when the free site has answered, and full ones do, milliseconds
# If all its pages took the same time, they would go in step, and how many of them are in step
# would say more about a run's speed than what is beside them.
SPREAD = f"150-{QUICK_MS}"
PLENTY = 1000  # requests that the free site allows at once
WAITING = 5  # requests of each full site in the scheduler: more than it answers in time
COLUMNS = ("crawl", "pages a second", "open requests", "times alone")


@dataclass(frozen=True, slots=True)
class Case:
    """Who crawls, and beside what."""

    by: str
    full: int = 0  # sites

    def __str__(self) -> str:
        return f"{self.by}: beside {self.full}" if self.full else f"{self.by}: alone"


def measure(quick: bool) -> Report:
    rounds, seconds = (1, 1.0) if quick else (3, 4.0)
    sides = (20,) if quick else (20, 200)
    cases = [Case(by, full) for by in (ADD_ON, PLAIN) for full in (0, *sides)]
    found: dict[Case, list[tuple[float, float]]] = {case: [] for case in cases}
    for case in alternating(rounds, cases):
        found[case].append(_run(case, seconds))
    rows: list[list[Cell]] = []
    goals: list[Goal] = []
    for case, speeds in found.items():
        pages, open_requests = zip(*speeds, strict=True)
        ratio = median_ratio(pages, [alone for alone, _ in found[Case(case.by)]])
        rows.append([str(case), median(pages), median(open_requests), ratio])
        if case == Case(ADD_ON):  # no speed is to be had by passing that
            goals.append(Goal(f"{case}, open requests", max(open_requests), at_most=SLOTS))
        elif case.by == ADD_ON:
            goals.append(Goal(f"{case}, times alone", ratio, at_least=0.95))
    how = (
        f"{rounds} rounds of {seconds:g} s, medians, as the free site counts. It answers in "
        f"{SPREAD} ms, a full one in {SLOW_MS}. CONCURRENT_REQUESTS: {SLOTS}, and 1 more for each "
        "full site."
    )
    title = "freesite: a free site's speed beside full ones"
    return Report(title, COLUMNS, rows, goals, [how])


def _run(case: Case, seconds: float) -> tuple[float, float]:
    """Of the free site: pages a second, and open requests on average."""
    hosts = [f"{number}.full.test" for number in range(case.full)]
    with site() as of_site, ExitStack() as stack:
        settings: dict[str, Any] = {
            "CONCURRENT_REQUESTS": SLOTS + case.full,
            "CONCURRENT_REQUESTS_PER_DOMAIN": 1,
            "DOWNLOAD_SLOTS": {FREE: {"concurrency": PLENTY}},
        }
        if case.by == ADD_ON:
            server = stack.enter_context(RedisServer())
            settings = with_add_on(server.url, **settings)
        free = of_site.pages(SPREAD, host=FREE), 1_000_000
        full = [(of_site.pages(SLOW_MS, host=host), WAITING) for host in hosts]
        stack.enter_context(crawling(settings, [free, *full]))
        of_site.wait_until_busy(1 + case.full)
        begin = time.monotonic()
        time.sleep(seconds)
        end = time.monotonic()
        time.sleep(2 * QUICK_MS / 1000)  # and until the requests that were open then are over
        visits = [visit for visit in of_site.visits() if visit.host == FREE]
    # Pages come in bursts: those at an edge of the window count by the part that is in it.
    pages = sum(
        max(0.0, min(visit.end, end) - max(visit.begin, begin)) / (visit.end - visit.begin)
        for visit in visits
    )
    return pages / (end - begin), mean(visits, begin, end)
