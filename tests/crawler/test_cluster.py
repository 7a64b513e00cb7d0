"""`scrapy cluster`: the run, its verdict, and its options."""

from __future__ import annotations

import argparse
import io
import json
import re
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis
from rich.console import Console
from scrapy.exceptions import UsageError
from scrapy.settings import Settings

from crawler.cluster.process import NodeProcess, NodeResult
from crawler.cluster.run import show_result
from crawler.cluster.verdict import CrawlResult, SiteResult, problems
from crawler.commands.cluster import Command
from tests.crawler.conftest import StartScrapy, serving
from tests.support.crawls import Patch
from tests.support.servers import free_port, wait_until
from tests.support.shared_crawl import crawl_keys

PAGES = "item_scraped_count"
SITE = SiteResult(most=4, requests=304, seconds=8.0, missed=0, twice=0, forbidden=0)
NODE = NodeResult(
    "node-1",
    {
        PAGES: 300,
        "elapsed_time_seconds": 10.0,
        "semaphore/acquired": 300,
        "semaphore/wait_seconds": 600.0,
        "semaphore/wait_seconds_max": 5.5,
        "semaphore/scope/a/b.com/acquired": 300,
    },
)
GOOD = CrawlResult("http://a/[/x]", limit=4, latency=0.1, nodes=[NODE], permits_left=0, site=SITE)
STATUS = "downloader/response_status_count"
FAILURE = "downloader/exception_type_count"
SAYS_NOTHING = {
    f"{STATUS}/200": 300,
    f"{STATUS}/404": 1,  # it has no robots.txt
    "robotstxt/response_status_count/404": 1,
    f"{FAILURE}/scrapy.exceptions.IgnoreRequest": 2,
    f"{FAILURE}/semaphore_middleware.errors.PermitLostError": 2,
}
"""Of a site."""


def elsewhere(stats: Mapping[str, Any]) -> CrawlResult:
    """A crawl of another site than the example site: one node has these stats, too."""
    return replace(GOOD, site=None, nodes=[replace(NODE, stats={**NODE.stats, **stats})])


def shown(result: CrawlResult) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    assert show_result(result, console) == bool(problems(result))
    return console.export_text()


LIMIT_BROKEN = replace(SITE, most=5, missed=2, twice=1, forbidden=1)
FAILED = [NodeResult("node-1", {}, "[/y] failed")]


@pytest.mark.parametrize(
    ("result", "found"),
    [
        (GOOD, []),
        (
            replace(GOOD, site=LIMIT_BROKEN),
            [
                "limit 4 was exceeded: 5 requests at once",
                *("pages missed: 2", "pages fetched twice: 1"),
                "requests forbidden by robots.txt: 1",
            ],
        ),
        (
            replace(GOOD, nodes=FAILED, permits_left=3),
            [
                *("node-1 failed: [/y] failed", "no pages were fetched"),
                "permits left on the server: 3",
            ],
        ),
        (
            elsewhere({f"{STATUS}/503": 7, f"{STATUS}/404": 2, f"{STATUS}/500": 1}),
            [
                "the site refused requests: 503 (7 times)",
                "the site answered with errors: 404 (2 times), 500 (once)",
            ],
        ),
        (
            elsewhere({"robotstxt/forbidden": 1, PAGES: 0}),
            ["no pages were fetched: robots.txt forbids them (1)"],
        ),
        (elsewhere(SAYS_NOTHING), []),
    ],
)
def test_each_broken_promise_is_a_problem(result: CrawlResult, found: list[str]) -> None:
    assert problems(result) == found
    text = shown(result)
    assert all(f"✗ {problem}" in text for problem in found)


def test_the_table_shows_measured_and_expected() -> None:
    text = shown(GOOD)
    for part in ("http://a/[/x], 1 nodes", "300", "at most 4", "38.0", "at most 40.0", "2.00 s"):
        assert part in text
    text = shown(elsewhere({f"{STATUS}/429": 5, f"{STATUS}/503": 6}))
    assert re.search(r"requests refused \(429, 503\)\W+11\W+0\W", text)
    assert not re.search("at most|missed", text)
    assert "wait" not in shown(replace(GOOD, nodes=[NodeResult("node-1", {PAGES: 3})]))
    assert NODE.scopes == ["a/b.com"]


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("", "its log is empty"),
        ("one\ntwo\n\n", "two"),
        ("a\n10:00 [x] ERROR: first\n10:01 [x] CRITICAL: second\nb", "10:01 [x] CRITICAL: second"),
    ],
)
def test_a_failed_node_is_reported_with_its_last_error(tmp_path: Path, log: str, line: str) -> None:
    node = NodeProcess("node-1", tmp_path)
    node._process = SimpleNamespace(returncode=1)  # type: ignore[assignment]
    node.log.write_text(log)
    assert node.result().error == f"exit status 1, left no stats: {line}"
    (tmp_path / "node-1.json").write_text(json.dumps({"finish_reason": "shutdown"}))
    assert node.result().error == f"exit status 1, shutdown: {line}"
    assert node.result().pages == 0


def test_a_run_over_the_example_site_passes(scrapy: StartScrapy, client: Redis) -> None:
    small = ("--nodes", "2", "--pages", "20", "--latency", "20", "--limit", "", "--url", "")
    run = scrapy("cluster", *small)
    assert run.wait() == 0
    assert "pages of all nodes" in run.log
    assert "at most 200.0" in run.log  # the default limit of 4, in 20 ms
    assert crawl_keys(client) == []


@pytest.mark.slow
def test_a_run_without_the_semaphore_exceeds_the_limit(scrapy: StartScrapy) -> None:
    run = scrapy("cluster", "--pages", "80", "--latency", "50", "-s", "SEMAPHORE_ENABLED=False")
    assert run.wait() == 1
    assert "✗ limit 4 was exceeded" in run.log


@pytest.mark.slow
def test_another_site_can_be_crawled_unless_it_is_down(scrapy: StartScrapy) -> None:
    with serving(pages=20) as site:
        run = scrapy("cluster", "--nodes", "2", "--pages", "10", "--url", site.url)
        assert run.wait() == 0, run.log
        assert site.judge.record("127.0.0.1").pages.total() == 10
    assert "missed" not in run.log
    run = scrapy("cluster", "--nodes", "2", "--url", f"http://127.0.0.1:{free_port()}/")
    assert run.wait() == 1
    assert "✗ no pages were fetched" in run.log
    assert "✗ the site did not respond: " in run.log


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_an_interrupted_run_stops(scrapy: StartScrapy, client: Redis, number: int) -> None:
    run = scrapy("cluster", "--nodes", "2", "--latency", "200")
    wait_until(lambda: re.search("[1-4]/4 permits held", run.log))
    run.send(number)
    assert run.wait() == 130
    assert run.log.endswith("Interrupted.\n") == (number == signal.SIGINT)
    assert crawl_keys(client) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--nodes 0", "--nodes 0: a whole number from 1"),
        ("--limit 2.5", "--limit 2.5: a whole number from 1"),
        ("--latency -1", "--latency -1: a whole number from 0"),
        ("--pages all", "--pages all: a whole number from 1"),
        ("--url example.com", "--url: url 'example.com'"),
        ("--server http://localhost", "--server: the server's URL: not a server's address"),
        ("more", "unexpected argument 'more'"),
    ],
)
def test_a_bad_option(monkeypatch: Patch, tmp_path: Path, options: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    command = Command()
    command.settings = Settings()
    parser = argparse.ArgumentParser()
    command.add_options(parser)
    opts, args = parser.parse_known_args(options.split())
    with pytest.raises(UsageError, match=re.escape(message)):
        command.run(args, opts)
    assert list(tmp_path.iterdir()) == []
