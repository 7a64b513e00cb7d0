"""What needs no container to be seen: the scripts that the containers start."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from semaphore_middleware.redis.embedded import find_program
from semaphore_middleware.redis.keys import Keys
from tests.support.nodes import eventually
from tests.support.paths import REPOSITORY


@pytest.mark.skipif(not shutil.which("promtool"), reason="no prometheus here")
def test_the_configuration_of_prometheus_is_valid() -> None:
    file = REPOSITORY / "docker/prometheus.yml"
    subprocess.run(["promtool", "check", "config", file], check=True)


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
        while not listens(folder / "socket"):
            assert server.poll() is None
            time.sleep(0.005)
        yield server
    finally:
        os.killpg(server.pid, signal.SIGKILL)  # what says that it is new may still ask it
        server.wait()


def listens(path: Path) -> bool:
    """Whether connections are accepted there: the file is there a moment before."""
    with socket.socket(socket.AF_UNIX) as connection, suppress(OSError):
        connection.connect(str(path))
        return True
    return False


def client_of(folder: Path) -> redis.Redis:
    password = (folder / "redis").read_text()
    return redis.Redis(unix_socket_path=str(folder / "socket"), password=password)


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


async def test_nodes_of_a_server_with_new_volumes_need_not_wait(tmp_path: Path) -> None:
    with started(tmp_path), client_of(tmp_path) as client:

        async def is_said_to_be_new() -> bool:
            run_id: str = client.info("server")["run_id"]
            mark = client.hget(Keys("semaphore").epoch, "started_empty")
            return bool(mark == run_id.encode())

        await eventually(is_said_to_be_new)
    assert NEW in (tmp_path / "told").read_text()


@pytest.mark.parametrize("kept", ["redis", "data/appendonlydir"])
def test_nodes_of_a_server_with_an_old_volume_do(tmp_path: Path, kept: str) -> None:
    path = tmp_path / kept
    path.parent.mkdir(exist_ok=True)
    if kept == "redis":
        path.write_text("secret")
    else:
        path.mkdir()
    with started(tmp_path):
        assert NEW not in (tmp_path / "told").read_text()


def test_a_password_that_a_url_would_garble_is_refused() -> None:
    status, told = script("redis.sh", "valkey-server", REDIS_PASSWORD="p@ss")
    assert status == 1
    assert told.startswith("REDIS_PASSWORD: letters, digits and . _ ~ - are allowed")
