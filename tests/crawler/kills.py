"""Shared crawls whose nodes are killed at random moments, and what was lost.

`python -m tests.crawler.kills --kills 100` prints a table, and exits with status 1 if anything was.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from crawler.example_site import ExampleSite
from tests.crawler.conftest import HOST, Scrapy, crawl, pages_asked_for, serving
from tests.support.frontier import BlockingClient, looking_at, result_of, wait_until
from tests.support.servers import RedisServer

NODES = 3
PAGES = 60  # of the site
MOST_KILLS = 5  # in one crawl: a request that three nodes have died with is set aside
# Longer than a living node on a busy machine is silent.
LEASES = ("-s", "CRAWL_LEASE=2", "-s", "SEMAPHORE_LEASE=2")


@dataclass
class Losses:
    """What crawls have come to."""

    crawls: int = 0
    kills: int = 0
    pages: int = 0
    pages_lost: int = 0
    pages_twice: int = 0
    items_lost: int = 0
    items_twice: int = 0
    set_aside: int = 0
    """Requests that were, and were put back then, as by `scrapy frontier retry`."""


def crawl_and_kill(server: RedisServer, directory: Path, kills: int, random: Random) -> Losses:
    """Crawl again and again, until so many nodes were killed. Each is replaced by another one."""
    losses = Losses()
    while losses.kills < kills:
        number = losses.crawls
        losses.crawls += 1
        (directory / f"{number}").mkdir()
        most = min(MOST_KILLS, kills - losses.kills)
        with serving(PAGES, latency=0.03) as site:
            one = OneCrawl(server, site, directory / f"{number}", f"crawl-{number}")
            losses.kills += one.run(most, random)
            losses.set_aside += one.finish_set_aside()
            one.count(losses)
    return losses


class OneCrawl:
    """Nodes that crawl a site, each with a feed of its own."""

    def __init__(self, server: RedisServer, site: ExampleSite, directory: Path, name: str) -> None:
        self._server = server
        self._site = site
        self._directory = directory
        self._name = name
        self._nodes: list[Scrapy] = []

    def _start(self) -> None:
        number = len(self._nodes)
        feed = ("-o", f"{number}.jsonl", "-s", f"CRAWL={self._name}")
        arguments = crawl(self._site, *LEASES, *feed)
        self._nodes.append(Scrapy(self._directory, number, arguments, self._server.url))

    def run(self, kills: int, random: Random) -> int:
        """Crawl to the end; how many nodes were killed."""
        for _ in range(NODES):
            self._start()
        killed = 0
        while killed < kills:
            moment = pages_asked_for(self._site) + random.randrange(PAGES // MOST_KILLS)
            wait_until(lambda: pages_asked_for(self._site) >= moment or not self._running)  # noqa: B023
            if not self._running:
                break
            random.choice(self._running).kill()
            killed += 1
            self._start()
        self._wait()
        return killed

    @property
    def _running(self) -> list[Scrapy]:
        return [node for node in self._nodes if node.running]

    def _wait(self) -> None:
        for node in self._running:
            assert node.wait() == 0, node.log

    def finish_set_aside(self) -> int:
        """Put back what was set aside, and crawl on; how many requests these were."""
        with looking_at(self._server) as client:
            count = result_of(BlockingClient(client, self._name, "operator").retry())
        if count:
            self._start()
            self._wait()
        return count

    def count(self, losses: Losses) -> None:
        """Add what the site has seen, and what the feeds have."""
        judge = self._site.judge
        pages = judge.record(HOST).pages
        losses.pages += len(pages)
        losses.pages_lost += len(judge.missed(HOST))
        losses.pages_twice += len(judge.twice(HOST))
        start = self._site.url.rstrip("/")
        items = Counter(url for feed in self._directory.glob("*.jsonl") for url in _urls_in(feed))
        losses.items_lost += sum(not items[start + path] for path in self._site.judge.paths)
        losses.items_twice += sum(number > 1 for number in items.values())


def _urls_in(feed: Path) -> list[str]:
    """Of all items that were written whole: the last line of a killed node may not be."""
    urls = []
    for line in feed.read_text().splitlines():
        try:
            urls.append(json.loads(line)["url"])
        except ValueError:
            continue
    return urls


def main() -> None:
    """Print what was lost."""
    parser = argparse.ArgumentParser(description="Crawl, kill nodes, and count what is lost.")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    server = RedisServer().start()
    try:
        with tempfile.TemporaryDirectory(prefix="kills-") as directory:
            losses = crawl_and_kill(server, Path(directory), given.kills, Random(given.seed))
    finally:
        server.remove()
    for name, number in asdict(losses).items():
        print(f"{name.replace('_', ' '):12} {number:6}")  # noqa: T201  (a program of its own)
    sys.exit(losses.pages_lost + losses.items_lost > 0)


if __name__ == "__main__":
    main()
