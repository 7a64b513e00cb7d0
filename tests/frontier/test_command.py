"""`scrapy frontier`, as people type it; and Scrapy's own commands beside the shared scheduler."""

from __future__ import annotations

import os
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from redis import Redis
from scrapy.settings import Settings

from semaphore_middleware.frontier.client import NextStep
from semaphore_middleware.frontier.commands.frontier import Command
from semaphore_middleware.redis import embedded
from semaphore_middleware.redis.environment import URL_NAMES
from tests.crawler.conftest import serving
from tests.support.frontier import node
from tests.support.paths import REPOSITORY
from tests.support.scrapy_process import ScrapyProcess
from tests.support.servers import RedisServer

Captured = pytest.CaptureFixture[str]


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


def ran(server: RedisServer, *words: str, named_by: str = "REDIS_URL") -> int:
    """The exit status of `scrapy frontier ...`, in a thread: this one has a loop that runs."""
    command = Command()
    command.settings = Settings({named_by: server.url})
    with ThreadPoolExecutor() as threads:
        threads.submit(command.run, list(words), Namespace()).result()
    return command.exitcode


def test_status_drop_and_retry(
    server: RedisServer, client: Redis, tmp_path: Path, capsys: Captured
) -> None:
    assert ran(server, "status") == 0
    assert capsys.readouterr().out == (
        f"There is no shared crawl at {server.url}, prefix 'crawl'.\n"
    )
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
    assert [ran(server, "retry", "music"), ran(server, "drop", "books")] == [0, 0]
    assert capsys.readouterr().out == "music: 1 request is queued again.\nbooks is dropped.\n"
    assert two.size.queued == 1
    assert ran(server, "status", "nothing") == 4
    assert capsys.readouterr().err == "scrapy frontier: there is no crawl 'nothing'\n"


def test_names_do_not_control_the_terminal(
    server: RedisServer, client: Redis, capsys: Captured
) -> None:
    name, shown = "a\x1b[2J\n\udcff", r"a\x1b[2J\n\udcff"
    node(client, "one", crawl=name)
    for words in (["status"], ["status", name], ["retry", name], ["drop", name]):
        assert ran(server, *words) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said] == [*("crawl", shown) * 2, f"{shown}:", shown]
    assert ran(server, "drop", f"{name}s") == 4
    assert capsys.readouterr().err == f"scrapy frontier: there is no crawl '{shown}s'\n"


def test_without_an_address_it_is_the_semaphore_s_server(
    server: RedisServer, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in URL_NAMES:
        monkeypatch.delenv(name, raising=False)
    assert ran(server, "status", named_by="SEMAPHORE_REDIS_URL") == 0
    monkeypatch.setenv("SEMAPHORE_REDIS_URL", server.url)
    assert ran(server, "status", named_by="OTHER") == 0
    monkeypatch.delenv("SEMAPHORE_REDIS_URL")
    monkeypatch.setattr(embedded, "find", lambda: server.url)
    assert ran(server, "status", named_by="OTHER") == 0
    capsys.readouterr()
    monkeypatch.setattr(embedded, "find", lambda: None)
    assert ran(server, "status", named_by="OTHER") == 3
    assert capsys.readouterr().err == (
        "scrapy frontier: no server's address is given (REDIS_URL or SEMAPHORE_REDIS_URL, in the "
        "settings, by -s, or in the environment), and no embedded server runs\n"
    )


def test_a_mistake_is_named_in_one_line(server: RedisServer, capsys: Captured) -> None:
    assert ran(server, "retry", "a", "b", "c") == 2
    said = "scrapy frontier: unrecognized arguments: b c; see scrapy frontier -h\n"
    assert capsys.readouterr() == ("", said)


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
