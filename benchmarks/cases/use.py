"""How much of what a full site allows three nodes make use of, beside a single Scrapy process."""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.harness.crawls import crawl, crawl_together
from benchmarks.harness.in_hand import all_at_work, mean, most
from benchmarks.harness.report import Cell, Goal, Report
from benchmarks.harness.site import Visit, site

NODES, LIMIT = 3, 4
SERVICES = 20, 100, 500  # milliseconds


def measure(quick: bool) -> Report:
    rounds, seconds = (1, 2.0) if quick else (3, 3.0)
    rows: list[list[Cell]] = []
    goals: list[Goal] = []
    for service in SERVICES[:1] if quick else SERVICES:
        pages = max(2 * NODES * LIMIT, round(seconds * LIMIT * 1000 / service))
        ours, local, plain, ratios, at_once = [], [], [], [], 0
        for _ in range(rounds):
            nodes = _nodes(service, pages)
            ours.append(_use(nodes))
            local.append(_use(_one_process(service, pages)))
            plain.append(_use(_plain_scrapy(service, pages)))
            ratios.append(ours[-1] / local[-1])
            at_once = max(at_once, most(nodes))
        shares = [median(shares) for shares in (ours, local, plain)]
        rows.append([f"{service} ms", *shares, median(ratios), at_once])
        goals.append(Goal(f"ratio at {service} ms", median(ratios), at_least=0.99))
        goals.append(Goal(f"most at once at {service} ms", at_once, at_most=LIMIT))
    return Report(
        title=f"use: share of a full site's {LIMIT} permits in use",
        columns=[
            "the site takes",
            "three nodes",
            "one Scrapy process, asyncio.Semaphore",
            "plain Scrapy",
            "first / second",
            "most at once",
        ],
        rows=rows,
        goals=goals,
        notes=(
            f"{rounds} rounds of about {seconds:g} s, medians; the site itself counts.",
            "Counted from when all nodes have begun to when the first asks for its last page.",
            "asyncio.Semaphore: in a downloader middleware, with Scrapy's defaults. What its share",
            "lacks to 1 is what Scrapy itself does between two requests.",
            f"Plain Scrapy has CONCURRENT_REQUESTS = {LIMIT} and no middleware of anybody's.",
        ),
    )


def _use(visits: list[Visit]) -> float:
    return mean(visits, *all_at_work(visits)) / LIMIT


def _nodes(service: float, pages: int) -> list[Visit]:
    limit = {"CONCURRENT_REQUESTS_PER_DOMAIN": LIMIT}
    return crawl_together(NODES, service, pages // NODES, **limit)


def _one_process(service: float, pages: int) -> list[Visit]:
    middlewares = {"benchmarks.harness.local_semaphore.LocalSemaphore": 950}
    return _alone(service, pages, DOWNLOADER_MIDDLEWARES=middlewares, LOCAL_LIMIT=LIMIT)


def _plain_scrapy(service: float, pages: int) -> list[Visit]:
    # Not by its limit for a domain, which Scrapy 2.19 passes.
    return _alone(service, pages, CONCURRENT_REQUESTS=LIMIT)


def _alone(service: float, pages: int, **settings: Any) -> list[Visit]:
    with site() as of_site:
        crawl(settings, [(of_site.pages(service), pages)])
        return of_site.visits()
