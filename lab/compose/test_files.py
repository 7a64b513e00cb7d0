"""The files of compose and the scripts of the containers, as far as no container is needed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from redis.backoff import NoBackoff
from redis.retry import Retry

from semaphore_middleware.console.commands import PORT
from semaphore_middleware.core.keys import Keys
from semaphore_middleware.link.embedded import find_program
from tests.support.paths import REPOSITORY
from tests.support.servers import wait_until

FILE, MONITORING = (
    yaml.safe_load((REPOSITORY / name).read_text("utf-8"))
    for name in ("docker-compose.yml", "docker/compose.monitoring.yml")
)
PROMETHEUS = REPOSITORY / "docker/prometheus.yml"
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
BESIDE: dict[str, dict[str, Any]] = MONITORING["services"]


def test_only_the_nodes_reach_the_server_and_nobody_from_outside() -> None:
    server = SERVICES["redis"]
    in_network = {
        name
        for services in (SERVICES, BESIDE)
        for name, each in services.items()
        if "redis" in each.get("networks", ())
    }
    assert (in_network, server["networks"]) == ({"redis", "node", "page"}, ["redis"])
    assert FILE["networks"]["redis"] == {"internal": True}
    ports = [port for each in BESIDE.values() for port in each.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in ports)
    ours = (*SERVICES.values(), BESIDE["node"])
    assert not {"ports", "network_mode"} & set().union(*ours)


def test_the_server_keeps_everything() -> None:
    command = SERVICES["redis"]["command"]
    assert "--appendonly yes" in command
    assert "--maxmemory-policy noeviction" in command


@pytest.mark.parametrize(
    "service", [SERVICES["node"], SERVICES["site"], BESIDE["page"]], ids=["node", "site", "page"]
)
def test_our_containers_may_do_as_little_as_possible(service: dict[str, Any]) -> None:
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "\nUSER 10001:10001\n" in (REPOSITORY / "Dockerfile").read_text("utf-8")


def test_what_is_mounted_and_pulled_is_there_and_pinned() -> None:
    for file in (FILE, MONITORING):
        for name, service in file["services"].items():
            for source, *_ in (volume.split(":") for volume in service.get("volumes", [])):
                is_there = (REPOSITORY / source).exists() if source[0] == "." else None
                assert is_there or source in FILE["volumes"] | file["volumes"], source
            is_known = "build" in service or (file is MONITORING and name in SERVICES)
            assert is_known or re.search(r":v?\d+\.\d+\.\d+$", service["image"])


@pytest.mark.skipif(not shutil.which("promtool"), reason="no promtool: apt-get install prometheus")
def test_the_configuration_of_prometheus_is_valid() -> None:
    subprocess.run(["promtool", "check", "config", PROMETHEUS], check=True)


def test_prometheus_scrapes_the_nodes_and_the_page_where_they_listen() -> None:
    of_nodes, of_page = yaml.safe_load(PROMETHEUS.read_text("utf-8"))["scrape_configs"]
    [found] = of_nodes["dns_sd_configs"]
    assert f"SEMAPHORE_METRICS=0.0.0.0:{found['port']}" in BESIDE["node"]["environment"]
    assert (found["names"], of_page["static_configs"]) == (
        ["node"],
        [{"targets": [f"page:{PORT}"]}],
    )
    assert BESIDE["page"]["command"] == "scrapy semaphore serve --host 0.0.0.0"
    for name in ("node", "page", "prometheus"):
        assert "default" in (SERVICES | BESIDE)[name].get("networks", SERVICES["node"]["networks"])


def script(name: str, *command: str, **environment: str) -> tuple[int, str]:
    """Exit status, and all that it prints."""
    done = subprocess.run(
        ["sh", REPOSITORY / "docker" / name, *command],
        env={"PATH": "/usr/bin:/bin", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_a_container_s_url_has_the_password_of_the_file_unless_one_is_given(tmp_path: Path) -> None:
    tell = ("entrypoint.sh", "sh", "-c", 'echo "${REDIS_URL:-none}"')
    (tmp_path / "redis").write_text("secret")
    file = {"REDIS_PASSWORD_FILE": str(tmp_path / "redis")}
    assert script(*tell, **file) == (0, "redis://:secret@redis:6379/0\n")
    assert script(*tell, **file, REDIS_URL="rediss://elsewhere") == (0, "rediss://elsewhere\n")
    status, told = script(*tell, REDIS_PASSWORD_FILE="/no/such/file")
    assert status == 1
    assert "REDIS_PASSWORD_FILE=/no/such/file: no password there; is the server up?" in told


ONCE = Retry(NoBackoff(), 0)  # a password that is refused once is refused
NEW = "The volumes are new"  # told before the server starts
CLI = """#!{python}
import socket, sys
link = socket.socket(socket.AF_UNIX)
link.connect("{folder}/socket")
link.sendall(sys.stdin.buffer.read())
link.shutdown(socket.SHUT_WR)
sys.stdout.buffer.write(link.makefile("rb").read())
"""
"""valkey-cli, as far as redis.sh uses it."""


@contextmanager
def started(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The server as redis.sh starts it, with its volumes in a folder."""
    start = (REPOSITORY / "docker/redis.sh").read_text()
    volumes = start.replace("/password/", f"{folder}/").replace("/data", f"{folder}/data")
    (folder / "redis.sh").write_text(volumes)
    (folder / "data").mkdir(exist_ok=True)
    entrypoint, cli = folder / "docker-entrypoint.sh", folder / "valkey-cli"
    entrypoint.write_text(f'#!/bin/sh\ntr "\\0" " " </proc/$$/cmdline >{folder}/seen\nexec "$@"\n')
    cli.write_text(CLI.format(python=sys.executable, folder=folder))
    for program in (entrypoint, cli):
        program.chmod(0o755)
    (folder / "socket").unlink(missing_ok=True)
    server = subprocess.Popen(
        [
            *("sh", folder / "redis.sh", find_program(), "--port", "0", "--save", ""),
            *("--appendonly", "yes"),
            *("--unixsocket", folder / "socket", "--dir", folder / "data"),
        ],
        env={"PATH": f"{folder}:/usr/bin:/bin"},
        stdout=subprocess.DEVNULL,
        stderr=(folder / "told").open("wb"),
        start_new_session=True,
    )
    try:
        wait_until(lambda: is_up(folder) or server.poll() is not None)
        yield server
    finally:
        os.killpg(server.pid, signal.SIGKILL)  # what says that it is new may still ask it
        server.wait()


def is_up(folder: Path) -> bool:
    with suppress(OSError, redis.ConnectionError), client_of(folder) as client:
        return bool(client.ping())
    return False


def client_of(folder: Path) -> redis.Redis:
    password = (folder / "redis").read_text()
    return redis.Redis(unix_socket_path=str(folder / "socket"), password=password, retry=ONCE)


def test_the_server_s_password_is_in_no_command_line(tmp_path: Path) -> None:
    """Neither that of docker-entrypoint.sh, which starts the server as another user."""
    with started(tmp_path) as server:
        password = (tmp_path / "redis").read_text()
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(unix_socket_path=str(tmp_path / "socket"), retry=ONCE).ping()
        with client_of(tmp_path) as client:
            assert client.config_get("save") == {"save": ""}
        seen = (tmp_path / "seen").read_text() + Path(f"/proc/{server.pid}/cmdline").read_text()
        assert "docker-entrypoint.sh" in seen
        assert password not in seen


def test_nodes_of_a_server_with_new_volumes_need_not_wait(tmp_path: Path) -> None:
    with started(tmp_path), client_of(tmp_path) as client:
        run_id = client.info("server")["run_id"].encode()
        wait_until(lambda: client.hget(Keys("semaphore").epoch, "started_empty") == run_id)
    assert NEW in (tmp_path / "told").read_text()


@pytest.mark.parametrize("kept", ["redis", "data/dump.rdb.old"])
def test_nodes_of_a_server_with_an_old_volume_do(tmp_path: Path, kept: str) -> None:
    (tmp_path / kept).parent.mkdir(exist_ok=True)
    (tmp_path / kept).write_text("secret")
    with started(tmp_path):
        assert NEW not in (tmp_path / "told").read_text()


def test_a_password_that_a_url_would_garble_is_refused() -> None:
    status, told = script("redis.sh", "valkey-server", REDIS_PASSWORD="p@ss")
    assert status == 1
    assert told.startswith("REDIS_PASSWORD: letters, digits and . _ ~ - are allowed")
