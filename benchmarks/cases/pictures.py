"""Pictures for README: what a site has in hand, and how long the nodes' requests wait."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.crawls import crawling, with_add_on
from benchmarks.harness.drawing import PICTURES, draw_in_hand, draw_waits
from benchmarks.harness.figures import in_hand, mean
from benchmarks.harness.middlewares import AskingAgain, Patient, Waits, enabled
from benchmarks.harness.report import Cell, Report
from benchmarks.harness.site import site
from tests.support.servers import RedisServer

LIMIT = 4
SERVICE = 200  # milliseconds
NODES = {"node-1": 24, "node-2": 6, "node-3": 6}  # CONCURRENT_REQUESTS: one has more in its hands
ADD_ON = "scrapy-semaphore"
PLAIN = f"plain Scrapy: CONCURRENT_REQUESTS_PER_DOMAIN = {LIMIT} on each node"
AGAIN = f"asking again: a sorted set of timestamps, about every {Patient.retry:g} s"
DRAWN = 4.0  # seconds of what the site has in hand: enough to see, in a small file
PAGES = 100_000  # more than there is time for
COLUMNS = ("crawl", "in hand", "at most", "pages of each node", "longest wait of each, s")


@dataclass(frozen=True, slots=True)
class Crawled:
    """What was seen of a crawl."""

    steps: list[tuple[float, int]]  # seconds, and how many requests the site has had in hand since
    in_hand: float  # on average
    pages: list[int]  # of each node
    waits: list[list[float]]  # of each node's requests, seconds


def measure(quick: bool) -> Report:
    seconds = 1.0 if quick else 10.0
    crawled = {name: _crawl(name, seconds) for name in (ADD_ON, PLAIN, AGAIN)}
    with tempfile.TemporaryDirectory() as directory:  # a quick picture is not worth keeping
        _draw(crawled, Path(directory) if quick else PICTURES, min(seconds, DRAWN))
    how = f"{seconds:g} s, from when all nodes crawl. The site answers in {SERVICE} ms."
    title = f"pictures: three nodes at a site that allows {LIMIT} requests at once"
    rows: list[list[Cell]] = []
    for name, crawl in crawled.items():
        longest = ", ".join(f"{max(waits, default=0):.2f}" for waits in crawl.waits)
        most, pages = max(now for _, now in crawl.steps), ", ".join(map(str, crawl.pages))
        rows.append([name.partition(":")[0], crawl.in_hand, most, pages, longest])
    return Report(title, COLUMNS, rows, notes=[how])


def _draw(crawled: dict[str, Crawled], directory: Path, seconds: float) -> None:
    steps = {name: crawl.steps for name, crawl in crawled.items()}
    draw_in_hand(directory / "in-hand.svg", steps, LIMIT, seconds)
    waits = {name.partition(":")[0]: crawled[name].waits for name in (ADD_ON, AGAIN)}
    nodes = [f"node {n}\n{at_once} at once" for n, at_once in enumerate(NODES.values(), 1)]
    draw_waits(directory / "waits.svg", waits, nodes)


def _settings(name: str, server: RedisServer) -> dict[str, Any]:
    settings: dict[str, Any] = {"CONCURRENT_REQUESTS_PER_DOMAIN": LIMIT}
    if name == ADD_ON:
        return with_add_on(server.url, **settings, DOWNLOADER_MIDDLEWARES=enabled(Waits))
    if name == PLAIN:
        return {**settings, "DOWNLOADER_MIDDLEWARES": enabled(Waits)}
    return {
        "CONCURRENT_REQUESTS_PER_DOMAIN": 1000,  # Scrapy's own limit stands in nobody's way
        "DOWNLOADER_MIDDLEWARES": enabled(Waits, AskingAgain),
        "BENCHMARK_SERVER": str(server.path),
        "BENCHMARK_LIMIT": LIMIT,
    }


def _crawl(name: str, seconds: float) -> Crawled:
    with RedisServer() as server, site() as of_site, ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for node, at_once in NODES.items():
            own = {"CONCURRENT_REQUESTS": at_once, "WAITS_FILE": str(directory / node)}
            settings = {**_settings(name, server), **own}
            stack.enter_context(crawling(settings, [(of_site.pages(SERVICE, node), PAGES)]))
        of_site.wait_until_busy(len(NODES))
        begin = time.monotonic()
        time.sleep(seconds)
        end = time.monotonic()
        visits = of_site.visits()
        waits = [_waits(directory / node, begin, end) for node in NODES]
    return Crawled(
        steps=[(when - begin, now) for when, now in in_hand(visits) if begin <= when < end],
        in_hand=mean(visits, begin, end),
        pages=[sum(v.visitor == node and begin <= v.end < end for v in visits) for node in NODES],
        waits=waits,
    )


def _waits(file: Path, begin: float, end: float) -> list[float]:
    """Of the requests that had their permit in this time."""
    pairs = [tuple(map(float, line.split())) for line in file.read_text().splitlines()]
    return [wait for when, wait in pairs if begin <= when < end]
