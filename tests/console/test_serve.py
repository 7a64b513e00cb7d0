"""`scrapy semaphore serve`, as people start and end it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import listening, semaphore_process
from tests.support.paths import REPOSITORY
from tests.support.servers import RedisServer
from tests.support.times import TIMEOUT_S

SERVE = ("serve", "--port", "0")
PAGE = (REPOSITORY / "docs" / "page.md").read_text("utf-8")
EXAMPLES = re.findall(r"```console\n\$ (.*)\n(.*)\n```", PAGE)


def read(address: str, path: str = "", token: str = "") -> tuple[int, bytes]:
    """Status and body; with a token, of a POST."""
    headers, method = {"Authorization": f"Bearer {token}"}, "POST" if token else "GET"
    asked = urllib.request.Request(address + path, method=method, headers=headers)
    try:
        with urllib.request.urlopen(asked, timeout=TIMEOUT_S) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, b""


def state(address: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(read(address, "state.json")[1])
    return told


@pytest.mark.parametrize(
    ("example", "how"), [(0, signal.SIGINT), (1, signal.SIGTERM)], ids=["plain", "with a token"]
)
def test_the_examples_of_docs_page_md_print_their_address_serve_and_end_cleanly(
    server: RedisServer, tmp_path: Path, example: int, how: signal.Signals
) -> None:
    line, said = EXAMPLES[example]
    words = shlex.split(line.replace("$(openssl rand -hex 16)", 16 * "ab"))
    begin = words.index("scrapy")
    assert words[begin : begin + 3] == ["scrapy", "semaphore", "serve"]
    environment = dict(word.split("=") for word in words[:begin])
    with listening(server, tmp_path, *SERVE, *words[begin + 3 :], **environment) as (
        process,
        address,
    ):
        log = process.log
        assert re.sub(r":\d+/", ":8379/", log) == f"{said}\n"
        told = state(address)
        assert (told["server"], told["can_change"]) == (server.url, example == 1)
        assert b"<title>Semaphore</title>" in read(address)[1]
        process.send(how)
        assert (process.wait(), process.log) == (0, log)


def test_it_ends_though_the_server_is_away(server: RedisServer, tmp_path: Path) -> None:
    with listening(server, tmp_path, *SERVE) as (process, address):
        server.kill()
        problem = str(state(address)["problem"])
        assert problem.startswith("The Redis server does not answer: ")
        assert server.url in problem
        process.send(signal.SIGINT)
        assert process.wait() == 0
        assert process.log.endswith("; trying again.\n")
        assert process.log.count("\n") == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        *(
            (
                ("--token", token),
                "the token: allowed are at least 16 letters, digits and signs, without",
            )
            for token in ("a token with spaces", "15-characters-1")
        ),
        (("--port", "65536"), "--port 65536: allowed is an integer from 0 to 65535"),
        (("--host", "203.0.113.1", "--port", "0"), "cannot listen on 203.0.113.1, port 0: "),
        (("--host", "a..example", "--port", "0"), "cannot listen on a..example, port 0: "),
        (("-s", "SEMAPHORE_REDIS_URL=unix:///nowhere"), "cannot reach unix:///nowhere: "),
    ],
)
async def test_what_keeps_it_from_serving_is_one_clear_line(
    server: RedisServer, arguments: tuple[str, ...], said: str
) -> None:
    ran = await semaphore_process(server, "serve", *arguments)
    assert (ran.status, ran.out) == (3 if "reach" in said else 2, "")
    assert ran.err.startswith(f"scrapy semaphore: {said}")
    assert ran.err.count("\n") == 1


async def test_without_aiohttp_it_says_what_to_install(server: RedisServer, tmp_path: Path) -> None:
    (tmp_path / "aiohttp.py").write_text("raise ImportError")
    new = await asyncio.create_subprocess_exec(  # not forked: Scrapy, there, has imported aiohttp
        *(sys.executable, "-m", "scrapy", "semaphore", "serve", "--port", "0"),
        env=os.environ | {"PYTHONPATH": str(tmp_path), "SEMAPHORE_REDIS_URL": server.url},
        stderr=subprocess.PIPE,
    )
    _, err = await asyncio.wait_for(new.communicate(), TIMEOUT_S)
    needs = "this needs aiohttp: pip install 'scrapy-semaphore[commands]'"
    assert (new.returncode, err.decode()) == (2, f"scrapy semaphore: {needs}\n")
