"""Shared crawls whose nodes are killed at random moments, and what was lost.

`python -m tests.crawler.kills --kills 100` prints a table, and exits with status 1 after a loss.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

from tests.crawler.conftest import HOST, LIMIT, Scrapy, crawl, pages_asked_for, serving
from tests.support.blocking import result_of
from tests.support.servers import RedisServer, wait_until
from tests.support.shared_crawl import Node, looking_at

NODES = 3
PAGES = 60  # of the site
LOSSES = "pages lost", "items lost", "above the limit"
MOST_KILLS = 5  # in one crawl: a request that three nodes have died with becomes a dead letter
# Longer than a living node on a busy machine is silent.
LEASES = ("-s", "CRAWL_LEASE=3", "-s", "SEMAPHORE_LEASE=3")


def crawl_and_kill(
    server: RedisServer, directory: Path, kills: int, random: Random
) -> Counter[str]:
    """Crawl again and again, until `kills` nodes were killed. Each is replaced by another one, and
    has a feed of its own.
    """
    losses = Counter(dict.fromkeys(("kills", *LOSSES), 0))
    while losses["kills"] < kills:
        feeds = directory / f"{losses['crawls']}"
        feeds.mkdir()
        _crawl_once(server, feeds, min(MOST_KILLS, kills - losses["kills"]), random, losses)
    return losses


def _crawl_once(
    server: RedisServer, feeds: Path, kills: int, random: Random, losses: Counter[str]
) -> None:
    def start() -> None:
        name = ("-s", f"CRAWL=crawl-{feeds.name}")
        nodes.append(Scrapy(feeds, len(nodes), crawl(site, *LEASES, *name), server.url))

    def running() -> list[Scrapy]:
        return [node for node in nodes if node.running]

    nodes: list[Scrapy] = []
    with serving(PAGES, latency=0.03) as site:
        for _ in range(NODES):
            start()
        for _ in range(kills):
            moment = pages_asked_for(site) + random.randrange(PAGES // MOST_KILLS)
            wait_until(lambda: pages_asked_for(site) >= moment or not running())  # noqa: B023
            if not (living := running()):
                break
            random.choice(living).kill()
            losses["kills"] += 1
            start()
        assert not any(node.wait() for node in running())
        with looking_at(server) as client:
            if result_of(Node(client, f"crawl-{feeds.name}", "operator").retry()):
                start()  # for the dead letters
                assert nodes[-1].wait() == 0
        items = {url for feed in feeds.glob("pages/*.jsonl") for url in _urls_in(feed)}
        losses["crawls"] += 1
        losses["above the limit"] += max(0, site.record(HOST).most - LIMIT)
        losses["pages lost"] += len(site.record(HOST).missed)
        losses["pages twice"] += len(site.record(HOST).twice)
        losses["items lost"] += sum(site.url.rstrip("/") + p not in items for p in site.numbers)


def _urls_in(feed: Path) -> Iterator[str]:
    """The URLs of all complete items: the last line of a killed node may be incomplete."""
    for line in feed.read_text().splitlines():
        with suppress(ValueError):
            yield json.loads(line)["url"]


def main() -> None:
    """Print what was lost."""
    parser = argparse.ArgumentParser(description="Crawl, kill nodes, and count what is lost.")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with RedisServer() as server, tempfile.TemporaryDirectory(prefix="kills-") as directory:
        losses = crawl_and_kill(server, Path(directory), given.kills, Random(given.seed))
    for name, number in losses.items():
        print(f"{name:16} {number:6}")  # noqa: T201  (a program of its own)
    sys.exit(any(losses[name] for name in LOSSES))


if __name__ == "__main__":
    main()
