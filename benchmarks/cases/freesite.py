"""What is left of a free site's speed when one node crawls it beside many full sites."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.harness.crawls import crawling, with_add_on
from benchmarks.harness.in_hand import mean
from benchmarks.harness.other_node import keeping_full
from benchmarks.harness.report import Cell, Goal, Report
from benchmarks.harness.site import Site, site
from tests.support.servers import RedisServer

ADD_ON, PLAIN = "add-on", "plain Scrapy"
FREE = "free.test"
ROOM = 16  # places in CONCURRENT_REQUESTS, without what full sites may have on the wire
QUICK_MS, SLOW_MS = 250, 5000  # when the free site has answered, and full ones do, milliseconds
# Were all its pages to take the same time, they would go in step, and how many of them are in step
# would say more about a run's speed than what is beside them.
SPREAD = f"150-{QUICK_MS}"
PLENTY = 1000  # requests that the free site allows at once
WAITING = 5  # requests of each full site in the scheduler: more than it answers in time


@dataclass(frozen=True, slots=True)
class Case:
    by: str
    full: int = 0  # sites
    by_another: bool = False  # full because another node has their permits, not this one

    def __str__(self) -> str:
        if not self.full:
            return f"{self.by}: alone"
        return f"{self.by}: beside {self.full}" + (" filled by another" if self.by_another else "")

    @property
    def hosts(self) -> list[str]:
        return [f"{number}.full.test" for number in range(self.full)]

    @property
    def room(self) -> int:
        return ROOM + (0 if self.by_another else self.full)

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "CONCURRENT_REQUESTS": self.room,
            "CONCURRENT_REQUESTS_PER_DOMAIN": 1,
            "DOWNLOAD_SLOTS": {FREE: {"concurrency": PLENTY}},
        }


@dataclass(frozen=True, slots=True)
class Speed:
    """Of the free site."""

    pages: float  # a second
    in_hand: float  # requests, on average


def measure(quick: bool) -> Report:
    rounds, seconds = (1, 1.0) if quick else (3, 4.0)
    sides = (20,) if quick else (20, 200)
    beside = [Case(ADD_ON, full, another) for full in sides for another in (False, True)]
    cases = [Case(ADD_ON), *beside, Case(PLAIN), *(Case(PLAIN, full) for full in sides)]
    found: dict[Case, list[Speed]] = {case: [] for case in cases}
    for _ in range(rounds):
        for case in cases:
            found[case].append(_run(case, seconds))
    rows: list[list[Cell]] = []
    goals: list[Goal] = []
    for case, speeds in found.items():
        pairs = zip(speeds, found[Case(case.by)], strict=True)
        ratio = median(speed.pages / alone.pages for speed, alone in pairs)
        pages, in_hand = (speed.pages for speed in speeds), (speed.in_hand for speed in speeds)
        rows.append([str(case), median(pages), median(in_hand), ratio])
        if case.by == ADD_ON and case.room == ROOM:  # no speed is to be had by passing that
            goals.append(Goal(f"{case}, in hand", max(s.in_hand for s in speeds), at_most=ROOM))
        if case in beside:
            goals.append(Goal(f"{case}, times alone", ratio, at_least=0.95))
    return Report(
        title="freesite: a free site's speed beside full ones",
        columns=["crawl", "pages a second", "requests in hand", "times alone"],
        rows=rows,
        goals=goals,
        notes=(
            f"{rounds} rounds of {seconds:g} s, medians, as the free site counts. One node.",
            f"The free site allows {PLENTY} at once and answers in {SPREAD} ms, spread evenly.",
            f"A full site allows 1, answers in {SLOW_MS} ms and has {WAITING} requests waiting.",
            f"CONCURRENT_REQUESTS: {ROOM}, and 1 more for each site that the node fills itself.",
        ),
    )


def _run(case: Case, seconds: float) -> Speed:
    with ExitStack() as stack:
        of_site = stack.enter_context(site())
        settings = case.settings
        if case.by == ADD_ON:
            server = RedisServer().start()
            stack.callback(server.remove)
            settings = with_add_on(server.url, **settings)
            if case.by_another:
                stack.enter_context(keeping_full(server.url, case.hosts))
        free = of_site.pages(SPREAD, host=FREE), 1_000_000
        full = [(of_site.pages(SLOW_MS, host=host), WAITING) for host in case.hosts]
        stack.enter_context(crawling(settings, [free, *full]))
        _wait_until_all_begun(case, of_site)
        begin = time.monotonic()
        time.sleep(seconds)
        end = time.monotonic()
        time.sleep(2 * QUICK_MS / 1000)  # and until what it had in hand then is over
        visits = [visit for visit in of_site.visits() if visit.host == FREE]
    # Pages come in bursts: those at an edge of the window count by the part that is in it.
    pages = sum(
        max(0.0, min(visit.end, end) - max(visit.begin, begin)) / (visit.end - visit.begin)
        for visit in visits
    )
    return Speed(pages / (end - begin), mean(visits, begin, end))


def _wait_until_all_begun(case: Case, of_site: Site) -> None:
    begun = 0
    expected = 1 + (0 if case.by_another else case.full)
    while begun < expected:
        time.sleep(0.2)
        begun = len({visit.host for visit in of_site.visits()})
    time.sleep(1)  # and until they have come into their swing
