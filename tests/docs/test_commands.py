"""Commands of the pages are run as they are written: those that crawl, and those of the README."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.demo.site import ExampleSite
from tests.crawler.conftest import HOST, in_a_thread
from tests.docs.pages import Command, blocks, commands
from tests.support.paths import REPOSITORY
from tests.support.servers import RedisServer
from tests.support.times import TIMEOUT_S

pytestmark = pytest.mark.slow

PAGES = 20
BIN = Path(sys.executable).parent
NOTHING_LEFT = re.compile(r"permits left\W+0\W+0\W")
COMMANDS = [
    command
    for block in blocks()
    if block.kind in ("indented", "console")
    for command in commands(block)
]
TO_RUN = [c for c in COMMANDS if c.line.startswith(("scrapy crawl site ", "make crawl"))]
RULE_COMMANDS = [  # in this order
    command
    for block in blocks()
    if (block.page, block.kind) == ("README.md", "indented")
    for command in commands(block)
    if command.line.startswith("scrapy semaphore ")
]


@dataclass(frozen=True, slots=True)
class Place:
    """An empty directory, a server, and a site in place of example.com, to run commands with."""

    directory: Path
    server: RedisServer
    site: ExampleSite
    user: str = ""
    """User and password, which stand before the server's address."""

    def run(self, line: str) -> str:
        """Run a command, which must succeed, and return what it prints."""
        line = line.replace("https://example.com", self.site.url)
        line = line.replace("SEMAPHORE_METRICS=9410", "SEMAPHORE_METRICS=0")
        if line.startswith("make"):  # with this environment, and a small site
            make = f"make -f {REPOSITORY}/Makefile -o {sys.prefix}/installed VENV={sys.prefix}"
            line = f"{make} PAGES={PAGES} LATENCY=10 {line.removeprefix('make')}"
        ran = subprocess.run(
            ["bash", "-euc", line],
            cwd=self.directory,
            env={
                **os.environ,
                "PATH": f"{BIN}:{os.environ['PATH']}",
                "PYTHONPATH": str(REPOSITORY),
                "REDIS_URL": self.server.url.replace("://", f"://{self.user}"),
                "SCRAPY_SETTINGS_MODULE": "crawler.settings",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout
        return ran.stdout


@pytest.fixture(scope="module")
def site() -> Iterator[ExampleSite]:
    site = ExampleSite(PAGES, latency=0)
    with in_a_thread(site):
        yield site


@pytest.fixture
def place(tmp_path: Path, server: RedisServer, site: ExampleSite) -> Place:
    site.forget()
    return Place(tmp_path, server, site)


@pytest.mark.parametrize("command", TO_RUN, ids=lambda command: command.name)
def test_command(command: Command, place: Place) -> None:
    printed = place.run(command.line)
    words = shlex.split(command.line)
    if words[0] == "make":
        assert NOTHING_LEFT.search(printed)
        assert bool(place.site.visits) == ("URL=https://example.com" in words)
        assert place.site.record(HOST).most <= 2
        return
    assert place.site.record(HOST).missed == place.site.record(HOST).twice == []
    assert place.site.record(HOST).most <= 4
    assert place.server.members() == {}
    if "-O" in words:
        lines = (place.directory / words[words.index("-O") + 1]).read_text().splitlines()
        assert len([json.loads(line) for line in lines]) == PAGES


def test_commands_of_readme_that_set_limits(place: Place) -> None:
    limited, reset, paused, resumed = [place.run(command.line) for command in RULE_COMMANDS]
    assert "limit 2, delay 0.5 s" in limited
    assert "nothing is set" in reset
    assert "all sites: paused" in paused
    assert "all sites: nothing is set" in resumed
