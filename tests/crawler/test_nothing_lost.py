"""Whole crawls in which nodes and servers fail: a page may be fetched twice, but is never lost.

`lab/simulation/shared_crawl.py` has the tests that need no real Scrapy.
"""

from __future__ import annotations

import signal
from pathlib import Path
from random import Random

import pytest
from redis import Redis

from lab.demo.site import ExampleSite
from tests.crawler.conftest import FAST, HOST, ClosedSite, StartScrapy, crawl, in_a_thread
from tests.crawler.kills import LOSSES, crawl_and_kill
from tests.support.servers import RedisServer, wait_until
from tests.support.shared_crawl import crawl_keys


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
