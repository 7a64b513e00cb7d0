"""What the add-on costs a crawl that no limit holds back, in processor time of its process."""

from __future__ import annotations

from statistics import median

from lab.benchmarks.harness.crawls import crawl, with_add_on
from lab.benchmarks.harness.figures import in_turn, median_ratio
from lab.benchmarks.harness.middlewares import OneCall, enabled
from lab.benchmarks.harness.report import Goal, Report
from lab.benchmarks.harness.site import site
from tests.support.servers import RedisServer

LATENCY_MS = 5.0  # of the site
UNLIMITED = 64  # permits: four times as many as are ever wanted at once
PLAIN, ADD_ON, BY_HAND = "plain Scrapy", "with the add-on", "one Lua call a request, by hand"
TITLE = "overhead: processor time of a crawl that no limit holds back"
COLUMNS = ("crawl", "ms a request", "times plain Scrapy's")
HOW = f"In turn; the medians of their ratios. The site answers in {LATENCY_MS:g} ms."


def measure(quick: bool) -> Report:
    rounds, pages, warm_up = (1, 300, 100) if quick else (7, 2000, 500)
    times: dict[str, list[float]] = {PLAIN: [], ADD_ON: [], BY_HAND: []}
    with RedisServer() as server, site() as of_site:
        sites = [(of_site.pages(LATENCY_MS), warm_up + pages)]
        by_hand = {"DOWNLOADER_MIDDLEWARES": enabled(OneCall), "BENCHMARK_REDIS_URL": server.url}
        crawls = {PLAIN: {}, ADD_ON: with_add_on(server.url), BY_HAND: by_hand}
        for name in in_turn(rounds, list(crawls)):
            settings = {"CONCURRENT_REQUESTS_PER_DOMAIN": UNLIMITED, **crawls[name]}
            times[name].append(1000 * crawl(settings, sites, warm_up))
    ratios = {name: median_ratio(found, times[PLAIN]) for name, found in times.items()}
    rows = [(name, median(found), ratios[name]) for name, found in times.items()]
    goal = Goal(f"{ADD_ON} / {PLAIN}", ratios[ADD_ON], at_most=1.02)
    return Report(TITLE, COLUMNS, rows, [goal], [HOW])
