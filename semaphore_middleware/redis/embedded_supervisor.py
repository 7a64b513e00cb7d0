"""The embedded server's supervisor: starts the server, and ends it after its last user.

Run as `python -m semaphore_middleware.redis.embedded_supervisor DIRECTORY`. It waits for the
exclusive lock on a file of which every user holds a shared lock, so it gets it when the last user
has left or was killed.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from semaphore_middleware.redis.embedded import (
    ALIVE_LOCK,
    SOCKET,
    START_TIMEOUT_S,
    USERS_LOCK,
    find_program,
    is_answering,
)


def supervise(directory: Path) -> None:
    """Start the server, write "ready" to standard output, and end it after its last user."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # through the `finally` below
    path = directory / SOCKET
    alive = (directory / ALIVE_LOCK).open("ab")
    fcntl.flock(alive, fcntl.LOCK_EX)
    path.unlink(missing_ok=True)
    server = subprocess.Popen(
        [
            find_program(),
            *("--port", "0", "--unixsocket", str(path), "--unixsocketperm", "600"),
            *("--save", "", "--appendonly", "no", "--dir", str(directory)),
        ],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        pass_fds=[alive.fileno()],  # it holds the lock as well, should this process be killed
    )
    try:
        _wait_until_it_answers(server, path)
        sys.stdout.write("ready\n")
        sys.stdout.close()
        threading.Thread(target=_end_with, args=(server,), daemon=True).start()
        with (directory / USERS_LOCK).open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _end(server)
            path.unlink(missing_ok=True)
            alive.close()
    finally:
        _end(server)


def _wait_until_it_answers(server: subprocess.Popen[bytes], path: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not is_answering(path):
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
    supervise(Path(sys.argv[1]))
