"""The cluster of docker-compose.yml, as its users start it."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable
from typing import Any

from tests.compose.engine import Engine
from tests.support.paths import REPOSITORY

TIMEOUT_S = 300.0  # seconds: after that a test has failed, it never shows that one has passed


# The judge is asked in its own container: nothing is published for the test.
JUDGE = """\
import urllib.request
print(urllib.request.urlopen("http://127.0.0.1:8000/_judge").read().decode())
"""


class Cluster:
    """`docker-compose` in the repository. `names` are further ones of the example site's.

    It judges its visitors under each name by itself, so that each test has a site of its own.
    """

    def __init__(self, engine: Engine, project: str, names: tuple[str, ...] = ()) -> None:
        self.engine = engine
        self.project = project
        self.no_variables = engine.directory / "empty.env"
        self.no_variables.touch()
        self.override = engine.directory / f"{project}.yml"
        networks = {"default": {"aliases": list(names)}}
        self.override.write_text(json.dumps({"services": {"site": {"networks": networks}}}))

    def compose(self, *arguments: str, **environment: str) -> str:
        """What it prints to its standard output; an exit status that is not 0 fails the test."""
        done = subprocess.run(
            [
                *("docker-compose", "--project-name", self.project),
                *("--env-file", self.no_variables),  # a developer's `.env` is not the tests'
                *("--file", REPOSITORY / "docker-compose.yml", "--file", self.override),
                *arguments,
            ],
            cwd=REPOSITORY,
            # Through the engine's interface, and not with whatever `docker` there is.
            env={**self.engine.environment, "COMPOSE_DOCKER_CLI_BUILD": "0", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"exit status {done.returncode}: {done.stdout}"
        return done.stdout

    def run(self, *command: str, service: str = "node") -> tuple[int, str]:
        """`run`: exit status, and all that was printed.

        Detached: attached, docker-compose 1.29 does not hear from podman 4.3 that it has ended.
        """
        told = self.compose("--profile", "monitoring", "run", "--detach", service, *command)
        id = told.split()[-1]
        try:
            status = int(self.engine.podman("wait", id))
            return status, self.engine.podman("logs", id, stderr=subprocess.STDOUT)
        finally:
            self.engine.podman("rm", "--force", id)

    def inside(self, service: str, *command: str) -> str:
        """`exec`: what a command prints in the service's first container."""
        id = self.running(service)[0]["Id"]
        return self.engine.podman("exec", id, *command)

    def containers(self, service: str) -> list[dict[str, Any]]:
        """As the engine sees them, ended ones too, the one-off ones of `run` not."""
        of = {"project": self.project, "service": service, "oneoff": "False"}
        labels = [f"com.docker.compose.{name}={value}" for name, value in of.items()]
        found = self.engine.ask("/containers/json", all=True, filters={"label": labels})
        return [self.engine.ask(f"/containers/{one['Id']}/json") for one in found]

    def running(self, service: str) -> list[dict[str, Any]]:
        return [one for one in self.containers(service) if one["State"]["Running"]]

    def nodes_have_ended(self) -> bool:
        return not self.running("node")

    def exit_statuses(self) -> list[int]:
        return [one["State"]["ExitCode"] for one in self.containers("node")]

    def until(self, happened: Callable[[], object]) -> None:
        end = time.monotonic() + TIMEOUT_S
        while not happened():
            assert time.monotonic() < end, f"it never happened\n{self.log('node')}"
            time.sleep(0.5)

    def log(self, service: str) -> str:
        return self.compose("logs", "--no-color", service)

    def last_words(self) -> str:
        """What tells best why nodes have done something else: warnings, errors, how each ended."""
        words = "WARNING|ERROR|joins the crawl|has ended|finish_reason|Spider closed"
        lines = [line for line in self.log("node").splitlines() if re.search(words, line)]
        return "\n".join(lines[-100:])

    def judge(self, host: str) -> dict[str, Any]:
        told = self.inside("site", "python", "-c", JUDGE)
        found: dict[str, Any] = json.loads(told).get(host, {})
        return found

    def pages_asked_for(self, host: str) -> int:
        return sum(self.judge(host).get("pages", {}).values())

    def server(self, *command: str) -> str:
        """What the server answers, in one line, to who knows its password."""
        words = " ".join(command)
        asked = f"(echo AUTH $(cat /password/redis); echo {words}) | valkey-cli"
        return " ".join(self.inside("redis", "sh", "-c", asked).split()[1:])
