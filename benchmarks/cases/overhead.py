"""What the add-on costs a crawl that no limit holds back, in processor time of its process."""

from __future__ import annotations

from statistics import median

from benchmarks.harness.crawls import LATENCY_MS, crawl_in_turn, with_add_on
from benchmarks.harness.figures import median_ratio
from benchmarks.harness.middlewares import OneCall, enabled
from benchmarks.harness.report import Goal, Report
from tests.support.servers import RedisServer

PLAIN, ADD_ON, BY_HAND = "plain Scrapy", "with the add-on", "one Lua call a request, by hand"
TITLE = "overhead: processor time of a crawl that no limit holds back"
COLUMNS = ("crawl", "ms a request", "times plain Scrapy's")
HOW = f"In turn; the medians of their ratios. The site answers in {LATENCY_MS:g} ms."


def measure(quick: bool) -> Report:
    with RedisServer() as server:
        by_hand = {"DOWNLOADER_MIDDLEWARES": enabled(OneCall), "BENCHMARK_REDIS_URL": server.url}
        crawls = {PLAIN: {}, ADD_ON: with_add_on(server.url), BY_HAND: by_hand}
        times, _ = crawl_in_turn(server, crawls, quick)
    ratios = {name: median_ratio(found, times[PLAIN]) for name, found in times.items()}
    rows = [(name, median(found), ratios[name]) for name, found in times.items()]
    goal = Goal(f"{ADD_ON} / {PLAIN}", ratios[ADD_ON], at_most=1.02)
    return Report(TITLE, COLUMNS, rows, [goal], [HOW])
