"""What the add-on costs a crawl that no limit holds back, in processor time of its process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from lab.benchmarks.harness.crawls import AHEAD, crawl, with_add_on
from lab.benchmarks.harness.figures import alternating, median_ratio, ratios_text
from lab.benchmarks.harness.middlewares import OneCall, enabled
from lab.benchmarks.harness.report import Cell, Goal, Report
from lab.benchmarks.harness.site import site
from tests.support.servers import RedisServer

UNLIMITED = {"CONCURRENT_REQUESTS_PER_DOMAIN": 64}  # more than are ever wanted at once
PLAIN, ADD_ON, BY_HAND = "plain Scrapy", "with the add-on", "one Lua call a request, by hand"
TITLE = "overhead: processor time of a crawl that no limit holds back"
COLUMNS = ("crawl", "ms a request", "times plain Scrapy's", "in each round")


@dataclass(frozen=True, slots=True)
class Pattern:
    """What a crawl without limits is like."""

    name: str
    page_ms: float
    at_once: int
    ahead: int | None  # requests that `start` yields; None: all

    def cost(self, settings: dict[str, object], address: str, pages: int, warm_up: int) -> float:
        """Milliseconds of processor time a request."""
        settings = {"CONCURRENT_REQUESTS": self.at_once, **UNLIMITED, **settings}
        return 1000 * crawl(settings, [(address, pages)], warm_up, self.ahead or pages)


PATTERNS = (
    Pattern("all at once, pages of 0 ms", page_ms=0.0, at_once=32, ahead=None),
    Pattern("a few ahead, pages of 5 ms", page_ms=5.0, at_once=16, ahead=AHEAD),
)


def measure(quick: bool) -> Report:
    rounds, pages, warm_up = (1, 400, 100) if quick else (7, 2900, 500)
    rows: list[Sequence[Cell]] = []
    goals = []
    with RedisServer() as server, site() as of_site:
        by_hand = {"DOWNLOADER_MIDDLEWARES": enabled(OneCall), "BENCHMARK_REDIS_URL": server.url}
        crawls = {PLAIN: {}, ADD_ON: with_add_on(server.url), BY_HAND: by_hand}
        for pattern in PATTERNS:
            address = of_site.pages(pattern.page_ms)
            times: dict[str, list[float]] = {PLAIN: [], ADD_ON: [], BY_HAND: []}
            for name in alternating(rounds, list(crawls)):
                times[name].append(pattern.cost(crawls[name], address, pages, warm_up))
            for name, found in times.items():
                ratio, spread = median_ratio(found, times[PLAIN]), ratios_text(found, times[PLAIN])
                rows.append((f"{pattern.name}: {name}", median(found), ratio, spread))
                if name == ADD_ON:
                    goals.append(Goal(f"{pattern.name}: {ADD_ON} / {PLAIN}", ratio, at_most=1.05))
    how = "Alternating; the medians of their ratios."
    return Report(TITLE, COLUMNS, rows, goals, [how])
