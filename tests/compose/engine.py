"""A container engine of the tests' own: podman, with all that it keeps in one directory."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

PACKAGES = "podman docker-compose debootstrap netavark aardvark-dns runc catatonit iptables"
PROGRAMS = ("podman", "docker-compose", "debootstrap", "runc")


def missing() -> str:
    """Why there can be no engine here; empty if there can."""
    if os.geteuid() != 0:
        return "debootstrap and podman's bridges need root"
    absent = [program for program in PROGRAMS if not shutil.which(program)]
    return f"no {', '.join(absent)} here: apt-get install {PACKAGES}" if absent else ""


# Nothing is ever pulled: an image that no test has made is an error.
REGISTRIES = """\
unqualified-search-registries = ["docker.io"]
short-name-mode = "permissive"
[[registry]]
location = "docker.io"
blocked = true
"""
# By itself podman asks for more than root may have in some sandboxes, and crun refuses the mixed
# cgroups of some.
CONTAINERS = """\
[containers]
log_driver = "k8s-file"
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "file"
tmp_dir = "{directory}/tmp"
[network]
network_backend = "netavark"
network_config_dir = "{directory}/networks"
"""
STORAGE = """\
[storage]
driver = "overlay"
graphroot = "{directory}/storage"
runroot = "{directory}/run"
"""


class Engine:
    """`podman system service`, with no image, network or volume but the tests'."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket = directory / "podman.sock"
        self.environment = {
            **os.environ,
            "CONTAINERS_CONF": self._write("containers.conf", CONTAINERS),
            "CONTAINERS_STORAGE_CONF": self._write("storage.conf", STORAGE),
            "CONTAINERS_REGISTRIES_CONF": self._write("registries.conf", REGISTRIES),
            "DISABLE_HC_SYSTEMD": "true",  # see `_look_after_health`
            "DOCKER_HOST": f"unix://{self.socket}",
        }
        self._ended = threading.Event()

    def _write(self, name: str, text: str) -> str:
        (self.directory / name).write_text(text.format(directory=self.directory))
        return str(self.directory / name)

    def podman(self, *arguments: str, **options: Any) -> str:
        done = subprocess.run(
            ["podman", *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            **options,
        )
        return str(done.stdout).strip()

    @contextmanager
    def running(self) -> Iterator[Engine]:
        # All that is found there is removed in the end.
        store = self.podman("info", "--format", "{{.Store.GraphRoot}}")
        assert store == str(self.directory / "storage")
        with (self.directory / "service.log").open("wb") as log:
            service = subprocess.Popen(
                ["podman", "system", "service", "--time", "0", f"unix://{self.socket}"],
                env=self.environment,
                stdout=log,
                stderr=log,
            )
        health = threading.Thread(target=self._look_after_health)
        try:
            end = time.monotonic() + 60
            while not self.socket.exists():
                assert service.poll() is None, (self.directory / "service.log").read_text()
                assert time.monotonic() < end, "podman does not listen"
                time.sleep(0.05)
            health.start()
            yield self
        finally:
            self._ended.set()
            if health.is_alive():
                health.join()
            service.terminate()
            service.wait()
            # Containers, networks, images and mounts, all of them ours.
            self.podman("system", "reset", "--force")

    def _look_after_health(self) -> None:
        """Run the health checks of containers that are not healthy yet.

        Podman leaves it to systemd's timers, and a container or a CI machine has no systemd.
        """
        while not self._ended.wait(0.5):
            with suppress(OSError, http.client.HTTPException, ValueError):
                for one in self.ask("/containers/json", filters={"health": ["starting"]}):
                    self.ask(f"/containers/{one['Id']}/healthcheck")

    def ask(self, path: str, **query: Any) -> Any:
        """A GET from the engine's own interface."""
        connection = _UnixConnection(self.socket)
        try:
            told = "&".join(f"{name}={quote(json.dumps(value))}" for name, value in query.items())
            connection.request("GET", f"/v4.0.0/libpod{path}?{told}")
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
