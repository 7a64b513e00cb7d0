"""`scrapy frontier`, as people type it; and Scrapy's own commands beside the shared scheduler."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from redis import Redis

from semaphore_middleware.frontier.client import NextStep
from semaphore_middleware.redis import embedded
from semaphore_middleware.redis.environment import URL_NAMES
from tests.crawler.conftest import serving
from tests.support.cli import Ran, semaphore
from tests.support.frontier import node
from tests.support.paths import REPOSITORY
from tests.support.scrapy_process import ScrapyProcess
from tests.support.servers import RedisServer


def typed(server: RedisServer, directory: Path, *arguments: str) -> tuple[int, str]:
    """The exit status of `scrapy ...` in the project `crawler`, and its output."""
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
    return process.wait(), process.log


def ran(server: RedisServer | None, *words: str, **environment: str) -> Ran:
    """`scrapy frontier ...`, in a thread: this one has a loop that runs."""
    command = semaphore(server, *words, environment=environment, command="frontier")
    with ThreadPoolExecutor() as threads:
        return threads.submit(asyncio.run, command).result()


def test_status_drop_and_retry(server: RedisServer, client: Redis, tmp_path: Path) -> None:
    none = f"There is no shared crawl at {server.url}, prefix 'crawl'.\n"
    assert ran(server, "status") == (0, none, "")
    one, two = node(client, "one", crawl="books"), node(client, "two", crawl="music")
    one.push(b"a", fingerprint="a")
    one.push(b"b", fingerprint="b")
    two.push(b"c")
    for _ in range(3):
        two.cannot_read(two.pop())
    assert two.idles().next_step is NextStep.CLOSE
    one.pop()
    # Keys that are not ours hide no crawl.
    client.set("{crawl:text}:run", "1", ex=60)
    client.hset("{crawl:text elsewhere}:run", "id", "1")
    client.set("{crawl:text elsewhere}:queue", "1")
    client.hset("{crawl:no number}:run", mapping={"id": "1", "pages": "many"})
    client.hset(b"{crawl:\xff}:run", "id", "1")
    status, shown = typed(server, tmp_path, "frontier", "status")
    assert status == 0
    assert [line.split() for line in shown.splitlines()[1:]] == [
        ["books", "running", "1", "1", "1", "1", "0", "2", "0"],
        ["music", "ended", *"000000", "1"],
    ]
    assert ran(server, "retry", "music") == (0, "music: 1 request is queued again.\n", "")
    assert ran(server, "drop", "books") == (0, "books is dropped.\n", "")
    assert two.size.queued == 1
    told = ran(server, "status", "nothing")
    assert told == (4, "", "scrapy frontier: there is no crawl 'nothing'\n")


def test_names_do_not_control_the_terminal(server: RedisServer, client: Redis) -> None:
    name, shown = "a\x1b[2J\n\udcff", r"a\x1b[2J\n\udcff"
    node(client, "one", crawl=name)
    said = []
    for words in (["status"], ["status", name], ["retry", name], ["drop", name]):
        told = ran(server, *words)
        assert told.status == 0
        said += told.lines
    assert [line.split()[0] for line in said] == [*("crawl", shown) * 2, f"{shown}:", shown]
    told = ran(server, "drop", f"{name}s")
    assert told == (4, "", f"scrapy frontier: there is no crawl '{shown}s'\n")


def test_it_finds_the_semaphore_s_server(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in URL_NAMES:
        monkeypatch.delenv(name, raising=False)
        assert ran(None, "status", "-s", f"{name}={server.url}").status == 0
        assert ran(None, "status", **{name: server.url}).status == 0
    monkeypatch.setattr(embedded, "find", lambda: server.url)
    assert ran(None, "status").status == 0
    monkeypatch.setattr(embedded, "find", lambda: None)
    said = (
        "scrapy frontier: no server's address is given (SEMAPHORE_REDIS_URL or REDIS_URL, in the "
        "settings, by -s, or in the environment), and no embedded server runs\n"
    )
    assert ran(None, "status") == (3, "", said)


def test_a_mistake_is_named_in_one_line(server: RedisServer) -> None:
    said = "scrapy frontier: unexpected 'b'; see scrapy frontier retry -h\n"
    assert ran(server, "retry", "a", "b", "c") == (2, "", said)


def test_scrapys_commands_share_nothing(server: RedisServer, client: Redis, tmp_path: Path) -> None:
    with serving(pages=3) as site:
        for command, printed in (
            ("fetch --nolog URL", "<title>Page 0</title>"),
            ("parse --nolog --spider=site -a url=URL --noitems URL", "/page/1>"),
            ("shell --nolog URL -c print(response.status,response.url)", "200 URL"),
        ):
            status, shown = typed(server, tmp_path, *command.replace("URL", site.url).split())
            assert status == 0
            assert printed.replace("URL", site.url) in shown
    assert list(client.scan_iter("{crawl:*")) == []
