"""Whole crawls in which nodes and servers fail: a page may be fetched twice, but is never lost.

`lab/simulation/shared_crawl.py` has the tests that need no real Scrapy.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from redis import Redis

from lab.demo.site import ExampleSite
from tests.crawler.conftest import (
    FAST,
    HOST,
    LIMIT,
    ClosedSite,
    Scrapy,
    StartScrapy,
    crawl,
    in_a_thread,
    pages_asked_for,
    serving,
)
from tests.support.blocking import result_of
from tests.support.servers import RedisServer, wait_until
from tests.support.shared_crawl import Node, crawl_keys, looking_at

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


@pytest.mark.processes
@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_nothing_is_lost_by_kills(
    server: RedisServer, client: Redis, tmp_path: Path, kills: int
) -> None:
    losses = crawl_and_kill(server, tmp_path, kills, Random(0))
    assert (losses["kills"], *(losses[name] for name in LOSSES)) == (kills, 0, 0, 0)
    assert crawl_keys(client) == []


@pytest.mark.processes
def test_pages_of_nodes_that_are_cut_off_while_they_are_stopping(
    scrapy: StartScrapy, client: Redis
) -> None:
    """As in three rollouts with a grace period that is shorter than the pages take."""
    site = ClosedSite(pages=8)
    with in_a_thread(site):
        command = crawl(site, "-s", "CRAWL=rollout", "-s", "CRAWL_LEASE=3")
        for rollout in range(1, 4):
            node = scrapy(*command)
            wait_until(lambda: site.record(HOST).pages.total() == rollout)  # noqa: B023
            node.send(signal.SIGTERM)
            wait_until(lambda: client.zcard("{crawl:rollout}:nodes") == 0)
            node.kill()
        site.open = True
        last = scrapy(*command)
        assert last.finishes()
        assert "Dead letter" not in last.log
        assert site.record(HOST).missed == []


POISONED = """
import os, signal
from scrapy import Request, Spider

class Poisoned(Spider):
    name = "poisoned"

    async def start(self):
        yield Request(self.url)

    def parse(self, response):
        if response.url.endswith("/page/3"):
            os.kill(os.getpid(), signal.SIGKILL)
        for path in response.css("a::attr(href)").getall():
            yield response.follow(path)
"""


@pytest.mark.slow
def test_a_page_that_kills_nodes(scrapy: StartScrapy, site: ExampleSite, tmp_path: Path) -> None:
    (tmp_path / "poisoned.py").write_text(POISONED)
    command = ("runspider", "poisoned.py", "-a", f"url={site.url}", *FAST, "-s", "CRAWL_LEASE=3")
    for _ in range(3):
        assert scrapy(*command).wait() == -signal.SIGKILL
    last = scrapy(*command)
    assert last.wait() == 1
    (line,) = (line for line in last.log.splitlines() if "Dead letter" in line)
    assert f"while it did nothing else: <GET {site.url}page/3>. scrapy frontier" in line
    assert "has ended without its dead letters: 1. scrapy" in last.log
    assert site.record(HOST).pages["/page/3"] == 3
    late = scrapy(*command)
    assert late.fails_with("has ended without its dead letters: 1.")
    beyond = {f"/page/{number}" for number in range(25, 33)}  # only that page links to these
    assert set(site.record(HOST).missed) <= beyond
