"""Whole crawls in which nodes and servers fail: a page may be fetched twice, but is never lost.

`tests/simulation/frontier.py` has what needs no real Scrapy.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path
from random import Random

import pytest
from redis import Redis

from crawler.example_site import ExampleSite
from tests.crawler.conftest import (
    FAST,
    HOST,
    SHORT_LEASES,
    StartScrapy,
    crawl,
    pages_asked_for,
    serving,
    start_together,
)
from tests.crawler.kills import crawl_and_kill
from tests.support.frontier import Node, crawl_keys, wait_until
from tests.support.servers import RedisServer


def test_a_killed_nodes_pages_and_items_are_done_by_others(
    scrapy: StartScrapy, client: Redis, tmp_path: Path
) -> None:
    with serving(latency=0.03) as site:
        short = crawl(site, *SHORT_LEASES)
        victim, *others = start_together(scrapy, client, 3, short, name="killing")
        wait_until(lambda: pages_asked_for(site) > 20)
        victim.kill()
        assert [node.finishes() for node in others] == [True] * 2
        assert site.judge.missed(HOST) == []
        wanted = {site.url.rstrip("/") + path for path in site.judge.paths}
    feeds = "".join(feed.read_text() for feed in tmp_path.glob("pages/*"))
    assert set(re.findall(r'"url": "([^"]*)"', feeds)) == wanted
    assert crawl_keys(client) == []


@pytest.mark.slow
def test_nothing_is_lost_when_nodes_are_killed_at_random_moments(
    server: RedisServer, tmp_path: Path
) -> None:
    losses = crawl_and_kill(server, tmp_path, kills=5, random=Random(0))
    assert (losses["kills"], losses["pages lost"], losses["items lost"]) == (5, 0, 0)


GATED = """
import asyncio
from pathlib import Path
from scrapy import Request, Spider

class Gate:
    async def process_item(self, item):
        while not Path("open").exists():
            await asyncio.sleep(0.01)
        return item

class Gated(Spider):
    name = "gated"
    custom_settings = {"ITEM_PIPELINES": {Gate: 1}}

    async def start(self):
        yield Request(self.url)

    def parse(self, response):
        yield Request(response.urljoin("/page/1"), callback=self.parse_link)
        yield {"url": response.url}

    def parse_link(self, response):
        pass
"""


@pytest.mark.slow
def test_a_page_is_unfinished_until_its_items_have_passed_the_pipelines(
    scrapy: StartScrapy, client: Redis, site: ExampleSite, tmp_path: Path
) -> None:
    (tmp_path / "gated.py").write_text(GATED)
    node = scrapy("runspider", "gated.py", "-a", f"url={site.url}", *SHORT_LEASES)
    shared = Node(client, "gated", "test")
    wait_until(lambda: pages_asked_for(site) == 2 and shared.size.unfinished == 1)
    node.kill()
    (tmp_path / "open").touch()
    again = scrapy("runspider", "gated.py", "-a", f"url={site.url}", *SHORT_LEASES)
    assert again.finishes()
    assert site.judge.twice(HOST) == ["/"]
    assert "'item_scraped_count': 1" in again.log
    assert crawl_keys(client) == []


STOPPED = """
from scrapy import Request, Spider

class Stamp:
    def process_request(self, request):
        request.meta["begun"] = object()

class Token:
    def __init__(self, crawler):
        self.crawler = crawler

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    async def process_request(self, request):
        if not request.url.endswith("/token"):
            await self.crawler.engine.download_async(Request(request.url + "/token"))

class Stopped(Spider):
    name = "stopped"

    async def start(self):
        yield Request(self.url)
        for number in range(1, 20):
            yield Request(f"{self.url}page/{number}")

    def parse(self, response):
        pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("middleware", ["Stamp: 100", "Token: 980"])
def test_a_stop_loses_no_page_whatever_middlewares_do_with_its_request(
    scrapy: StartScrapy, client: Redis, tmp_path: Path, middleware: str
) -> None:
    settings = f"    custom_settings = {{'DOWNLOADER_MIDDLEWARES': {{{middleware}}}}}\n"
    (tmp_path / "stopped.py").write_text(STOPPED + settings)
    with serving(pages=20, latency=0.2) as site:
        options = ("-s", "CONCURRENT_REQUESTS_PER_DOMAIN=2", "-s", "ROBOTSTXT_OBEY=0")
        command = ("runspider", "stopped.py", "-a", f"url={site.url}", *options)
        stopped = scrapy(*command)
        wait_until(lambda: pages_asked_for(site) > 4)
        stopped.interrupt()
        assert stopped.wait() == 1
        assert site.judge.missed(HOST)
        assert scrapy(*command).finishes()
        assert site.judge.missed(HOST) == []
    assert crawl_keys(client) == []


@pytest.mark.slow
def test_an_unreadable_request_ends_three_nodes_and_not_the_crawl(
    scrapy: StartScrapy, client: Redis, site: ExampleSite
) -> None:
    spoiler = Node(client, "spoilt", "test")
    spoiler.joins()
    spoiler.pushes(spoiler.new(b"no request", score=-1, site=""))
    spoiler.leaves()
    for _ in range(3):
        node = scrapy(*crawl(site, "-s", "CRAWL=spoilt"))
        assert node.fails_with("This node cannot read a request of the crawl, gives it back")
    assert "three nodes have failed with it: a request that cannot be read" in node.log
    assert scrapy(*crawl(site, "-s", "CRAWL=spoilt")).finishes()
    assert site.judge.missed(HOST) == []
    assert spoiler.size.set_aside == 1


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
def test_a_page_that_kills_its_nodes_does_so_three_times(
    scrapy: StartScrapy, site: ExampleSite, tmp_path: Path
) -> None:
    (tmp_path / "poisoned.py").write_text(POISONED)
    command = ("runspider", "poisoned.py", "-a", f"url={site.url}", *FAST, *SHORT_LEASES)
    for _ in range(3):
        assert scrapy(*command).wait() == -signal.SIGKILL
    last = scrapy(*command)
    assert last.finishes()
    (line,) = (line for line in last.log.splitlines() if "Set aside" in line)
    assert f"three nodes have failed with it: <GET {site.url}page/3>. scrapy frontier" in line
    assert site.judge.record(HOST).pages["/page/3"] == 3
    beyond = {f"/page/{number}" for number in range(25, 33)}  # only that page links to these
    assert set(site.judge.missed(HOST)) <= beyond


@pytest.mark.slow
def test_a_crawl_lost_with_the_servers_data_starts_over(scrapy: StartScrapy, client: Redis) -> None:
    with serving(latency=0.1) as site:
        nodes = start_together(scrapy, client, 2, crawl(site, *SHORT_LEASES), name="losing")
        wait_until(lambda: pages_asked_for(site) > 10)
        client.flushall()
        wait_until(lambda: all("starts over" in node.log for node in nodes))
        site.latency = 0.01
        assert [node.finishes() for node in nodes] == [True] * 2
        assert site.judge.missed(HOST) == []
    assert crawl_keys(client) == []
