"""`docker compose up`: three nodes crawl the example site, which judges them; then one is killed.

It builds the image and takes minutes: `make compose-test`, or `-m compose`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.paths import REPOSITORY

pytestmark = pytest.mark.compose

TIMEOUT_S = 600.0  # after that a test has failed; it never shows that one has passed
LIMIT = 4
NEEDED = "apt-get install docker.io docker-compose-v2, or podman-docker and docker-compose-v2"
COMPOSE = ("docker", "compose", "--project-name", "semaphore-test", "--env-file", os.devnull)
# The judge is asked in its own container: nothing is published for the test.
JUDGE = """\
import urllib.request
print(urllib.request.urlopen("http://127.0.0.1:8000/_judge").read().decode())
"""
# Not the container's process 1, which the kernel protects from signals of its own container; nor by
# `docker kill`, which counts as an operator's wish, so that nothing is restarted.
KILL = """\
import os, pathlib, signal
for process in pathlib.Path("/proc").glob("[0-9]*"):
    is_crawl = b"scrapy\\0crawl\\0" in (process / "cmdline").read_bytes()
    if is_crawl and process.name != "1":
        os.kill(int(process.name), signal.SIGKILL)
"""


def compose(*arguments: str, **environment: str) -> str:
    """What it prints to its standard output; an exit status that is not 0 fails the test."""
    done = subprocess.run(
        [*COMPOSE, *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "REDIS_URL": "", "LIMIT": str(LIMIT), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"exit status {done.returncode}: {done.stdout}"
    return done.stdout


def missing() -> str:
    """Why no containers can be run here; empty if they can."""
    if not shutil.which("docker"):
        return f"no docker here: {NEEDED}"
    for command in (("docker", "compose", "version"), ("docker", "info")):
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return f"`{' '.join(command)}` fails here; it needs {NEEDED}, and a running engine"
    return ""


@pytest.fixture(autouse=True)
def removed() -> Iterator[None]:
    if reason := missing():
        pytest.skip(reason)
    try:
        yield
    finally:
        compose("down", "--volumes", "--timeout", "1")


def containers(service: str) -> list[dict[str, Any]]:
    """As the engine sees them, ended ones too."""
    ids = compose("ps", "--all", "--quiet", service).split()
    found: list[dict[str, Any]] = json.loads(subprocess.check_output(["docker", "inspect", *ids]))
    return found


def judge() -> dict[str, Any]:
    told = compose("exec", "-T", "site", "python", "-c", JUDGE)
    found: dict[str, Any] = json.loads(told).get("site", {})
    return found


def until(happened: Callable[[], object]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not happened():
        assert time.monotonic() < end, compose("logs", "--no-color", "--tail", "50", "node")
        time.sleep(0.5)


def nodes_have_ended() -> bool:
    return not any(each["State"]["Running"] for each in containers("node"))


def test_three_nodes_crawl_the_example_site_and_then_stay_down() -> None:
    compose("up", "--detach", "--build")
    until(nodes_have_ended)
    nodes = containers("node")
    assert [(each["State"]["ExitCode"], each["RestartCount"]) for each in nodes] == 3 * [(0, 0)]
    judged = judge()
    assert (judged["missed"], judged["twice"], judged["forbidden"]) == ([], [], 0)
    assert judged["most"] == LIMIT  # it was used, and never passed


def test_a_killed_node_comes_back_and_the_crawl_is_finished() -> None:
    compose("up", "--detach", "--build", NODES="5")
    until(lambda: sum(judge().get("pages", {}).values()) > 40)
    compose("exec", "-T", "--index", "1", "node", "python", "-c", KILL)
    until(nodes_have_ended)
    assert sorted(each["RestartCount"] for each in containers("node")) == [0, 0, 0, 0, 1]
    judged = judge()
    assert judged["missed"] == []
    assert judged["most"] <= LIMIT
    assert len(judged["twice"]) <= LIMIT  # its open requests
