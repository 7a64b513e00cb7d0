"""A site that meters starts: how many requests it refuses, and how long a crawl of it takes."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.benchmarks.harness.crawls import RECORD, start_spider, with_add_on
from lab.benchmarks.harness.drawing import PICTURES, draw_pages
from lab.benchmarks.harness.report import Cell, Goal, Report
from lab.benchmarks.harness.site import Visit, site
from tests.support.servers import RedisServer

HOST = "site.test"
FIRST = 30  # answers that do not count: the interval is being learned
PLAIN, ADD_ON, NEXT, BY_HAND = "Scrapy alone", "with the add-on", "its next crawl", "told by hand"
COLUMNS = ("site and crawl", "pages", "refused of the first 30", "of the rest, %", "seconds")
TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Metered:
    """A site that allows so many starts a second, and so many at once."""

    rate: float
    burst: int
    milliseconds: int  # until a page is there
    limit: int  # how many may be open at once
    closes: bool = False  # connections, instead of refusing

    def __str__(self) -> str:
        how = ", closing connections" if self.closes else ""
        return f"{self.rate:g}/s, burst {self.burst}, pages of {self.milliseconds / 1000:g} s{how}"

    @property
    def manner(self) -> str:
        return f"{self.milliseconds}@{self.rate:g}+{self.burst}{'!' * self.closes}"


@dataclass(frozen=True, slots=True)
class RefusesPages:
    """A site that always refuses some of its pages."""

    percent: int
    milliseconds: int
    limit: int

    def __str__(self) -> str:
        return f"{self.percent} % of the pages always refused"

    @property
    def manner(self) -> str:
        return f"{self.milliseconds}@{self.percent}%"


SITES = (Metered(5, 5, 100, 8), Metered(3.5, 10, 2500, 16))
OTHERS = Metered(5, 5, 100, 8, closes=True), RefusesPages(30, 50, 4)


@dataclass(frozen=True, slots=True)
class Crawled:
    """What a site has answered: seconds since the first request, and whether well, in order."""

    answers: list[tuple[float, bool]]

    @property
    def pages(self) -> list[float]:
        return [at for at, is_good in self.answers if is_good]

    def refused(self, first: int, last: int | None = None) -> int:
        return sum(not is_good for _, is_good in self.answers[first:last])

    @property
    def share(self) -> float:
        """Refused of the answers that are judged, in percent."""
        return 100 * self.refused(FIRST) / max(1, len(self.answers) - FIRST)

    @property
    def seconds(self) -> float:
        return self.pages[-1]


def measure(quick: bool) -> Report:
    pages = 40 if quick else 150
    rows: list[list[Cell]] = []
    goals: list[Goal] = []
    for metered in SITES[:1] if quick else SITES:
        for nodes in (1,) if quick else (1, 4):
            name = f"{metered}, {nodes} node{'s' if nodes > 1 else ''}"
            crawled = _crawls(metered, nodes, pages)
            for kind, one in crawled.items():
                numbers = len(one.pages), one.refused(0, FIRST), one.share, one.seconds
                rows.append([f"{name}: {kind}", *numbers])
            goals += _goals(name, crawled)
            if not quick and (metered, nodes) == (SITES[0], 1):
                drawn = {kind: crawled[kind].pages for kind in (PLAIN, ADD_ON, BY_HAND)}
                draw_pages(PICTURES / "pace.svg", drawn, pages)
    for site_of in () if quick else OTHERS:
        with RedisServer() as server:
            plain = {"CONCURRENT_REQUESTS_PER_DOMAIN": site_of.limit}
            # As often as Scrapy alone: pages that are always refused take no longer.
            ours = with_add_on(
                server.url,
                SEMAPHORE_LIMITS={HOST: {"concurrency": site_of.limit}},
                SEMAPHORE_BACKOFF_TIMES=2,
            )
            for kind, settings in ((PLAIN, plain), (ADD_ON, ours)):
                one = _crawl(site_of, 1, pages, settings)
                numbers = len(one.pages), one.refused(0, FIRST), one.share, one.seconds
                rows.append([f"{site_of}: {kind}", *numbers])
    how = f"{pages} pages. Told by hand: the site's rate in SEMAPHORE_LIMITS, with a burst of 1."
    return Report("pace: sites that meter starts", COLUMNS, rows, goals, [how])


def _goals(name: str, crawled: Mapping[str, Crawled]) -> list[Goal]:
    learned = crawled[ADD_ON]
    ratio = learned.seconds / crawled[BY_HAND].seconds
    return [
        Goal(f"{name}: refused after the first {FIRST}, %", learned.share, at_most=3),
        Goal(f"{name}: seconds, / told by hand", ratio, at_most=1.05),
        Goal(f"{name}: refused of the next crawl", crawled[NEXT].refused(0), at_most=2),
    ]


def _crawls(metered: Metered, nodes: int, pages: int) -> dict[str, Crawled]:
    limit: dict[str, Any] = {"concurrency": metered.limit}
    by_hand = {**limit, "rate": f"{metered.rate:g}/s"}
    with RedisServer() as one, RedisServer() as other:
        plain = {"CONCURRENT_REQUESTS_PER_DOMAIN": metered.limit}
        learned = with_add_on(one.url, SEMAPHORE_LIMITS={HOST: limit})
        told = with_add_on(other.url, SEMAPHORE_LIMITS={HOST: by_hand})
        settings = {PLAIN: plain, ADD_ON: learned, NEXT: learned, BY_HAND: told}
        return {kind: _crawl(metered, nodes, pages, each) for kind, each in settings.items()}


def _crawl(
    metered: Metered | RefusesPages, nodes: int, pages: int, settings: dict[str, Any]
) -> Crawled:
    with site() as of_site, tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        log = stack.enter_context(tempfile.TemporaryFile())
        settings = {**settings, RECORD: str(Path(directory) / "record")}
        processes = [
            start_spider(
                "linked",
                settings,
                log,
                address=of_site.pages(metered.manner, f"node-{number}", HOST) + "{page}",
                pages=pages // nodes,
                all_start=True,
            )
            for number in range(nodes)
        ]
        for process in processes:
            stack.callback(process.kill)
            if process.wait(TIMEOUT_S):
                log.seek(0)
                raise RuntimeError(f"a crawl failed: {log.read().decode(errors='replace')}")
        visits: list[Visit] = sorted(of_site.visits(), key=lambda visit: visit.begin)
    begin = visits[0].begin
    return Crawled([(visit.begin - begin, visit.status == 200) for visit in visits])
