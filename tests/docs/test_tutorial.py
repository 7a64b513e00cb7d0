"""Each step of docs/tutorial.md, in its order: files are written, commands are run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lab.demo.site import ExampleSite
from tests.crawler.conftest import HOST, serving
from tests.docs.pages import Block, blocks, commands
from tests.support.servers import RedisServer
from tests.support.times import TIMEOUT_S

PAGES = 8
MACHINES = 3
ADDRESS = "redis://redis.example.internal:6379/0"
QUICK_S = 0.05  # for a page
SLOW_S = 4.0  # so that a crawl lasts until all nodes take part


@dataclass
class Reader:
    """Does what the tutorial says, with the test's site and server in place of those it names."""

    directory: Path
    site: ExampleSite
    server: RedisServer
    ran: list[tuple[str, list[str]]] = field(default_factory=list)
    """Commands, and what each printed on each machine."""

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
        if "crawl" in line:
            self.site.forget()
        self.site.latency = SLOW_S if machines > 1 else QUICK_S
        logs = [self.directory / f"machine-{n}.log" for n in range(machines)]
        started = [self._start(command, log) for command, log in zip(typed, logs, strict=True)]
        if machines > 1:  # each takes part before the others have finished
            while not all("Spider opened" in log.read_text() for log in logs):
                time.sleep(0.05)
                assert all(process.poll() in (None, 0) for process in started), line
            self.site.latency = QUICK_S
        statuses = [process.wait(TIMEOUT_S) for process in started]
        printed = [log.read_text() for log in logs]
        assert statuses == [0] * machines, printed
        self.ran.append((line, printed))
        if "crawl" in line:
            self._judge()

    def _start(self, command: str, log: Path) -> subprocess.Popen[bytes]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        with log.open("wb") as file:
            return subprocess.Popen(
                ["bash", "-euc", command],
                cwd=self.directory,
                env={**os.environ, "PATH": path},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def _judge(self) -> None:
        assert self.site.record(HOST).missed == []
        assert self.site.record(HOST).most <= 2


@pytest.fixture
def site() -> Iterator[ExampleSite]:
    with serving(PAGES, QUICK_S) as site:
        yield site


@pytest.mark.slow
def test_each_step_of_the_tutorial(tmp_path: Path, site: ExampleSite, server: RedisServer) -> None:
    reader = Reader(tmp_path, site, server)
    for block in blocks():
        if block.page == "docs/tutorial.md":
            reader.follow(block)
    assert len(reader.ran) == 9
    crawls = [printed for line, printed in reader.ran if "crawl pages" in line]
    assert "shares its limits with all nodes at unix://" in crawls[0][0]
    assert "(embedded: only for this user's crawls on this machine)" in crawls[0][0]
    assert f"shares its limits with all nodes at {server.url}." in crawls[1][0]
    assert [len(printed) for printed in crawls] == [1, 1, MACHINES, MACHINES]
    assert site.record(HOST).twice == [], "the nodes share one crawl"
    (rule,) = [shown for line, (shown, *_) in reader.ran if line.endswith("status example.com")]
    assert "0/1" in rule
    assert server.members() == {}
