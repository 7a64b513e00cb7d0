"""docs/examples: each Scrapy project there is crawled as its README.md says, by real processes.

The test's site is their proxy, so they find it under the name of its host. test_recipes.py runs the
programs without Scrapy.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab.demo.site import ExampleSite
from tests.crawler.conftest import serving
from tests.docs.pages import page
from tests.support.paths import REPOSITORY
from tests.support.scrapy_process import ScrapyProcess
from tests.support.servers import RedisServer, free_port, wait_until

pytestmark = pytest.mark.slow

EXAMPLES = REPOSITORY / "docs" / "examples"
SECTIONS = dict(
    re.findall(r"^## (.+)\n((?:(?!^## ).*\n)+)", page("docs/examples/README.md"), re.MULTILINE)
)
PAGES = 12
FIRST = "/"
"""Fetched once more when a page links to it, as Scrapy does not filter start requests."""
HOST, START = "example.com", "http://example.com/"
ITEMS, START_KEY = "books:items", "shop:start_urls"


def commands_of(example: str) -> list[list[str]]:
    """The arguments of its commands `scrapy ...`."""
    lines = re.findall(r"^    scrapy (.+)$", SECTIONS[example], re.MULTILINE)
    return [shlex.split(line) for line in lines]


@pytest.fixture
def tcp_server() -> Iterator[RedisServer]:
    """A server with a port, for settings that name one."""
    with RedisServer(tcp_port=free_port()) as server:
        yield server


@pytest.fixture
def site() -> Iterator[ExampleSite]:
    with serving(PAGES, latency=0.02) as site:
        yield site


@contextmanager
def running(
    example: str, nodes: list[list[str]], directory: Path, server: RedisServer, site: ExampleSite
) -> Iterator[list[ScrapyProcess]]:
    """Copy a project, for this server and this site, and run these commands in it at once."""
    shutil.copytree(EXAMPLES / example, directory, dirs_exist_ok=True)
    here = {
        "redis.example.internal:6379": server.address,
        'REDIS_HOST = "redis.example.internal"': f'REDIS_URL = "{server.tcp_url}"',
        "https://example.com": "http://example.com",
    }
    for path in directory.rglob("*.py"):
        text = path.read_text("utf-8")
        for there, replacement in here.items():
            text = text.replace(there, replacement)
        path.write_text(text)
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                ScrapyProcess(
                    *(argument.replace("$$", str(number)) for argument in arguments),
                    directory=directory,
                    log_file=directory / f"{number}.log",
                    http_proxy=site.url,
                )
            )
            for number, arguments in enumerate(nodes)
        ]


def test_three_nodes_of_two_spiders_hold_one_limit(
    tmp_path: Path, tcp_server: RedisServer, site: ExampleSite
) -> None:
    nodes = commands_of("two-spiders")
    with running("two-spiders", nodes, tmp_path, tcp_server, site) as processes:
        assert [process.wait() for process in processes] == [0, 0, 0], processes[0].log
    assert len(processes) == 3
    assert site.record(HOST).most == 2
    fetched = site.record(HOST).pages
    assert len(fetched) == PAGES
    assert {fetched[path] for path in fetched if path != FIRST} == {2}, "once for each spider"
    for spider in ("titles", "links"):
        lines = [line for path in tmp_path.glob(f"{spider}-*.jsonl") for line in path.open()]
        assert len({json.loads(line)["url"] for line in lines}) == PAGES


@pytest.mark.parametrize("side", ["before", "after"])
def test_nodes_crawl_what_a_key_of_scrapy_redis_holds(
    tmp_path: Path, tcp_server: RedisServer, site: ExampleSite, side: str
) -> None:
    pytest.importorskip("scrapy_redis")
    crawl, end = commands_of("scrapy-redis")
    client: Any
    with tcp_server.client() as client:

        def found() -> set[str]:
            return {json.loads(item)["url"] for item in client.lrange(ITEMS, 0, -1)}

        with running(f"scrapy-redis/{side}", 2 * [crawl], tmp_path, tcp_server, site) as nodes:
            wait_until(lambda: all("Spider opened" in node.log for node in nodes))
            client.lpush(START_KEY, json.dumps({"url": START}))
            wait_until(lambda: len(found()) == PAGES)
            if side == "after":
                with running("scrapy-redis/after", [end], tmp_path / "end", tcp_server, site) as (
                    command,
                ):
                    assert command.wait() == 0, command.log
                assert [node.wait() for node in nodes] == [0, 0], nodes[0].log
                assert site.record(HOST).most <= 2
    assert site.record(HOST).missed == []
    assert {*site.record(HOST).twice} <= {FIRST}


def test_scrapy_redis_after_is_what_the_page_on_migration_says() -> None:
    (diff,) = re.findall(r"```diff\n # settings.py\n(.*?)```", page("docs/migrating.md"), re.DOTALL)
    before, after = (
        page(f"docs/examples/scrapy-redis/{side}/shop/settings.py") for side in ("before", "after")
    )
    lines = diff.splitlines(keepends=True)
    removed = "".join(line[1:] for line in lines if line[0] != "+")
    added = "".join(line[1:] for line in lines if line[0] != "-")
    assert before.count(removed) == 1
    assert after == before.replace(removed, added)


def test_each_example_is_run() -> None:
    assert SECTIONS.keys() == {path.name for path in EXAMPLES.iterdir() if path.is_dir()}
    assert SECTIONS.keys() == {"two-spiders", "scrapy-redis", "httpx", "celery"}
