"""How much of what a full site allows three nodes make use of, beside a single process."""

from __future__ import annotations

from statistics import median

from benchmarks.harness import one_process
from benchmarks.harness.crawls import crawl, crawl_together
from benchmarks.harness.in_hand import all_at_work, mean, most
from benchmarks.harness.report import Cell, Goal, Report
from benchmarks.harness.site import Visit, site

NODES, LIMIT = 3, 4
SERVICES = 20, 100, 500  # milliseconds


def measure(quick: bool) -> Report:
    rounds, seconds = (1, 0.5) if quick else (3, 3.5)
    rows: list[list[Cell]] = []
    goals: list[Goal] = []
    for service in SERVICES[:1] if quick else SERVICES:
        pages = max(2 * NODES * LIMIT, round(seconds * LIMIT * 1000 / service))
        ours, plain, least, ratios, at_once = [], [], [], [], 0
        for _ in range(rounds):
            nodes = _nodes(service, pages)
            ours.append(_use(nodes))
            plain.append(_use(_plain_scrapy(service, pages)))
            least.append(_use(_one_process(service, pages)))
            ratios.append(ours[-1] / least[-1])
            at_once = max(at_once, most(nodes))
        shares = [median(shares) for shares in (ours, plain, least)]
        rows.append([f"{service} ms", *shares, median(ratios), at_once])
        goals.append(Goal(f"ratio at {service} ms", median(ratios), at_least=0.97))
        goals.append(Goal(f"most at once at {service} ms", at_once, at_most=LIMIT))
    return Report(
        title=f"use: share of a full site's {LIMIT} permits in use",
        columns=[
            "the site takes",
            "three nodes",
            "plain Scrapy",
            "asyncio.Semaphore",
            "first / last",
            "most at once",
        ],
        rows=rows,
        goals=goals,
        notes=(
            f"{rounds} rounds of about {seconds:g} s, medians; the site itself counts.",
            "Counted from when all nodes have begun to when the first asks for its last page.",
            f"Plain Scrapy has CONCURRENT_REQUESTS = {LIMIT}; asyncio.Semaphore has aiohttp.",
        ),
    )


def _use(visits: list[Visit]) -> float:
    return mean(visits, *all_at_work(visits)) / LIMIT


def _nodes(service: float, pages: int) -> list[Visit]:
    limit = {"CONCURRENT_REQUESTS_PER_DOMAIN": LIMIT}
    return crawl_together(NODES, service, pages // NODES, **limit)


def _plain_scrapy(service: float, pages: int) -> list[Visit]:
    with site() as of_site:
        # Not by its limit for a domain, which Scrapy 2.19 passes.
        crawl({"CONCURRENT_REQUESTS": LIMIT}, [(of_site.pages(service), pages)])
        return of_site.visits()


def _one_process(service: float, pages: int) -> list[Visit]:
    with site() as of_site:
        one_process.crawl(LIMIT, pages, of_site.pages(service))
        return of_site.visits()
