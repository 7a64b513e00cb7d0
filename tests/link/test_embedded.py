"""The embedded server: one for each user and machine, there as long as any process uses it."""

import asyncio
import errno
import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import pytest
import redis

from semaphore_middleware import FairSemaphore
from semaphore_middleware.errors import ServerRefusedError, ServerUnreachableError
from semaphore_middleware.link import embedded
from semaphore_middleware.link.environment import machine
from semaphore_middleware.link.location import Server
from tests.support.crawls import Log, Patch
from tests.support.nodes import calls_of, eventually
from tests.support.servers import wait_until


def pid_of(user: embedded.EmbeddedServer | FairSemaphore) -> int:
    assert user.url is not None
    with redis.Redis.from_url(user.url) as client:
        return int(client.info("server")["process_id"])


@pytest.fixture
def user() -> Iterator[embedded.EmbeddedServer]:
    user = embedded.start_or_join("prefix")
    yield user
    user.leave()
    wait_until(lambda: embedded.find() is None)


def test_locks_are_those_that_nfs_gives(monkeypatch: Patch) -> None:
    """It has a shared lock for a file that is open to read, an exclusive one if open to write."""
    flock = fcntl.flock

    def of_nfs(file: IO[bytes], kind: int) -> None:
        if not (file.writable() if kind & fcntl.LOCK_EX else file.readable()):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(file, kind)

    monkeypatch.setattr(fcntl, "flock", of_nfs)
    user = embedded.start_or_join("prefix")
    assert embedded.find() == user.url
    user.leave()
    wait_until(lambda: embedded.find() is None)


MISSPELT = "SEMAPHORE_REDIS_ULR"


@pytest.mark.parametrize(
    ("url", "variable", "sign"),
    [
        *((url, "SCRAPY_JOB", "Scrapyd") for url in (None, "redis://127.0.0.1:1")),
        ("redis://[::1]:1", "KUBERNETES_SERVICE_HOST", "Kubernetes"),
        (None, MISSPELT, f"{MISSPELT} in the environment"),
        *((url, MISSPELT, None) for url in ("embedded", "redis://127.0.0.1:1")),
    ],
)
async def test_a_node_of_a_fleet_that_counts_alone_is_a_warning(
    url: str | None, variable: str, sign: str | None, monkeypatch: Patch, caplog: Log
) -> None:
    monkeypatch.setenv(variable, "10.0.0.1")
    semaphore = FairSemaphore(url)
    with suppress(ServerUnreachableError):
        await semaphore.open(wait=False)
    await semaphore.close()
    said = [record for record in caplog.records if "hints at" in record.getMessage()]
    assert [record.levelname for record in said] == (["WARNING"] if sign else [])
    assert all(f"but {sign} hints at" in record.getMessage() for record in said)


def test_one_process_of_many_starts_a_killed_server_again(user: embedded.EmbeddedServer) -> None:
    pid = pid_of(user)
    assert not embedded.start_again(user.url)
    os.kill(pid, signal.SIGSTOP)  # it may go on
    assert not embedded.start_again(user.url)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: embedded.find() is None)
    with ThreadPoolExecutor(4) as pool:
        started = [*pool.map(embedded.start_again, 4 * [user.url])]
    assert started.count(True) == 1
    assert pid_of(user) != pid


def test_the_server_ends_with_a_killed_supervisor(user: embedded.EmbeddedServer) -> None:
    """Nobody else would end it after its last user."""
    pid = pid_of(user)
    parent = re.search(r"PPid:\t(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert parent is not None
    os.kill(int(parent[1]), signal.SIGKILL)
    wait_until(lambda: embedded.start_again(user.url))  # its socket goes before it has ended
    assert pid_of(user) != pid


USES_IT = """\
import redis
from semaphore_middleware.link.embedded import start_or_join

user = start_or_join("prefix")
with redis.Redis.from_url(user.url) as client:
    print(client.info("server")["process_id"], flush=True)
input()
"""


@contextmanager
def another_user() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that uses the server until it is killed; and the server's process id."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", USES_IT], stdin=pipe, stdout=pipe, text=True
    ) as process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())


def test_the_server_outlives_its_killed_starter_and_ends_after_its_last_killed_user() -> None:
    with another_user() as (starter, pid), another_user() as (second, _):
        starter.kill()
        starter.wait()
        with another_user() as (last, pid_later):
            assert pid_later == pid
            second.kill()
            last.kill()
    wait_until(lambda: embedded.find() is None)


def test_a_server_is_joined_when_its_disk_is_full(
    user: embedded.EmbeddedServer, monkeypatch: Patch
) -> None:
    def bind(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("socket.socket.bind", bind)
    other = embedded.start_or_join("prefix")
    other.leave()
    assert other.url == user.url == embedded.find(), "it outlives one of its users"


async def test_permits_are_kept_when_the_embedded_server_is_killed(caplog: Log) -> None:
    """And no other node gets them, whichever of the nodes starts it again."""
    caplog.set_level("INFO")
    async with FairSemaphore() as one, FairSemaphore() as other:
        permit = await one.acquire("site", 1)
        waiting = asyncio.create_task(other.acquire("site", 1))
        os.kill(pid_of(one), signal.SIGKILL)

        async def is_claimed() -> bool:
            with suppress(ServerUnreachableError):
                return (await one.admin.inspect("site")).held == 1
            return False

        await eventually(is_claimed)
        await one.admin.trust()
        await eventually(lambda: "The wait is over" in caplog.text)
        seen = await one.admin.inspect("site")
        assert [member.node for member in seen.members if member.held] == [one.node]
        assert (waiting.done(), permit.lost) == (False, False)
        permit.release()
        (await waiting).release()
    assert caplog.text.count("was started again") == 1


def test_the_embedded_server_may_have_any_directory(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(embedded.DIRECTORY, "a b#c?%41")
    monkeypatch.setattr(embedded, "is_answering", lambda _: True)
    monkeypatch.setattr(embedded, "_is_alive", lambda _: True)
    user = embedded.start_or_join("prefix")
    user.leave()
    path = tmp_path / "a b#c?%41" / embedded.SOCKET
    path.touch()
    assert embedded.find() == user.url
    assert str(Server(user.url, 1.0)) == f"unix://{path}"


def test_each_trial_of_a_directory_has_a_name_as_long_as_the_server_s(
    monkeypatch: Patch, tmp_path: Path
) -> None:
    """Containers with a common directory may have the same process ids."""
    tried = calls_of(monkeypatch, socket.socket, "bind")
    private = tmp_path / "private"
    for _ in range(2):
        embedded._prepare(private)
    names = {path for _, path in tried}
    assert len(names) == 2
    assert {len(name) for name in names} == {len(str(private / embedded.SOCKET))}


def test_a_directory_that_cannot_be_made_is_one_line(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setenv(embedded.DIRECTORY, str(tmp_path / ("x" * 300)))
    for call in (partial(embedded.start_or_join, "prefix"), embedded.find):
        with pytest.raises(ServerRefusedError, match=r"too long: '/.*; set SEMAPHORE_EMBEDDED"):
            call()


def test_a_lock_that_another_process_keeps_is_not_waited_for_for_ever(
    monkeypatch: Patch, tmp_path: Path, caplog: Log
) -> None:
    monkeypatch.setenv(embedded.DIRECTORY, str(tmp_path))
    monkeypatch.setattr(embedded, "LOCK_QUIET_S", 0.0)
    monkeypatch.setattr(embedded, "LONGEST_LOCK_S", 0.1)
    with (tmp_path / embedded.START_LOCK).open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ServerRefusedError, match=r"has held .*start\.lock for 0\.1 s"):
            embedded.start_or_join("prefix")
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("Waiting for another process, which holds ")


def test_the_embedded_server_is_where_the_password_database_says(
    monkeypatch: Patch, caplog: Log
) -> None:
    """No TMPDIR and no HOME moves it; where a socket cannot be there, a warning says so."""
    home = Path(os.environ[embedded.DIRECTORY])
    monkeypatch.delenv(embedded.DIRECTORY)
    monkeypatch.setattr(embedded, "WITHOUT_HOME", home)
    entry = SimpleNamespace(pw_dir=str(home))
    monkeypatch.setattr("pwd.getpwuid", lambda _: entry)
    used = []
    for elsewhere in "one", "two":
        for name in ("TMPDIR", "HOME", "XDG_RUNTIME_DIR"):
            monkeypatch.setenv(name, str(home / elsewhere))
        used.append(embedded._usable_directory())
    assert used == 2 * [home / ".scrapy-semaphore" / f"{machine():08x}"]
    assert [*used[0].iterdir()] == []
    assert not caplog.records
    entry.pw_dir = "/"
    assert embedded._usable_directory() == embedded._directories()[0]
    assert "has no home directory" in caplog.text
    entry.pw_dir = str(home / ("x" * 100))
    assert embedded._usable_directory() == embedded._directories()[1]
    assert "cannot be used: " in caplog.text


def test_directories_of_earlier_boots_are_removed(monkeypatch: Patch) -> None:
    """But no other machine's, if a home is shared, and none in use."""
    home = Path(os.environ[embedded.DIRECTORY])
    monkeypatch.delenv(embedded.DIRECTORY)
    monkeypatch.setattr("pwd.getpwuid", lambda _: SimpleNamespace(pw_dir=str(home)))

    def boot(number: int, host: str = "here") -> embedded.EmbeddedServer:
        monkeypatch.setattr(embedded, "machine", lambda: number)
        monkeypatch.setattr("socket.gethostname", lambda: host)
        return embedded.start_or_join("prefix")

    def leave(user: embedded.EmbeddedServer) -> None:
        pid = pid_of(user)
        user.leave()
        wait_until(lambda: not Path(f"/proc/{pid}").exists())

    def kept() -> list[str]:
        return sorted(path.name for path in (home / ".scrapy-semaphore").iterdir())

    leave(boot(1, "there"))
    leave(boot(2))
    (home / ".scrapy-semaphore" / "notes").touch()
    in_use = boot(3)
    assert kept() == ["00000001", "00000003", "notes"]
    present = boot(4)
    assert kept() == ["00000001", "00000003", "00000004", "notes"]
    leave(in_use)
    leave(present)
