"""`scrapy semaphore serve`, as people start and end it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from semaphore_middleware.frontier.client import CrawlClient
from tests.support.frontier import result_of
from tests.support.nodes import TIMEOUT_S
from tests.support.paths import REPOSITORY
from tests.support.servers import RedisServer, free_port


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "scrapy", "semaphore", "serve", *arguments]


@contextmanager
def started(
    server: RedisServer, directory: Path, *arguments: str, **environment: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command, and the address that it prints."""
    process = subprocess.Popen(
        command("-s", f"SEMAPHORE_REDIS_URL={server.url}", "--port", "0", *arguments),
        cwd=directory,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = re.fullmatch(r"(http://127\.0\.0\.1:\d+/) \(Ctrl-C ends it\)\n", line)
        assert address, (line, process.communicate(timeout=TIMEOUT_S))
        yield process, address[1]
    finally:
        process.kill()
        process.communicate()


def state(address: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{address}state.json", timeout=TIMEOUT_S) as answer:
        told: dict[str, Any] = json.load(answer)
        return told


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_its_address_serves_and_ends_cleanly(
    server: RedisServer, tmp_path: Path, how: signal.Signals
) -> None:
    with started(server, tmp_path) as (process, address):
        told = state(address)
        assert (told["server"], told["can_change"]) == (server.url, False)
        with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:
            assert b"<title>Semaphore</title>" in answer.read()
        process.send_signal(how)
        output, errors = process.communicate(timeout=TIMEOUT_S)
        assert (process.returncode, output, errors) == (0, "", "")
    assert server.members() == {}


def test_it_ends_though_the_server_is_away_and_somebody_looks(
    server: RedisServer, tmp_path: Path
) -> None:
    with started(server, tmp_path) as (process, address):
        server.kill()
        problem = str(state(address)["problem"])
        assert problem.startswith("The Redis server does not answer: ")
        assert server.url in problem
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=TIMEOUT_S)
        assert (process.returncode, output) == (0, "")
        assert errors.endswith("; trying again.\n")
        assert errors.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["REDIS_URL", "SEMAPHORE_REDIS_URL"])
def test_shared_crawls_are_those_of_the_project_s_settings(
    server: RedisServer, tmp_path: Path, name: str
) -> None:
    joined = CrawlClient(server.url, "books", "node", prefix="mine")
    result_of(joined.join())
    try:
        options = ("-s", f"{name}={server.url}", "-s", "CRAWL_PREFIX=mine")
        with started(server, tmp_path, *options) as (_, address):
            assert [crawl["name"] for crawl in state(address)["crawls"]] == ["books"]
    finally:
        result_of(joined.disconnect())


def test_the_token_may_come_from_the_environment_or_the_command_line(
    server: RedisServer, tmp_path: Path
) -> None:
    for arguments, environment, token in (
        ((), {"SEMAPHORE_TOKEN": "secret"}, "secret"),
        (("--token", "other"), {"SEMAPHORE_TOKEN": "secret"}, "other"),
    ):
        with started(server, tmp_path, *arguments, **environment) as (_, address):
            assert state(address)["can_change"]
            asked = urllib.request.Request(
                f"{address}token", method="POST", headers={"Authorization": f"Bearer {token}"}
            )
            with urllib.request.urlopen(asked, timeout=TIMEOUT_S) as answer:
                assert answer.status == 204


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--port", "x"], 2, "--port x: allowed is an integer from 0 to 65535"),
        (["--port", "65536"], 2, "--port 65536: allowed is an integer from 0 to 65535"),
        (["--token", ""], 2, "the token: allowed are letters, digits and signs, and no spaces"),
        (["--host", "203.0.113.1", "--port", "0"], 2, "cannot listen on 203.0.113.1, port 0: "),
    ],
)
def test_a_bad_value_is_one_clear_line(
    server: RedisServer, tmp_path: Path, arguments: list[str], status: int, said: str
) -> None:
    run = subprocess.run(
        command("-s", f"SEMAPHORE_REDIS_URL={server.url}", *arguments),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (run.returncode, run.stdout) == (status, "")
    assert run.stderr.startswith(f"scrapy semaphore: {said}")
    assert run.stderr.count("\n") == 1


def test_a_server_that_cannot_be_reached_is_one_clear_line(tmp_path: Path) -> None:
    run = subprocess.run(
        command("-s", f"SEMAPHORE_REDIS_URL=redis://127.0.0.1:{free_port()}"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (run.returncode, run.stdout) == (3, "")
    assert run.stderr.startswith("scrapy semaphore: cannot reach redis://127.0.0.1:")
    assert run.stderr.count("\n") == 1


@pytest.mark.slow
def test_the_commands_of_its_documentation_do_what_they_say(
    server: RedisServer, tmp_path: Path
) -> None:
    text = (REPOSITORY / "docs" / "page.md").read_text("utf-8")
    examples = re.findall(r"```console\n\$ (.*)\n(.*)\n```", text)
    assert len(examples) == 2
    for line, said in examples:
        process = subprocess.Popen(
            # Its port may be another's on this machine.
            ["sh", "-c", f"exec env {line.replace('$(openssl rand -hex 16)', 'secret')} --port 0"],
            cwd=tmp_path,
            env={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "SEMAPHORE_REDIS_URL": server.url,
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            printed = process.stdout.readline().strip()
            assert re.sub(r":\d+/", ":8379/", printed) == said
            address = printed.partition(" ")[0]
            assert state(address)["can_change"] is ("SEMAPHORE_TOKEN" in line)
            process.send_signal(signal.SIGINT)
            assert process.wait(TIMEOUT_S) == 0
        finally:
            process.kill()
            process.communicate()
