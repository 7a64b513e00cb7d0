"""Pictures for README: what a site has in hand, and how long the nodes' requests wait."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import asking_again
from benchmarks.harness.crawls import crawling, with_add_on
from benchmarks.harness.drawing import draw_in_hand, draw_waits
from benchmarks.harness.in_hand import in_hand, mean
from benchmarks.harness.report import Cell, Report
from benchmarks.harness.site import Site, site
from benchmarks.harness.waits import POSITION
from tests.support.servers import RedisServer

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
LIMIT = 4
SERVICE = 200  # milliseconds
AT_ONCE = 24, 6, 6  # CONCURRENT_REQUESTS of the nodes: one has more work in its hands
ADD_ON = "scrapy-semaphore"
PLAIN = f"plain Scrapy: CONCURRENT_REQUESTS_PER_DOMAIN = {LIMIT} on each node"
AGAIN = f"asking again: a sorted set of timestamps, every {asking_again.PAUSE:g} s"
DRAWN = 4.0  # seconds of what the site has in hand: enough to see, in a small file
PAGES = 100_000  # more than there is time for


@dataclass(frozen=True, slots=True)
class Crawled:
    steps: list[tuple[float, int]]  # seconds, and how many requests the site has had in hand since
    in_hand: float  # on average
    pages: list[int]  # of each node
    waits: list[list[float]]  # of each node's requests, seconds
    messages: int  # to the server


def measure(quick: bool) -> Report:
    seconds = 1.0 if quick else 10.0
    crawled = {name: _crawl(name, seconds) for name in (ADD_ON, PLAIN, AGAIN)}
    with _directory(quick) as directory:
        draw_in_hand(
            directory / "in-hand.svg",
            {name: crawl.steps for name, crawl in crawled.items()},
            LIMIT,
            min(seconds, DRAWN),
        )
        draw_waits(
            directory / "waits.svg",
            {name.partition(":")[0]: crawled[name].waits for name in (ADD_ON, AGAIN)},
            [f"node {n}\n{at_once} at once" for n, at_once in enumerate(AT_ONCE, 1)],
        )
        drawn = [f"{path.name} ({path.stat().st_size // 1000} kB)" for path in directory.iterdir()]
    return Report(
        title=f"pictures: three nodes at a site that allows {LIMIT} requests at once",
        columns=[
            "crawl",
            "in hand",
            "at most",
            "pages of each node",
            "longest wait of each, s",
            "messages to the server a page",
        ],
        rows=[_row(name, crawl) for name, crawl in crawled.items()],
        notes=(
            f"{seconds:g} s, from when all nodes crawl. The site answers in {SERVICE} ms.",
            f"The nodes' CONCURRENT_REQUESTS are {AT_ONCE}.",
            f"Plain Scrapy has a limit of {LIMIT} on each node, which Scrapy 2.19 passes.",
            f"Asking again is a sorted set of timestamps, asked every {asking_again.PAUSE:g} s.",
            f"Drawn: {', '.join(sorted(drawn))}" + (", and thrown away." if quick else "."),
        ),
    )


def _row(name: str, crawl: Crawled) -> list[Cell]:
    asked = any(crawl.waits)
    return [
        name.partition(":")[0],
        crawl.in_hand,
        max(now for _, now in crawl.steps),
        ", ".join(map(str, crawl.pages)),
        ", ".join(f"{max(waits, default=0):.2f}" for waits in crawl.waits) if asked else None,
        crawl.messages / sum(crawl.pages) if asked else None,
    ]


@contextmanager
def _directory(quick: bool) -> Iterator[Path]:
    """Where to draw; a quick picture is not worth keeping."""
    if not quick:
        PICTURES.mkdir(exist_ok=True)
        yield PICTURES
        return
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


def _settings(name: str, url: str) -> dict[str, Any]:
    settings: dict[str, Any] = {"CONCURRENT_REQUESTS_PER_DOMAIN": LIMIT}
    if name == PLAIN:
        return settings
    chain = {"benchmarks.harness.waits.Waits": POSITION}
    if name == ADD_ON:
        return with_add_on(url, **settings, DOWNLOADER_MIDDLEWARES=chain)
    return {
        "CONCURRENT_REQUESTS_PER_DOMAIN": 1000,  # Scrapy's own limit stands in nobody's way
        "DOWNLOADER_MIDDLEWARES": {**chain, "benchmarks.harness.asking_again.AskingAgain": 950},
        "BY_HAND_REDIS_URL": url,
        "BY_HAND_LIMIT": LIMIT,
    }


def _crawl(name: str, seconds: float) -> Crawled:
    with ExitStack() as stack:
        of_site = stack.enter_context(site())
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = RedisServer().start()
        stack.callback(server.remove)
        nodes = [f"node-{number}" for number in range(1, len(AT_ONCE) + 1)]
        for node, at_once in zip(nodes, AT_ONCE, strict=True):
            settings = {
                **_settings(name, server.url),
                "CONCURRENT_REQUESTS": at_once,
                "WAITS_FILE": str(directory / node),
            }
            stack.enter_context(crawling(settings, [(of_site.pages(SERVICE, node), PAGES)]))
        _wait_until_all_crawl(of_site)
        messages, begin = _messages(server), time.monotonic()
        time.sleep(seconds)
        messages, end = _messages(server) - messages, time.monotonic()
        visits = of_site.visits()
        waits = [_waits(directory / node, begin, end) for node in nodes]
    return Crawled(
        steps=[(when - begin, now) for when, now in in_hand(visits) if begin <= when < end],
        in_hand=mean(visits, begin, end),
        pages=[sum(v.visitor == node and begin <= v.end < end for v in visits) for node in nodes],
        waits=waits,
        messages=messages,
    )


def _wait_until_all_crawl(of_site: Site) -> None:
    while len({visit.visitor for visit in of_site.visits()}) < len(AT_ONCE):
        time.sleep(0.2)
    time.sleep(2)  # and until those who were first are no longer ahead


def _messages(server: RedisServer) -> int:
    with server.client() as client:
        return int(client.info("stats")["total_reads_processed"])


def _waits(file: Path, begin: float, end: float) -> list[float]:
    """Of the requests that had their permit in this time."""
    if not file.exists():  # nobody gives permits
        return []
    pairs = [tuple(map(float, line.split())) for line in file.read_text().splitlines()]
    return [wait for when, wait in pairs if begin <= when < end]
