"""How much of a full site's limit three nodes use, compared with a single Scrapy process."""

from __future__ import annotations

from contextlib import ExitStack
from statistics import median

from lab.benchmarks.harness.crawls import crawl, crawling, with_add_on
from lab.benchmarks.harness.figures import all_at_work, alternating, mean, median_ratio, most
from lab.benchmarks.harness.middlewares import LocalSemaphore, enabled
from lab.benchmarks.harness.report import Cell, Goal, Report
from lab.benchmarks.harness.site import Visit, site
from tests.support.servers import RedisServer

NODES, LIMIT = 3, 4
SERVICES = 20, 100, 500  # milliseconds
OURS, LOCAL = "three nodes", "one Scrapy process, asyncio.Semaphore"
COLUMNS = ("the site takes", OURS, LOCAL, "first / second", "most at once")


def measure(quick: bool) -> Report:
    rounds, seconds = (1, 2.0) if quick else (3, 3.0)
    rows: list[list[Cell]] = []
    goals: list[Goal] = []
    for service in SERVICES[:1] if quick else SERVICES:
        pages = max(2 * NODES * LIMIT, round(seconds * LIMIT * 1000 / service))
        shares: dict[str, list[float]] = {OURS: [], LOCAL: []}
        at_once = 0
        for name in alternating(rounds, [OURS, LOCAL]):
            visits = (_nodes if name == OURS else _one_process)(service, pages)
            shares[name].append(mean(visits, *all_at_work(visits)) / LIMIT)
            if name == OURS:
                at_once = max(at_once, most(visits))
        ratio = median_ratio(shares[OURS], shares[LOCAL])
        rows.append([f"{service} ms", *map(median, shares.values()), ratio, at_once])
        goals.append(Goal(f"ratio at {service} ms", ratio, at_least=0.99))
        goals.append(Goal(f"most at once at {service} ms", at_once, at_most=LIMIT))
    how = (
        f"{rounds} rounds of about {seconds:g} s, medians. The site itself counts, from when all "
        "nodes have begun to when the first asks for its last page."
    )
    title = f"use: share of a full site's {LIMIT} permits in use"
    return Report(title, COLUMNS, rows, goals, [how])


def _nodes(service: float, pages: int) -> list[Visit]:
    with RedisServer() as server, site() as of_site, ExitStack() as stack:
        settings = with_add_on(server.url, CONCURRENT_REQUESTS_PER_DOMAIN=LIMIT)
        waits = []
        for number in range(NODES):
            pages_of = of_site.pages(service, f"node-{number}"), pages // NODES
            waits.append(stack.enter_context(crawling(settings, [pages_of])))
        for wait in waits:
            wait()
        return of_site.visits()


def _one_process(service: float, pages: int) -> list[Visit]:
    settings = {"DOWNLOADER_MIDDLEWARES": enabled(LocalSemaphore), "BENCHMARK_LIMIT": LIMIT}
    with site() as of_site:
        crawl(settings, [(of_site.pages(service), pages)])
        return of_site.visits()
