"""Each command in the pages is run here, or by a test named here, or there is a reason why not."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from crawler.example_site import ExampleSite
from tests.crawler.conftest import HOST, in_a_thread
from tests.docs.pages import Command, blocks, commands, page
from tests.support.paths import REPOSITORY
from tests.support.servers import RedisServer

COMMAND_TIMEOUT_S = 60.0
PAGES = 20
BIN = Path(sys.executable).parent

RUN_HERE = ("scrapy crawl site ", "make crawl", "python -m pydoc ")
LIVE = "scrapy semaphore (watch|serve)$"  # these run until they are interrupted
RUN_BY = {  # page -> the beginning of its commands, and the test that runs them
    "README.md": (LIVE, "tests/console/cli/test_watch.py"),
    "docs/commands.md": ("scrapy semaphore ", "tests/console/cli/test_docs_commands.py"),
    "docs/tutorial.md": (".*", "tests/docs/test_tutorial.py"),
    "docs/page.md": ("(.*=.* )?scrapy semaphore serve", "tests/console/web/test_serve.py"),
}
NOT_RUN = {  # beginning of a command -> why it is not run
    "make test": "it would run itself",
    "pip install ": "tests/test_package.py installs; a test compares the names with pyproject.toml",
    r"(\w+=\S+ )*docker compose ": (
        "it needs containers and root: `make compose-test` does what these do, and "
        "tests/compose/test_files.py checks that what they name is there"
    ),
    "ssh ": "it needs another machine",
    "systemctl ": "it needs root and a running systemd; the unit is checked by test_machines.py",
    "journalctl ": "it needs a running systemd",
    "for host in crawler-1 ": "it needs daemons of Scrapyd on other machines",
}
SHOWN = (  # beginnings of blocks that are no commands
    "measured       expected",
    "redis://redis.internal:6379/0        5 scopes",
    "addon → middleware",
    "example.com: a request has waited 61 s",
)


def all_commands() -> list[Command]:
    return [
        command
        for block in blocks()
        if block.kind in ("indented", "console") and not block.text.strip().startswith(SHOWN)
        for command in commands(block)
    ]


def why_not_here(command: Command) -> str:
    beginning, test = RUN_BY.get(command.page, ("", ""))
    if test and re.match(beginning, command.line):
        return f"{test} runs it"
    return next((why for what, why in NOT_RUN.items() if re.match(what, command.line)), "")


NOTHING_LEFT = re.compile(r"permits left\W+0\W+0\W")
TO_RUN = [command for command in all_commands() if command.line.startswith(RUN_HERE)]
RULE_COMMANDS = [  # in this order
    command
    for command in all_commands()
    if command.page == "README.md"
    and command.line.startswith("scrapy semaphore ")
    and not re.match(LIVE, command.line)
]


# A place to run them --------------------------------------------------------------------------


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
        ran = subprocess.run(
            ["bash", "-euc", self._here(line)],
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
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout
        return ran.stdout

    def _here(self, line: str) -> str:
        line = line.replace("https://example.com", self.site.url)
        line = line.replace("SEMAPHORE_METRICS_PORT=9410", "SEMAPHORE_METRICS_PORT=0")
        if line.startswith("make"):  # with this environment, and a small site
            make = f"make -f {REPOSITORY}/Makefile -o {sys.prefix}/installed VENV={sys.prefix}"
            line = f"{make} PAGES={PAGES} LATENCY=10 {line.removeprefix('make')}"
        return line


@pytest.fixture(scope="module")
def site() -> Iterator[ExampleSite]:
    site = ExampleSite(PAGES, latency=0)
    with in_a_thread(site):
        yield site


@pytest.fixture
def place(tmp_path: Path, server: RedisServer, site: ExampleSite) -> Place:
    (tmp_path / "start-urls.txt").write_text(f"# one a line\n{site.url}\n")
    site.judge.hosts.clear()
    return Place(tmp_path, server, site)


def test_commands_are_run_or_there_is_a_reason() -> None:
    known = {command.name for command in (*TO_RUN, *RULE_COMMANDS)}
    assert {c.name for c in all_commands() if not why_not_here(c)} == known


# The commands ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("command", TO_RUN, ids=lambda command: command.name)
def test_command(command: Command, place: Place) -> None:
    printed = place.run(command.line)
    words = shlex.split(command.line)
    if words[:3] == ["scrapy", "crawl", "site"]:
        assert place.site.judge.missed(HOST) == place.site.judge.twice(HOST) == []
        assert place.site.judge.record(HOST).most <= 4
        assert place.server.members() == {}
    if "-O" in words:
        lines = (place.directory / words[words.index("-O") + 1]).read_text().splitlines()
        assert len([json.loads(line) for line in lines]) == PAGES
    if words[0] == "make":
        assert NOTHING_LEFT.search(printed)
    if "pydoc" in words:
        assert "Raises" in printed


@pytest.mark.slow
def test_make_crawl_with_another_site(place: Place) -> None:
    line = "make crawl URL=https://example.com NODES=3 LIMIT=2"
    assert f"`{line}`" in page("README.md")
    assert NOTHING_LEFT.search(place.run(line))
    assert place.site.judge.record(HOST).most <= 2


@pytest.mark.slow
def test_commands_of_readme_that_set_limits(place: Place) -> None:
    said = [place.run(command.line) for command in RULE_COMMANDS]
    assert [text.split(":")[0].strip() for text in said[1:]] == [
        "example.com",
        "*.example.org",
        "example.com",
    ]
    assert "limit 2, delay 0.5 s" in said[1]
    assert "paused" in said[2]
    assert "nothing is set" in said[3]


def test_pip_installs_this_distribution_and_its_extras() -> None:
    project = tomllib.loads(page("pyproject.toml"))["project"]
    texts = "\n".join(command.line for command in all_commands()) + page("docs/settings.md")
    named = re.findall(r"pip install '?([\w-]+)(?:\[(\w+)\])?", texts)
    assert {name for name, _ in named} == {project["name"]}
    assert {extra for _, extra in named} - {""} <= set(project["optional-dependencies"])
