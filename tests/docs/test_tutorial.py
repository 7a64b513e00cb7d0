"""Each step of docs/tutorial.md, in its order: files are written, commands are run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from crawler.example_site import ExampleSite
from tests.crawler.conftest import HOST, serving
from tests.docs.pages import Block, blocks, commands
from tests.support.servers import RedisServer

PAGES = 8
MACHINES = 3
ADDRESS = "redis://redis.example.internal:6379/0"
TIMEOUT_S = 60.0


@dataclass
class Reader:
    """Does what the tutorial says, with the test's site and server in place of those it names."""

    directory: Path
    site: ExampleSite
    server: RedisServer
    printed: dict[str, list[str]] = field(default_factory=dict)
    """By command: what it printed, on each machine."""

    def follow(self, block: Block) -> None:
        """Write a block's file, or run its commands."""
        if block.kind == "python":
            self._write(block.text)
        elif block.kind == "indented":
            for command in commands(block):
                self._type(command.line)

    def _here(self, text: str) -> str:
        text = text.replace("https://example.com/", self.site.url).replace("example.com", HOST)
        return text.replace(ADDRESS, self.server.url)

    def _write(self, text: str) -> None:
        (name,) = re.findall(r"\A# (\S+\.py)\n", text)
        with (self.directory / name).open("a") as file:  # settings grow from step to step
            file.write("\n" + self._here(text) + "\n")

    def _type(self, line: str) -> None:
        if line.startswith("cd "):
            self.directory /= line.removeprefix("cd ")
            return
        machines = MACHINES if "$(hostname)" in line else 1
        typed = [self._here(line.replace("$(hostname)", f"m{n}")) for n in range(machines)]
        self.site.judge.hosts.clear()
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        started = [
            subprocess.Popen(
                ["bash", "-euc", command],
                cwd=self.directory,
                env={**os.environ, "PATH": path},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for command in typed
        ]
        printed = [process.communicate(timeout=TIMEOUT_S)[0] for process in started]
        assert [process.returncode for process in started] == [0] * machines, printed
        self.printed[line] = printed
        if "crawl" in line:
            self._judge()

    def _judge(self) -> None:
        assert self.site.judge.missed(HOST) == []
        assert self.site.judge.record(HOST).most <= 2


@pytest.fixture
def site() -> Iterator[ExampleSite]:
    with serving(PAGES, 0.05) as site:
        yield site


@pytest.mark.slow
def test_each_step_of_the_tutorial(tmp_path: Path, site: ExampleSite, server: RedisServer) -> None:
    reader = Reader(tmp_path, site, server)
    for block in blocks():
        if block.page == "docs/tutorial.md":
            reader.follow(block)
    lines = list(reader.printed)
    assert len(lines) == 9

    first, *_, shared = [line for line in lines if "crawl pages" in line]
    (log,) = reader.printed[first]
    assert "shares its limits with all nodes at unix://" in log
    assert "(embedded: only for this user's crawls on this machine)" in log
    assert all("semaphore/acquired" in log for log in reader.printed[shared])
    assert site.judge.twice(HOST) == [], "the nodes share one crawl"
    assert "0/1" in reader.printed["scrapy semaphore status example.com"][0]
    assert server.members() == {}
