"""`python -m scrapy ...`, forked from a process that has imported Scrapy.

Imports are most of what such a process costs. Otherwise it is as if it had been started: it has a
process id, standard streams, a directory, an environment and an exit status of its own. All workers
of pytest-xdist have one such server.
"""

from __future__ import annotations

import asyncio
import fcntl
import gc
import json
import os
import pkgutil
import re
import runpy
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import warnings
from ast import literal_eval
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Self

from tests.support.times import TIMEOUT_S

PRELOADED = ("scrapy", "semaphore_middleware", "itemadapter", "tldextract", "uvloop")
NOT_PRELOADED = (
    *("semaphore_middleware.clients", "semaphore_middleware.operators"),
    *("semaphore_middleware.console", "semaphore_middleware.report"),
    *("semaphore_middleware.shared_crawl.commands", "scrapy.__main__"),
    "scrapy.core.downloader.handlers._httpx",
)
"""Most of them import rich, without which there are tests."""

REPOSITORY = str(Path(__file__).parents[2])

NUMBER = struct.Struct("i")  # a process id, then an exit status


class Process:
    """A forked process, with the methods of `subprocess.Popen`."""

    def __init__(self, link: socket.socket) -> None:
        self.pid = _number(link)
        self.returncode: int | None = None
        self._link = link

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._link], [], [], timeout)[0]:
                raise TimeoutError
            self.returncode = _number(self._link)
            self._link.close()
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except TimeoutError:
            return None

    async def ended(self) -> int:
        while self.poll() is None:  # noqa: ASYNC110 - uvloop and asyncio watch sockets in different ways
            await asyncio.sleep(0.01)
        return self.wait()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start_scrapy(
    *arguments: str,
    cwd: Path,
    env: Mapping[str, str],
    stdin: IO[bytes] | None = None,
    stdout: IO[bytes],
    stderr: IO[bytes],
    in_terminal: bool = False,
) -> Process:
    """Run `python -m scrapy` with these arguments; without `stdin` it has nothing to read. If it is
    `in_terminal`, the three are one, from which Ctrl-C reaches it.
    """
    link = _socket()
    link.connect(_address or start_server())
    with Path(os.devnull).open("rb") as nothing:
        files = [(stdin or nothing).fileno(), stdout.fileno(), stderr.fileno()]
        job = json.dumps([arguments, os.fspath(cwd), dict(env), in_terminal]).encode()
        socket.send_fds(link, [job], files)
    return Process(link)


@cache
def start_server() -> str:
    """Start this process's server, which ends with it, and return its address. It imports Scrapy
    only when it is first asked for a process.
    """
    address = f"{tempfile.mkdtemp(prefix='sem-fork-')}/socket"
    until_closed, _ = os.pipe()  # the other end is closed when this process ends
    with _socket() as listener, os.fdopen(until_closed) as stdin:
        listener.bind(address)
        listener.listen(100)
        subprocess.Popen(
            [sys.executable, "-m", __spec__.name, str(listener.fileno())],
            cwd=REPOSITORY,
            pass_fds=[listener.fileno()],
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in a terminal is for the tests
        )
    return address


def use_server(address: str) -> None:
    """Have processes started by the server of another process."""
    global _address  # noqa: PLW0603 - it is of the process, as the server is
    _address = address


_address = ""


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _number(link: socket.socket) -> int:
    (number,) = NUMBER.unpack(link.recv(NUMBER.size, socket.MSG_WAITALL))
    return int(number)


class ScrapyProcess:
    """`scrapy <arguments>` in `directory`; what it prints and logs is in `log_file`. It finds this
    repository's modules, and the `environment` beside that of the tests.
    """

    def __init__(
        self, *arguments: str, directory: Path, log_file: Path, **environment: str
    ) -> None:
        self.log_file = log_file
        env = {**os.environ, "PYTHONPATH": REPOSITORY, **environment}
        with log_file.open("wb") as log:
            self._process = start_scrapy(*arguments, cwd=directory, env=env, stdout=log, stderr=log)

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    @property
    def errors(self) -> list[str]:
        return [line for line in self.log.splitlines() if re.search(r"\] (ERROR|CRITICAL):", line)]

    def stat(self, name: str) -> Any:
        """A stat from those that Scrapy logs at the end; 0 if it is not there."""
        found = re.search(rf"'{re.escape(name)}': (.+?)[,}}]", self.log)
        return literal_eval(found[1]) if found else 0

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait(self) -> int:
        return self._process.wait(TIMEOUT_S)

    async def ended(self) -> int:
        async with asyncio.timeout(TIMEOUT_S):
            return await self._process.ended()

    async def says(self, text: str) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while text not in self.log:  # noqa: ASYNC110 - a file tells nobody of what is written
                await asyncio.sleep(0.01)

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


# In the server ------------------------------------------------------------------------------------


def _preload() -> None:
    with warnings.catch_warnings(action="ignore"):  # of modules that are old by now
        for name in PRELOADED:
            package = import_module(name)
            for module in pkgutil.walk_packages(package.__path__, f"{name}."):
                if not module.name.startswith(NOT_PRELOADED):
                    with suppress(ImportError):  # an extra that is not installed
                        import_module(module.name)
    import_module("semaphore_middleware.operators.verbs")
    assert "twisted.internet.reactor" not in sys.modules, "each process chooses its own"
    gc.collect()
    gc.freeze()  # else each process copies all of it, when it collects garbage and when it ends


def _serve(listener: socket.socket) -> Sequence[str]:
    """Fork for each job. Returns in the new process, with the arguments."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the supervisors' statuses: nobody asks for them
    is_loaded = False
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            shutil.rmtree(Path(listener.getsockname()).parent)
            os._exit(0)
        link, _ = listener.accept()
        if not is_loaded:
            _preload()
            is_loaded = True
        if os.fork() == 0:
            listener.close()
            return _become(link)
        link.close()


def _become(link: socket.socket) -> Sequence[str]:
    """Fork once more: the first process keeps the second one's exit status."""
    job, streams, _, _ = socket.recv_fds(link, 2**20, 3)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if child := os.fork():
        for stream in streams:
            os.close(stream)
        link.send(NUMBER.pack(child))
        _, status = os.waitpid(child, 0)
        link.send(NUMBER.pack(os.waitstatus_to_exitcode(status)))
        os._exit(0)
    link.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    arguments, directory, environment, in_terminal = json.loads(job)
    if in_terminal:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    # Those that are there were made for the first process's files, pipes or terminal.
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", errors="backslashreplace", closefd=False)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    path = environment.get("PYTHONPATH", "")
    sys.path[:1] = [directory, *path.split(os.pathsep)] if path else [directory]
    return list(arguments)


if __name__ == "__main__":
    sys.argv[1:] = _serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module("scrapy", run_name="__main__", alter_sys=True)
