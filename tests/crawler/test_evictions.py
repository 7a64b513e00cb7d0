"""Keys of a shared crawl are evicted or deleted while nodes live: no page is missed in silence."""

from __future__ import annotations

import pytest
from redis import Redis

from tests.crawler.conftest import (
    HOST,
    ClosedSite,
    Scrapy,
    StartScrapy,
    crawl,
    in_a_thread,
    pages_asked_for,
    start_together,
)
from tests.support.servers import wait_until

pytestmark = pytest.mark.processes

NAME = "evicted"


def crawl_and_delete(scrapy: StartScrapy, client: Redis, part: str) -> tuple[list[Scrapy], int]:
    """Two nodes that crawl while this key is deleted; and how many pages they have missed."""
    site = ClosedSite(answered=50, pages=120)
    with in_a_thread(site):
        nodes = start_together(scrapy, client, 2, crawl(site, "-s", "CRAWL_LEASE=3"), NAME)
        wait_until(lambda: pages_asked_for(site) > 50)
        assert client.delete(f"{{crawl:{NAME}}}:{part}") == 1
        site.open = True
        for node in nodes:
            node.wait()
        return nodes, len(site.judge.missed(HOST))


@pytest.mark.parametrize("part", ["queue", "sites", "taken"])
def test_what_no_queue_has_is_queued_again(scrapy: StartScrapy, client: Redis, part: str) -> None:
    nodes, missed = crawl_and_delete(scrapy, client, part)
    assert missed == 0
    assert all(node.finishes() for node in nodes)


def test_requests_that_are_lost_are_counted(scrapy: StartScrapy, client: Redis) -> None:
    nodes, missed = crawl_and_delete(scrapy, client, "requests")
    assert missed > 0
    assert [node.wait() for node in nodes] == [1, 1]
