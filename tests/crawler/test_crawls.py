"""Whole crawls of the example site, by processes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from redis import Redis

from lab.demo.site import ExampleSite
from semaphore_middleware.shared_crawl.client import VERSION
from tests.crawler.conftest import (
    HOST,
    ClosedSite,
    StartScrapy,
    assert_each_page_was_asked_for_once,
    crawl,
    in_a_thread,
    pages_asked_for,
    serving,
    start_together,
)
from tests.support.servers import RedisServer, free_port, wait_until
from tests.support.shared_crawl import crawl_keys
from tests.support.times import TIMEOUT_S


def embedded_pid() -> int:
    path = Path(os.environ["SEMAPHORE_EMBEDDED_DIRECTORY"]) / "server.sock"
    with Redis(unix_socket_path=str(path), socket_timeout=TIMEOUT_S) as client:
        return int(client.info("server")["process_id"])


def test_three_nodes_share_one_crawl(scrapy: StartScrapy, client: Redis, tmp_path: Path) -> None:
    site = ClosedSite(pages=60, latency=0.03)
    with in_a_thread(site):
        nodes = start_together(scrapy, client, 3, crawl(site), name="a/b %s 🕸")
        site.open = True
        assert [node.finishes() for node in nodes] == [True] * 3
        assert_each_page_was_asked_for_once(site)
        assert site.record(HOST).most <= 8
    files = list(tmp_path.glob("pages/*.jsonl"))
    items = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert len(items) == len({item["url"] for item in items}) == 60
    assert len(files) > 1
    assert crawl_keys(client) == []


@pytest.mark.processes
def test_a_finished_crawl_is_run_again_if_one_says_so(scrapy: StartScrapy) -> None:
    with serving(pages=20) as site:
        assert scrapy(*crawl(site)).finishes()
        assert_each_page_was_asked_for_once(site)
        late = scrapy(*crawl(site))  # as systemd and Kubernetes start one
        assert late.finishes()
        assert "has ended, so there is nothing to do" in late.log
        assert_each_page_was_asked_for_once(site)
        assert scrapy(*crawl(site), "-s", "CRAWL_RUN=new").finishes()
        assert set(site.record(HOST).pages.values()) == {2}


@pytest.mark.processes
def test_an_interrupted_crawl_is_resumed(scrapy: StartScrapy, client: Redis) -> None:
    site = ClosedSite(answered=10)
    with in_a_thread(site):
        nodes = start_together(scrapy, client, 2, crawl(site), name="shared")
        wait_until(lambda: pages_asked_for(site) > 10)
        for node in nodes:
            node.interrupt()
        wait_until(lambda: all("shutting down gracefully" in node.log for node in nodes))
        site.open = True
        assert [node.wait() for node in nodes] == [1, 1]  # so that they are started again
        assert site.record(HOST).missed
        assert crawl_keys(client)
        site.latency = 0.0
        same = crawl(site, "-s", "CRAWL=shared")
        assert scrapy(*same, "-a", "max_pages=7").fails_with("max_pages is")
        client.hset("{crawl:shared}:run", "version", "1")
        assert scrapy(*same).fails_with("'shared' is in use by another version of this package")
        client.hset("{crawl:shared}:run", "version", VERSION)
        assert scrapy(*same).finishes()
        assert_each_page_was_asked_for_once(site)
    assert crawl_keys(client) == []


@pytest.mark.slow
def test_interrupted_twice_it_exits_with_status_1(scrapy: StartScrapy, client: Redis) -> None:
    with serving(latency=0.05) as site:
        node = scrapy(*crawl(site))
        wait_until(lambda: pages_asked_for(site) > 1)
        site.latency = 30.0
        wait_until(lambda: pages_asked_for(site) > 5)
        node.interrupt()
        wait_until(lambda: "shutting down gracefully" in node.log)
        node.interrupt()
        assert node.wait() == 1
        assert site.record(HOST).missed
    assert crawl_keys(client)


@pytest.mark.slow
def test_what_the_embedded_server_will_forget_is_said(scrapy: StartScrapy) -> None:
    with serving(latency=0.05) as site:
        node = scrapy(*crawl(site), url="")
        wait_until(lambda: pages_asked_for(site) > 1)
        node.interrupt()
        assert node.wait() == 1
    assert "The embedded server forgets the crawl" in node.log


@pytest.mark.processes
def test_a_crawl_that_was_lost_with_the_embedded_server_is_an_error(scrapy: StartScrapy) -> None:
    site = ClosedSite(answered=10)
    with in_a_thread(site):
        arguments = crawl(site, "-s", "CRAWL=shared", "-s", "SEMAPHORE_LEASE=3")
        nodes = [scrapy(*arguments, url="") for _ in range(2)]
        wait_until(lambda: all("joins the crawl" in node.log for node in nodes))
        wait_until(lambda: pages_asked_for(site) > 10)
        os.kill(embedded_pid(), signal.SIGKILL)
        lost = "The embedded server has lost the crawl 'shared'"
        wait_until(lambda: all(lost in node.log for node in nodes))
        site.open = True
        assert [node.fails_with(lost) for node in nodes] == [True, True]
        assert all("'finish_reason': 'crawl_lost'" in node.log for node in nodes)
        assert site.record(HOST).missed
        again = scrapy(*arguments, url="")  # as a supervisor would start it
        assert again.finishes()
        assert site.record(HOST).missed == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    ["TWISTED_REACTOR_ENABLED=False", "ASYNCIO_EVENT_LOOP=uvloop.Loop", "REDIS_URL="],
    ids=["without a reactor", "uvloop", "the embedded server"],
)
def test_it_crawls_with_any_loop(scrapy: StartScrapy, site: ExampleSite, setting: str) -> None:
    url = {"url": ""} if setting == "REDIS_URL=" else {}
    assert scrapy(*crawl(site, "-s", setting), **url).finishes()
    assert_each_page_was_asked_for_once(site)


def test_what_is_wrong_ends_the_crawl_before_it_starts(
    scrapy: StartScrapy, site: ExampleSite, server: RedisServer, client: Redis
) -> None:
    before = client.dbsize()
    stranger = server.url.replace("://", "://nobody:swordfish@")
    nowhere = f"redis://127.0.0.1:{free_port()}/0"
    late = (f"gave up on {nowhere} after SEMAPHORE_START_TIMEOUT (1.5 s): cannot reach {nowhere}",)
    bad_port = "-s", "REDIS_HOST=127.0.0.1", "-s", "REDIS_PORT=tcp://10.0.0.1:6379"
    nodes = [
        (scrapy(*crawl(site, "-a", "max_pages=all")), ("CRAWL_MAX_PAGES = 'all'",)),
        (scrapy(*crawl(site, *bad_port), url=""), ("REDIS_PORT = 'tcp://10.0.0.1:6379': allowed",)),
        (scrapy(*crawl(site, "-s", "ADDONS={}"), url=""), ("REDIS_URL is not set",)),
        (scrapy(*crawl(site, "-s", "SEMAPHORE_START_TIMEOUT=1.5"), url=nowhere), late),
        (scrapy(*crawl(site), url=stranger), ("does not accept this user name and password",)),
    ]
    assert [node.fails_with(*texts) for node, texts in nodes] == [True] * 5
    assert not [node for node, _ in nodes if "swordfish" in node.log]
    assert site.visits == []
    assert client.dbsize() == before


@pytest.mark.processes
def test_a_server_that_comes_late_is_waited_for(scrapy: StartScrapy, site: ExampleSite) -> None:
    # Nodes may start before the server is known to have nothing to recover.
    command = crawl(site, "-s", "SEMAPHORE_RECOVERY_WAIT=0")
    server = RedisServer(tcp_port=free_port())
    try:
        waiting, leaving = (scrapy(*command, url=server.tcp_url) for _ in range(2))
        for node in (waiting, leaving):
            wait_until(lambda: "The crawl's requests wait until" in node.log)  # noqa: B023
        leaving.interrupt()
        assert leaving.wait() == 1  # nobody knows what is left
        assert "Traceback" not in leaving.log
        server.start()
        assert waiting.finishes()
        assert_each_page_was_asked_for_once(site)
    finally:
        server.remove()
