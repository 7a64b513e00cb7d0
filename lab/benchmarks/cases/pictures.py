"""The picture of README: the open requests of a site."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from lab.benchmarks.harness.crawls import crawling, with_add_on
from lab.benchmarks.harness.drawing import PICTURES, draw_open_requests
from lab.benchmarks.harness.figures import mean, open_requests
from lab.benchmarks.harness.middlewares import PAUSE_S, Again, enabled
from lab.benchmarks.harness.report import Cell, Report
from lab.benchmarks.harness.site import site
from tests.support.servers import RedisServer

LIMIT = 4
SERVICE = 200  # milliseconds
NODES = {"node-1": 24, "node-2": 6, "node-3": 6}  # CONCURRENT_REQUESTS: one has more of them
ADD_ON = "scrapy-semaphore"
PLAIN = f"plain Scrapy: CONCURRENT_REQUESTS_PER_DOMAIN = {LIMIT} on each node"
AGAIN = f"asking again: a sorted set of timestamps, about every {PAUSE_S:g} s"
DRAWN = 4.0  # seconds of the site's open requests: enough to see, in a small file
PAGES = 100_000  # more than there is time for
COLUMNS = ("crawl", "open requests", "at most", "pages of each node")


@dataclass(frozen=True, slots=True)
class Crawled:
    """What was seen of a crawl."""

    steps: list[tuple[float, int]]  # seconds, and the site's open requests since then
    open_requests: float  # on average
    pages: list[int]  # of each node


def measure(quick: bool) -> Report:
    seconds = 1.0 if quick else 10.0
    crawled = {name: _crawl(name, seconds) for name in (ADD_ON, PLAIN, AGAIN)}
    if not quick:
        drawn = {name: crawl.steps for name, crawl in crawled.items()}
        draw_open_requests(PICTURES / "open-requests.svg", drawn, LIMIT, DRAWN)
    how = f"{seconds:g} s, from when all nodes crawl. The site answers in {SERVICE} ms."
    title = f"pictures: three nodes at a site that allows {LIMIT} requests at once"
    rows: list[list[Cell]] = []
    for name, crawl in crawled.items():
        most, pages = max(now for _, now in crawl.steps), ", ".join(map(str, crawl.pages))
        rows.append([name.partition(":")[0], crawl.open_requests, most, pages])
    return Report(title, COLUMNS, rows, notes=[how])


def _settings(name: str, server: RedisServer) -> dict[str, Any]:
    settings: dict[str, Any] = {"CONCURRENT_REQUESTS_PER_DOMAIN": LIMIT}
    if name == ADD_ON:
        return with_add_on(server.url, **settings)
    if name == PLAIN:
        return settings
    return {
        "CONCURRENT_REQUESTS_PER_DOMAIN": 1000,  # so that Scrapy's own limit has no effect
        "DOWNLOADER_MIDDLEWARES": enabled(Again),
        "BENCHMARK_SERVER": str(server.path),
        "BENCHMARK_LIMIT": LIMIT,
    }


def _crawl(name: str, seconds: float) -> Crawled:
    with RedisServer() as server, site() as of_site, ExitStack() as stack:
        for node, at_once in NODES.items():
            settings = {**_settings(name, server), "CONCURRENT_REQUESTS": at_once}
            stack.enter_context(crawling(settings, [(of_site.pages(SERVICE, node), PAGES)]))
        of_site.wait_until_busy(len(NODES))
        begin = time.monotonic()
        time.sleep(seconds)
        end = time.monotonic()
        visits = of_site.visits()
    return Crawled(
        steps=[(when - begin, now) for when, now in open_requests(visits) if begin <= when < end],
        open_requests=mean(visits, begin, end),
        pages=[sum(v.visitor == node and begin <= v.end < end for v in visits) for node in NODES],
    )
