"""Whole crawls in which nodes and servers fail: a page may be fetched twice, but is never lost."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from redis import Redis

from crawler.example_site import ExampleSite
from semaphore_middleware.frontier.client import NewRequest
from semaphore_middleware.frontier.prefetch import SITE_BATCH
from tests.crawler.conftest import (
    FAST,
    HOST,
    Scrapy,
    StartScrapy,
    assert_each_page_was_asked_for_once,
    crawl,
    pages_asked_for,
    serving,
    start_together,
)
from tests.crawler.kills import crawl_and_kill
from tests.support.frontier import BlockingClient, crawl_keys, wait_until
from tests.support.servers import RedisServer

SHORT_LEASES = ("-s", "CRAWL_LEASE=0.5", "-s", "SEMAPHORE_LEASE=1")


def name_of(node: Scrapy) -> str:
    """Call this before the node is stopped: it joins first and logs it then."""
    wait_until(lambda: "joins the crawl" in node.log)
    (name,) = re.findall(r"Node (\S+) joins the crawl", node.log)
    return str(name)


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_nodes_pages_are_fetched_by_the_others(
    scrapy: StartScrapy, client: Redis, seed: int
) -> None:
    random = Random(seed)
    with serving(latency=0.03) as site:
        nodes = start_together(scrapy, client, 3, crawl(site, *SHORT_LEASES), name="killing")
        moment = random.randrange(1, 55)
        wait_until(lambda: pages_asked_for(site) >= moment)
        victim = nodes.pop(random.randrange(3))
        victim.kill()
        assert [node.finishes() for node in nodes] == [True] * 2
        assert site.judge.missed(HOST) == []
    assert crawl_keys(client) == []


def test_a_killed_nodes_prefetched_requests_are_fetched_by_the_others(
    scrapy: StartScrapy, client: Redis
) -> None:
    with serving(pages=80, latency=0.03) as site:
        slow = crawl(site, *SHORT_LEASES, "-s", "CONCURRENT_REQUESTS_PER_DOMAIN=1")
        victim, other = start_together(scrapy, client, 2, slow, name="killing")
        shared = BlockingClient(client, "killing", "test")
        shared.node = name_of(victim)
        wait_until(lambda: shared.taken > SITE_BATCH)
        victim.kill()
        assert shared.taken > SITE_BATCH / 2
        assert other.finishes()
        assert site.judge.missed(HOST) == []
        assert site.judge.record(HOST).most == 1
    assert crawl_keys(client) == []


@pytest.mark.slow
def test_a_crawl_whose_nodes_were_all_killed_is_resumed(scrapy: StartScrapy, client: Redis) -> None:
    with serving(pages=150, latency=0.03) as site:
        short = crawl(site, *SHORT_LEASES)
        nodes = start_together(scrapy, client, 2, short, name="killing")
        wait_until(lambda: pages_asked_for(site) > 100)
        for node in nodes:
            node.kill()
        fetched = set(site.judge.record(HOST).pages)
        site.judge.hosts.clear()
        assert scrapy(*short, "-s", "CRAWL=killing").finishes()
        again = set(site.judge.record(HOST).pages)
        assert fetched | again == set(site.judge.paths)
        assert fetched - again  # only what was unfinished is fetched twice
    assert crawl_keys(client) == []


@pytest.mark.slow
def test_a_slow_node_is_not_taken_for_dead(scrapy: StartScrapy, client: Redis) -> None:
    with serving(pages=9, latency=0.3) as site:
        lease = crawl(site, "-s", "CRAWL_LEASE=1.5")
        nodes = start_together(scrapy, client, 2, lease, name="slow")
        wait_until(lambda: pages_asked_for(site) > 0)
        site.latency = 3.0
        assert [node.finishes() for node in nodes] == [True] * 2
        assert_each_page_was_asked_for_once(site)


WITHOUT_HEARTBEAT = """
from scrapy import Request, Spider
from scrapy.core.engine import ExecutionEngine

ExecutionEngine._SLOT_HEARTBEAT_INTERVAL = 3600.0

class Idling(Spider):
    name = "idling"

    async def start(self):
        yield Request(self.url)

    def parse(self, response):
        pass
"""


@pytest.mark.slow
def test_an_idle_node_wakes_when_a_lease_expires(
    scrapy: StartScrapy, client: Redis, site: ExampleSite, tmp_path: Path
) -> None:
    (tmp_path / "idling.py").write_text(WITHOUT_HEARTBEAT)
    # The lease is longer than a node takes to be idle.
    dead = BlockingClient(client, "idling", "dead", lease=4.0)
    dead.joins()
    dead.works()
    assert scrapy("runspider", "idling.py", "-a", f"url={site.url}").finishes()
    assert site.judge.twice(HOST) == []
    assert crawl_keys(client) == []


@pytest.mark.slow
def test_a_node_that_was_frozen_goes_on_crawling(scrapy: StartScrapy, client: Redis) -> None:
    with serving(latency=0.05) as site:
        short = crawl(site, *SHORT_LEASES)
        frozen, awake = start_together(scrapy, client, 2, short, name="freezing")
        wait_until(lambda: pages_asked_for(site) > 10)
        name = name_of(frozen)
        frozen.send(signal.SIGSTOP)
        working = BlockingClient(client, "freezing", "test").keys.of("working")
        wait_until(lambda: client.zscore(working, name) is None)
        frozen.send(signal.SIGCONT)
        assert [awake.finishes(), frozen.finishes()] == [True] * 2
        assert site.judge.missed(HOST) == []
    assert crawl_keys(client) == []


@pytest.mark.slow
def test_a_node_frozen_until_after_the_end_leaves_no_keys(
    scrapy: StartScrapy, client: Redis
) -> None:
    with serving(latency=0.05) as site:
        short = crawl(site, *SHORT_LEASES)
        frozen, awake = start_together(scrapy, client, 2, short, name="freezing")
        wait_until(lambda: pages_asked_for(site) > 10)
        frozen.send(signal.SIGSTOP)
        assert awake.finishes()
        assert site.judge.missed(HOST) == []
        frozen.send(signal.SIGCONT)
        assert frozen.finishes()
    assert crawl_keys(client) == []


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
    shared = BlockingClient(client, "gated", "test")
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
    spoiler = BlockingClient(client, "spoilt", "test")
    spoiler.joins()
    spoiler.pushes(NewRequest(spoiler.new_place("", -1), b"no request"))
    spoiler.leaves()
    for _ in range(3):
        node = scrapy(*crawl(site, "-s", "CRAWL=spoilt"))
        assert node.wait() == 1
        assert "This node cannot read a request of the crawl, gives it back" in node.only_error
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


@pytest.mark.parametrize("seed", SEEDS)
def test_a_killed_nodes_items_are_written_by_it_or_by_others(
    scrapy: StartScrapy, tmp_path: Path, seed: int
) -> None:
    with serving(pages=60, latency=0.03) as site:
        short = crawl(site, *SHORT_LEASES)
        victim = scrapy(*short, "-o", "killed.jsonl")
        moment = Random(seed).randrange(5, 55)
        wait_until(lambda: pages_asked_for(site) >= moment)
        victim.kill()
        assert scrapy(*short, "-o", "next.jsonl").finishes()
        paths = set(site.judge.paths)
        start = site.url.rstrip("/")
    feeds = [(tmp_path / name).read_text() for name in ("killed.jsonl", "next.jsonl")]
    urls = set(re.findall(r'"url": "([^"]*)"', "".join(feeds)))
    assert urls == {start + path for path in paths}


@pytest.mark.slow
def test_nothing_is_lost_when_nodes_are_killed_at_random_moments(
    server: RedisServer, tmp_path: Path
) -> None:
    losses = crawl_and_kill(server, tmp_path, kills=5, random=Random(0))
    assert (losses.kills, losses.pages_lost, losses.items_lost) == (5, 0, 0)


@pytest.fixture
def lasting() -> Iterator[RedisServer]:
    """A server whose data outlives it."""
    server = RedisServer("--appendonly", "yes", "--appendfsync", "always").start()
    try:
        yield server
    finally:
        server.remove()


@pytest.mark.slow
def test_links_found_while_the_server_is_unavailable_are_kept(
    scrapy: StartScrapy, lasting: RedisServer
) -> None:
    with serving(latency=0.3) as site:
        node = scrapy(*crawl(site), url=lasting.url)
        wait_until(lambda: pages_asked_for(site) > 1)  # of the second level, with links to a third
        lasting.kill()
        wait_until(lambda: "is unavailable" in node.log and site.judge.record(HOST).now == 0)
        site.latency = 0.01
        lasting.start()
        assert node.finishes()
        assert_each_page_was_asked_for_once(site)
        with lasting.client() as client:
            assert crawl_keys(client) == []


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["restart", "flushall"])
def test_a_crawl_lost_with_the_servers_data_starts_over(
    scrapy: StartScrapy, server: RedisServer, client: Redis, loss: str
) -> None:
    with serving(latency=0.1) as site:
        nodes = start_together(scrapy, client, 2, crawl(site, *SHORT_LEASES), name="losing")
        wait_until(lambda: pages_asked_for(site) > 10)
        if loss == "restart":
            server.kill()
            server.start()
        else:
            client.flushall()
        wait_until(lambda: all("starts over" in node.log for node in nodes))
        site.latency = 0.01
        assert [node.finishes() for node in nodes] == [True] * 2
        assert site.judge.missed(HOST) == []
    assert crawl_keys(client) == []


@pytest.mark.slow
def test_a_node_without_requests_starts_a_lost_crawl_over(
    scrapy: StartScrapy, client: Redis, site: ExampleSite
) -> None:
    holder = BlockingClient(client, "losing", "test", lease=3600)
    holder.joins()
    holder.works()
    node = scrapy(*crawl(site, *SHORT_LEASES, "-s", "CRAWL=losing"))
    wait_until(lambda: not site.judge.missed(HOST) and holder.size.unfinished == 0)
    client.flushall()
    assert node.finishes()
    assert set(site.judge.record(HOST).pages.values()) == {2}
    assert crawl_keys(client) == []
