"""`python -m lab.demo`: the run, its verdict, and its options."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis
from rich.console import Console

from lab.demo.__main__ import parser
from lab.demo.process import NodeProcess, NodeResult
from lab.demo.run import show_result
from lab.demo.site import Record
from lab.demo.verdict import CrawlResult, problems
from tests.crawler.conftest import serving
from tests.support.paths import REPOSITORY
from tests.support.servers import RedisServer, free_port, wait_until
from tests.support.shared_crawl import crawl_keys, looking_at
from tests.support.times import TIMEOUT_S

PAGES = "item_scraped_count"
SITE = Record(*(0, 4, Counter({"/": 303})), robots=1, forbidden=0, seconds=8.0, missed=[], twice=[])
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
"""Stats of requests that are not faults of a site."""


def elsewhere(stats: Mapping[str, Any]) -> CrawlResult:
    """A crawl of another site than the example site: one node has these stats, too."""
    return replace(GOOD, site=None, nodes=[replace(NODE, stats={**NODE.stats, **stats})])


def shown(result: CrawlResult) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    assert show_result(result, console) == bool(problems(result))
    return console.export_text()


LIMIT_BROKEN = replace(SITE, most=5, missed=["/1", "/2"], twice=["/"], forbidden=1)
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


class Demo(subprocess.Popen[bytes]):
    """`python -m lab.demo` with these arguments, in the test's own directory."""

    def __init__(self, directory: Path, arguments: tuple[str, ...], redis_url: str) -> None:
        self._log_file = directory / "demo.log"
        here = {"PYTHONPATH": str(REPOSITORY), "SCRAPY_SETTINGS_MODULE": "crawler.settings"}
        with self._log_file.open("wb") as log:
            super().__init__(
                [sys.executable, "-m", "lab.demo", *arguments],
                cwd=directory,
                env={**os.environ, **here, "REDIS_URL": redis_url},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def log(self) -> str:
        return self._log_file.read_text()


StartDemo = Callable[..., Demo]


@pytest.fixture
def demo(tmp_path: Path, redis_url: str) -> Iterator[StartDemo]:
    started: list[Demo] = []

    def start(*arguments: str) -> Demo:
        started.append(Demo(tmp_path, arguments, redis_url))
        return started[-1]

    yield start
    for process in started:
        process.terminate()  # it ends its nodes, if it has not ended
        process.wait(TIMEOUT_S)


@pytest.fixture
def client(server: RedisServer) -> Iterator[Redis]:
    """The test's own connection to the server."""
    with looking_at(server) as client:
        yield client


@pytest.mark.processes
def test_a_run_over_the_example_site_passes(demo: StartDemo, client: Redis) -> None:
    small = ("--nodes", "2", "--pages", "20", "--latency", "20", "--limit", "", "--url", "")
    run = demo(*small)
    assert run.wait(TIMEOUT_S) == 0
    assert "pages of all nodes" in run.log
    assert "at most 200.0" in run.log  # the default limit of 4, in 20 ms
    assert crawl_keys(client) == []


@pytest.mark.slow
def test_a_run_without_the_semaphore_exceeds_the_limit(demo: StartDemo) -> None:
    run = demo("--pages", "80", "--latency", "50", "-s", "SEMAPHORE_ENABLED=False")
    assert run.wait(TIMEOUT_S) == 1
    assert "✗ limit 4 was exceeded" in run.log


@pytest.mark.slow
def test_another_site_can_be_crawled_unless_it_is_down(demo: StartDemo) -> None:
    with serving(pages=20) as site:
        run = demo("--nodes", "2", "--pages", "10", "--url", site.url)
        assert run.wait(TIMEOUT_S) == 0, run.log
        assert site.record("127.0.0.1").pages.total() == 10
    assert "missed" not in run.log
    run = demo("--nodes", "2", "--url", f"http://127.0.0.1:{free_port()}/")
    assert run.wait(TIMEOUT_S) == 1
    assert "✗ no pages were fetched" in run.log
    assert "✗ the site did not respond: " in run.log


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_an_interrupted_run_stops(demo: StartDemo, client: Redis, number: int) -> None:
    run = demo("--nodes", "2", "--latency", "200")
    wait_until(lambda: re.search("[1-4]/4 permits held", run.log))
    run.send_signal(number)
    assert run.wait(TIMEOUT_S) == 130
    assert run.log.endswith("Interrupted.\n") == (number == signal.SIGINT)
    assert crawl_keys(client) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--nodes 0", "--nodes: 0: a whole number from 1"),
        ("--limit 2.5", "--limit: 2.5: a whole number from 1"),
        ("--latency -1", "--latency: -1: a whole number from 0"),
        ("--pages all", "--pages: all: a whole number from 1"),
        ("--url example.com", "--url: 'example.com' does not begin with http:// or https://"),
        ("-s NAME", "--set: 'NAME' is not NAME=VALUE"),
        ("more", "unrecognized arguments: more"),
    ],
)
def test_a_bad_option(capsys: pytest.CaptureFixture[str], options: str, message: str) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(options.split())
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
