"""Another server becomes the master in the middle of a shared crawl: no page is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from redis.crc import key_slot

from semaphore_middleware.shared_crawl.keys import CrawlKeys
from tests.crawler.conftest import FAST, HOST, StartScrapy, pages_asked_for, serving
from tests.support.servers import Cluster, Watched, wait_until

pytestmark = pytest.mark.slow

NAME = "moving"
SLOT = key_slot(CrawlKeys("crawl", NAME).key("run"))
SETTINGS = {"CRAWL": NAME, "CRAWL_LEASE": "2", "SEMAPHORE_LEASE": "2", "RETRY_TIMES": "10"}


@pytest.fixture
def watched() -> Iterator[Watched]:
    """A master, a replica, and three sentinels."""
    with Watched() as watched:
        yield watched


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three masters; that of the crawl has a replica."""
    with Cluster(guarded=SLOT) as cluster:
        yield cluster


def crawl_while(change: Callable[[], object], url: str, scrapy: StartScrapy) -> None:
    """Two nodes crawl; in the middle another server becomes the master."""
    options = [part for item in SETTINGS.items() for part in ("-s", "=".join(item))]
    with serving(pages=150, latency=0.05) as site:
        command = ("crawl", "site", "-a", f"url={site.url}", *FAST, *options)
        nodes = [scrapy(*command, url=url) for _ in range(2)]
        wait_until(lambda: all("joins the crawl" in node.log for node in nodes))
        wait_until(lambda: pages_asked_for(site) > 30)
        change()
        assert pages_asked_for(site) < 150
        assert [node.finishes() for node in nodes] == [True] * 2
        assert site.record(HOST).missed == []
        assert site.record(HOST).most <= 8
    assert all("Traceback" not in node.log for node in nodes)


def test_sentinels_replace_a_master_that_was_killed(scrapy: StartScrapy, watched: Watched) -> None:
    crawl_while(watched.master.kill, watched.url, scrapy)


def test_a_cluster_replaces_a_master_that_was_killed(scrapy: StartScrapy, cluster: Cluster) -> None:
    crawl_while(lambda: cluster.owner(SLOT).kill(), cluster.url, scrapy)


@pytest.mark.parametrize("with_keys", [True, False])
def test_its_slot_moves(scrapy: StartScrapy, cluster: Cluster, with_keys: bool) -> None:
    other = next(node for node in cluster.nodes[:3] if node is not cluster.owner(SLOT))
    url = f"redis://127.0.0.1:{cluster.nodes[2].tcp_port}"  # the address of any node will do
    crawl_while(lambda: cluster.move(SLOT, other, with_keys=with_keys), url, scrapy)
