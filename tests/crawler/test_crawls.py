"""Whole crawls of the example site, by processes."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from redis import Redis

from crawler.example_site import ExampleSite
from tests.crawler.conftest import (
    FAST,
    HOST,
    StartScrapy,
    assert_each_page_was_asked_for_once,
    crawl,
    pages_asked_for,
    serving,
    start_together,
)
from tests.support.frontier import crawl_keys, wait_until
from tests.support.servers import RedisServer, free_port


def items(directory: Path) -> list[list[dict[str, object]]]:
    """What each node has written to its default feed."""
    files = sorted(directory.glob("pages/*.jsonl"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def test_three_nodes_share_one_crawl_and_end_together(
    scrapy: StartScrapy, client: Redis, tmp_path: Path
) -> None:
    with serving(pages=120, latency=0.05) as site:
        nodes = start_together(scrapy, client, 3, crawl(site), name="a/b %s 🕸")
        assert [node.finishes() for node in nodes] == [True] * 3
        assert_each_page_was_asked_for_once(site)
        assert site.judge.record(HOST).most <= 8
    feeds = items(tmp_path)
    assert len(feeds) == 3  # a node without a page leaves no file
    urls = [item["url"] for feed in feeds for item in feed]
    assert len(urls) == len(set(urls)) == 120
    assert len({item["node"] for feed in feeds for item in feed}) == 3
    assert crawl_keys(client) == []


def test_without_a_url_the_crawl_uses_the_embedded_server(
    scrapy: StartScrapy, site: ExampleSite
) -> None:
    assert scrapy(*crawl(site), url="").finishes()
    assert_each_page_was_asked_for_once(site)


def test_a_finished_crawl_is_run_again_only_if_one_says_so(
    scrapy: StartScrapy, site: ExampleSite
) -> None:
    assert scrapy(*crawl(site)).finishes()
    assert_each_page_was_asked_for_once(site)
    site.judge.hosts.clear()
    late = scrapy(*crawl(site))  # as systemd and Kubernetes start one
    assert late.finishes()
    assert "has ended, so there is nothing to do" in late.log
    assert site.judge.hosts == {}
    assert scrapy(*crawl(site, "-s", "CRAWL_RUN=new")).finishes()
    assert_each_page_was_asked_for_once(site)


def test_a_node_with_other_arguments_does_not_join(
    scrapy: StartScrapy, client: Redis, site: ExampleSite
) -> None:
    (node,) = start_together(scrapy, client, 1, crawl(site), name="shared")
    other = scrapy(*crawl(site, "-s", "CRAWL=shared", "-a", "deny=/page/7"))
    assert other.wait() == 1
    assert "deny is" in other.only_error
    assert node.finishes()
    assert_each_page_was_asked_for_once(site)


def test_two_crawls_do_not_mix(scrapy: StartScrapy, site: ExampleSite, tmp_path: Path) -> None:
    with serving() as other:
        nodes = [scrapy(*crawl(site)), scrapy(*crawl(other, "-O", "other.jsonl"))]
        assert [node.finishes() for node in nodes] == [True] * 2
        assert_each_page_was_asked_for_once(site)
        assert_each_page_was_asked_for_once(other)
    (pages,) = items(tmp_path)  # -O replaces the default feed
    assert {str(item["url"]).startswith(site.url) for item in pages} == {True}


def test_an_interrupted_crawl_is_resumed(scrapy: StartScrapy, client: Redis) -> None:
    with serving(latency=0.02) as site:
        first = scrapy(*crawl(site))
        wait_until(lambda: pages_asked_for(site) > 10)
        first.interrupt()
        assert first.wait() == 1  # so that it is started again
        assert site.judge.missed(HOST)
        assert crawl_keys(client)
        assert scrapy(*crawl(site)).finishes()
        assert_each_page_was_asked_for_once(site)
    assert crawl_keys(client) == []


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT twice", "CLOSESPIDER_PAGECOUNT"])
def test_a_node_that_ends_before_its_crawl_exits_with_status_1(
    scrapy: StartScrapy, client: Redis, how: str
) -> None:
    with serving(latency=0.05) as site:
        options = ("-s", "CLOSESPIDER_PAGECOUNT=5") if how.startswith("CLOSE") else ()
        node = scrapy(*crawl(site, *options))
        if how == "SIGTERM":
            wait_until(lambda: pages_asked_for(site) > 5)
            node.send(signal.SIGTERM)
        if how == "SIGINT twice":
            wait_until(lambda: pages_asked_for(site) > 1)
            site.latency = 30.0
            wait_until(lambda: pages_asked_for(site) > 5)
            node.interrupt()
            wait_until(lambda: "shutting down gracefully" in node.log)
            node.interrupt()
        assert node.wait() == 1
        assert site.judge.missed(HOST)
    assert crawl_keys(client)


def test_the_others_go_on_when_a_node_is_interrupted(scrapy: StartScrapy, client: Redis) -> None:
    with serving(latency=0.05) as site:
        leaver, stayer = start_together(scrapy, client, 2, crawl(site), name="leaving")
        wait_until(lambda: pages_asked_for(site) > 10)
        leaver.interrupt()
        assert leaver.wait() == 1
        assert stayer.finishes()
        assert_each_page_was_asked_for_once(site)


def test_max_pages_holds_for_all_nodes_together(scrapy: StartScrapy, client: Redis) -> None:
    with serving(latency=0.02) as site:
        limited = crawl(site, "-a", "max_pages=25")  # robots.txt forbids one of the first
        nodes = start_together(scrapy, client, 3, limited, name="limited")
        assert [node.finishes() for node in nodes] == [True] * 3
        assert pages_asked_for(site) == 25
        assert site.judge.twice(HOST) == []


def test_depth_is_how_many_links_are_followed(scrapy: StartScrapy, site: ExampleSite) -> None:
    assert scrapy(*crawl(site, "-a", "depth=1")).finishes()
    asked = set(site.judge.record(HOST).pages)
    assert asked == {"/", *(f"/page/{number}" for number in range(1, 9))}


def test_robots_txt_is_obeyed_by_requests_that_wait_for_it(scrapy: StartScrapy) -> None:
    with serving(latency=0.05) as site:
        paths = ["page/1", "page/2", "page/3", "page/4", "private/diary", "private/diary?b"]
        urls = " ".join(site.url + path for path in paths)
        assert scrapy("crawl", "site", "-a", f"url={urls}", "-a", "allow=$.", *FAST).finishes()
        assert set(site.judge.record(HOST).pages) == {"/page/1", "/page/2", "/page/3", "/page/4"}
        assert site.judge.record(HOST).forbidden == 0


@pytest.mark.parametrize(
    "setting", ["TWISTED_REACTOR_ENABLED=False", "ASYNCIO_EVENT_LOOP=uvloop.Loop"]
)
def test_other_event_loops_crawl_too(scrapy: StartScrapy, site: ExampleSite, setting: str) -> None:
    assert scrapy(*crawl(site, "-s", setting)).finishes()
    assert_each_page_was_asked_for_once(site)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("max_pages=-1", "-a max_pages=-1: a whole number from 0"),
        ("colour=red", "-a colour: no such argument"),
    ],
)
def test_bad_arguments_end_the_crawl_before_it_starts(
    scrapy: StartScrapy, site: ExampleSite, client: Redis, bad: str, message: str
) -> None:
    before = client.dbsize()
    node = scrapy(*crawl(site, "-a", bad))
    assert node.wait() == 1
    assert message in node.only_error
    assert site.judge.hosts == {}
    assert client.dbsize() == before


def test_without_a_server_the_frontier_says_so(scrapy: StartScrapy, site: ExampleSite) -> None:
    node = scrapy(*crawl(site, "-s", "ADDONS={}"), url="")
    assert node.wait() == 1
    assert "REDIS_URL is not set" in node.only_error


def test_a_server_that_comes_late_is_waited_for(scrapy: StartScrapy, site: ExampleSite) -> None:
    server = RedisServer(tcp_port=free_port())
    try:
        node = scrapy(*crawl(site), url=server.tcp_url)
        wait_until(lambda: "Waiting for the crawl's server" in node.log)
        server.start()
        assert node.finishes()
        assert_each_page_was_asked_for_once(site)
    finally:
        server.remove()


def test_a_server_that_does_not_come_is_given_up_after_the_start_timeout(
    scrapy: StartScrapy, site: ExampleSite
) -> None:
    url = f"redis://127.0.0.1:{free_port()}/0"
    node = scrapy(*crawl(site, "-s", "SEMAPHORE_START_TIMEOUT=0.1"), url=url)
    assert node.wait() == 1
    assert len(node.errors) == 2  # one line each, of the crawl and of the semaphore
    assert all("longer than SEMAPHORE_START_TIMEOUT, 0.1 s" in line for line in node.errors)
    assert "Traceback" not in node.log
    assert site.judge.hosts == {}


def test_a_node_that_waits_for_its_server_can_be_interrupted(
    scrapy: StartScrapy, site: ExampleSite
) -> None:
    node = scrapy(*crawl(site), url=f"redis://127.0.0.1:{free_port()}/0")
    wait_until(lambda: "Waiting for the crawl's server" in node.log)
    node.interrupt()
    assert node.wait() == 1  # nobody knows what is left
    assert "Traceback" not in node.log


def test_a_server_that_refuses_ends_the_crawl(scrapy: StartScrapy, site: ExampleSite) -> None:
    server = RedisServer("--requirepass", "right", tcp_port=free_port()).start()
    try:
        url = server.tcp_url.replace("127.0.0.1", ":swordfish@127.0.0.1")
        node = scrapy(*crawl(site), url=url)
        assert node.wait() == 1
        assert len(node.errors) == 2  # one line each, of the crawl and of the semaphore
        assert all("does not accept this user name and password" in line for line in node.errors)
        assert "Traceback" not in node.log
        assert "swordfish" not in node.log
        assert site.judge.hosts == {}
    finally:
        server.remove()
