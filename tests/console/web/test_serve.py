"""`scrapy semaphore serve`, as people start and end it."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from semaphore_middleware.frontier.client import CrawlClient
from tests.support.cli import semaphore_process
from tests.support.frontier import result_of
from tests.support.nodes import TIMEOUT_S, in_asyncio
from tests.support.paths import REPOSITORY
from tests.support.scrapy_process import start_scrapy
from tests.support.servers import RedisServer, wait_until

PAGE = (REPOSITORY / "docs" / "page.md").read_text("utf-8")
EXAMPLES = re.findall(r"```console\n\$ (.*)\n(.*)\n```", PAGE)


class Serving:
    """The command, which has told its address."""

    def __init__(self, server: RedisServer, directory: Path, *arguments: str, **env: str) -> None:
        self._output, self._errors = directory / "output", directory / "errors"
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self._process = start_scrapy(
                *("semaphore", "serve", "-s", f"SEMAPHORE_REDIS_URL={server.url}"),
                *("--port", "0", *arguments),
                cwd=directory,
                env={**os.environ, **env},
                stdout=output,
                stderr=errors,
            )
        ended = self._process.poll
        wait_until(lambda: self._output.read_text().endswith("\n") or ended() is not None)
        line = self._output.read_text()
        address = re.fullmatch(r"(http://127\.0\.0\.1:\d+/) \(Ctrl-C ends it\)\n", line)
        assert address, (line, self._errors.read_text())
        self.address = address[1]
        self.told = line

    def ends_at(self, number: int) -> tuple[int, str, str]:
        """Its exit status, and what it has written since it told its address."""
        self._process.send_signal(number)
        status = self._process.wait(TIMEOUT_S)
        more = self._output.read_text().removeprefix(self.told)
        return status, more, self._errors.read_text()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(TIMEOUT_S)


@contextmanager
def started(
    server: RedisServer, directory: Path, *arguments: str, **environment: str
) -> Iterator[Serving]:
    serving = Serving(server, directory, *arguments, **environment)
    try:
        yield serving
    finally:
        serving.kill()


def state(address: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{address}state.json", timeout=TIMEOUT_S) as answer:
        told: dict[str, Any] = json.load(answer)
        return told


def status_for(address: str, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    asked = urllib.request.Request(f"{address}token", method="POST", headers=headers)
    try:
        with urllib.request.urlopen(asked, timeout=TIMEOUT_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize(
    ("example", "how"), [(0, signal.SIGINT), (1, signal.SIGTERM)], ids=["plain", "with a token"]
)
def test_the_examples_of_docs_page_md_print_their_address_serve_and_end_cleanly(
    server: RedisServer, tmp_path: Path, example: int, how: signal.Signals
) -> None:
    line, said = EXAMPLES[example]
    words = shlex.split(line.replace("$(openssl rand -hex 16)", "secret"))
    begin = words.index("scrapy")
    assert words[begin : begin + 3] == ["scrapy", "semaphore", "serve"]
    environment = dict(word.split("=") for word in words[:begin])
    with started(server, tmp_path, *words[begin + 3 :], **environment) as serving:
        assert re.sub(r":\d+/", ":8379/", serving.told) == f"{said}\n"
        told = state(serving.address)
        assert (told["server"], told["can_change"]) == (server.url, example == 1)
        with urllib.request.urlopen(serving.address, timeout=TIMEOUT_S) as answer:
            assert b"<title>Semaphore</title>" in answer.read()
        assert serving.ends_at(how) == (0, "", "")
    assert server.members() == {}


def test_it_ends_though_the_server_is_away_and_somebody_looks(
    server: RedisServer, tmp_path: Path
) -> None:
    with started(server, tmp_path) as serving:
        server.kill()
        problem = str(state(serving.address)["problem"])
        assert problem.startswith("The Redis server does not answer: ")
        assert server.url in problem
        status, output, errors = serving.ends_at(signal.SIGINT)
        assert (status, output) == (0, "")
        assert errors.endswith("; trying again.\n")
        assert errors.count("\n") == 1


def test_shared_crawls_are_those_of_the_project_s_settings_and_changes_need_a_token(
    server: RedisServer, tmp_path: Path
) -> None:
    client = CrawlClient(server.url, "books", "node", prefix="mine")
    elsewhere = RedisServer().start()
    ours = ("-s", "CRAWL_PREFIX=mine", "-s", f"REDIS_URL={server.url}", "--token", "other")
    try:
        result_of(client.join())
        with started(elsewhere, tmp_path, *ours, SEMAPHORE_TOKEN="secret") as serving:
            told = state(serving.address)
            assert [crawl["name"] for crawl in told["crawls"]] == ["books"]
            assert (told["server"], told["can_change"]) == (elsewhere.url, True)
            assert status_for(serving.address, "other") == 204
            assert status_for(serving.address, "secret") == 403
        with started(server, tmp_path, *ours[:2], SEMAPHORE_TOKEN="secret") as serving:
            told = state(serving.address)
            assert [crawl["name"] for crawl in told["crawls"]] == ["books"]
            assert told["can_change"]
    finally:
        result_of(client.disconnect())
        elsewhere.remove()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--token", ""), "the token: allowed are letters, digits and signs, and no spaces"),
        (("--host", "203.0.113.1", "--port", "0"), "cannot listen on 203.0.113.1, port 0: "),
        (("--host", "a..example", "--port", "0"), "cannot listen on a..example, port 0: "),
        (("-s", "SEMAPHORE_REDIS_URL=unix:///nowhere"), "cannot reach unix:///nowhere: "),
    ],
)
@in_asyncio
async def test_what_keeps_it_from_serving_is_one_clear_line(
    server: RedisServer, arguments: tuple[str, ...], said: str
) -> None:
    ran = await semaphore_process(server, "serve", *arguments)
    assert (ran.status, ran.out) == (3 if "reach" in said else 2, "")
    assert ran.err.startswith(f"scrapy semaphore: {said}")
    assert ran.err.count("\n") == 1
