"""`scrapy frontier`, as people type it; and Scrapy's own commands beside the shared scheduler."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from redis import Redis

from semaphore_middleware.frontier.client import NextStep
from tests.crawler.conftest import serving
from tests.frontier.verbs import node, pop, push
from tests.support.frontier import crawl_keys, result_of
from tests.support.paths import REPOSITORY
from tests.support.scrapy_process import ScrapyProcess
from tests.support.servers import RedisServer


def typed(server: RedisServer, directory: Path, *arguments: str) -> tuple[int, list[str]]:
    """The exit status of `scrapy ...` in the project `crawler`, and the lines of its output."""
    process = ScrapyProcess(
        *arguments,
        directory=directory,
        log_file=directory / "output",
        environment={
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "SCRAPY_SETTINGS_MODULE": "crawler.settings",
            "REDIS_URL": server.url,
        },
    )
    return process.wait(), process.log.splitlines()


def test_status_drop_and_retry(server: RedisServer, client: Redis, tmp_path: Path) -> None:
    one, two = node(client, "one", crawl="books"), node(client, "two", crawl="music")
    push(one, b"a", fingerprint="a")
    push(one, b"b", fingerprint="b")
    push(two, b"c")
    for _ in range(3):
        result_of(two.sync(unreadable=[pop(two).place]))
    assert two.idles().next_step is NextStep.CLOSE
    pop(one)
    _, shown = typed(server, tmp_path, "frontier", "status")
    assert [line.split() for line in shown[1:]] == [
        ["books", "running", "1", "1", "1", "1", "0", "2", "0"],
        ["music", "ended", *"000000", "1"],
    ]
    assert typed(server, tmp_path, "frontier", "retry", "music") == (
        0,
        ["music: 1 requests are queued again."],
    )
    assert two.size.queued == 1
    assert typed(server, tmp_path, "frontier", "drop", "books") == (0, ["books is dropped."])
    status, shown = typed(server, tmp_path, "frontier", "status", "nothing")
    assert (status, shown) == (4, ["scrapy frontier: there is no crawl 'nothing'"])


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        (("fetch", "--nolog", "URL"), "<title>Page 0</title>"),
        (("parse", "--nolog", "--spider=site", "-a", "url=URL", "--noitems", "URL"), "/page/1>"),
        (("shell", "--nolog", "URL", "-c", "print(response.status, response.url)"), "200 URL"),
    ],
)
def test_scrapys_own_commands_share_nothing(
    server: RedisServer, client: Redis, tmp_path: Path, command: tuple[str, ...], printed: str
) -> None:
    with serving(pages=3) as site:
        line = [part.replace("URL", site.url) for part in command]
        status, shown = typed(server, tmp_path, *line)
        assert status == 0
        assert printed.replace("URL", site.url) in "\n".join(shown)
    assert crawl_keys(client) == []
    assert list(client.scan_iter("{crawl:*")) == []
