"""`scrapy semaphore`: in this process, in one of its own, and in a terminal."""

from __future__ import annotations

import asyncio
import fcntl
import io
import os
import re
import struct
import sys
import termios
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import (
    asynccontextmanager,
    contextmanager,
    redirect_stderr,
    redirect_stdout,
    suppress,
)
from pathlib import Path
from tempfile import TemporaryFile
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest import mock

from scrapy.cmdline import execute
from scrapy.settings import Settings

from semaphore_middleware.core.protocol import LeaseUpdate
from semaphore_middleware.model.limits import Limit
from tests.support.nodes import Caller
from tests.support.scrapy_process import ScrapyProcess, start_scrapy
from tests.support.servers import RedisServer, wait_until
from tests.support.times import TIMEOUT_S

NOWHERE = Path("/")  # no project is there


class Ran(NamedTuple):
    """What a command that has ended has printed, less blanks at ends of lines, and its status."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class Typed(io.StringIO):
    """A standard input in which this has been typed."""

    def __init__(self, text: str, in_terminal: bool) -> None:
        super().__init__(text)
        self._in_terminal = in_terminal

    def isatty(self) -> bool:
        return self._in_terminal


def _stripped(text: str) -> str:
    return re.sub(r" +$", "", text, flags=re.MULTILINE)


async def semaphore(
    server: RedisServer | str | None,
    *arguments: str,
    answer: str | None = "",
    in_terminal: bool = False,
    environment: Mapping[str, str] = MappingProxyType({}),
    command: str = "semaphore",
) -> Ran:
    """Run `scrapy semaphore`, or another command, with these arguments: in this process, in a
    thread, as the verbs have loops of their own. Without an answer, standard input is closed.
    """

    def run() -> Ran:
        out, err = io.StringIO(), io.StringIO()
        stdin = None if answer is None else Typed(answer, in_terminal)
        with (
            mock.patch.dict(os.environ, _environment(server) | dict(environment)),
            # These are for the whole process.
            mock.patch("scrapy.utils.log.configure_logging"),
            mock.patch("gc.freeze"),
            mock.patch.object(sys, "stdin", stdin),
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            try:
                execute(["scrapy", command, *arguments], Settings())  # not those of a project
            except SystemExit as end:
                status = end.code
        assert isinstance(status, int)
        return Ran(status, _stripped(out.getvalue()), err.getvalue())

    return await asyncio.wait_for(asyncio.to_thread(run), TIMEOUT_S)


async def semaphore_process(
    server: RedisServer | str | None,
    *arguments: str,
    directory: Path = NOWHERE,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Ran:
    """Run the command as a process with an empty standard input."""
    with TemporaryFile() as out, TemporaryFile() as err:
        process = start_scrapy(
            *("semaphore", *arguments),
            cwd=directory,
            env=_environment(server) | dict(environment),
            stdout=out,
            stderr=err,
        )
        async with asyncio.timeout(TIMEOUT_S):
            status = await process.ended()
        out.seek(0)
        err.seek(0)
        return Ran(status, _stripped(out.read().decode()), err.read().decode())


@contextmanager
def listening(
    server: RedisServer, directory: Path, *arguments: str, **environment: str
) -> Iterator[tuple[ScrapyProcess, str]]:
    """`scrapy semaphore serve` as a process, and the address that it has printed."""
    typed = ("semaphore", *arguments, "-s", f"SEMAPHORE_REDIS_URL={server.url}")
    output = directory / "output"
    with ScrapyProcess(*typed, directory=directory, log_file=output, **environment) as process:
        wait_until(lambda: process.log.endswith("\n") or not process.running)
        yield process, process.log.partition(" (")[0]


def _environment(server: RedisServer | str | None) -> dict[str, str]:
    url = server.url if isinstance(server, RedisServer) else server
    return {**os.environ, **({"SEMAPHORE_REDIS_URL": url} if url else {}), "TERM": "xterm-256color"}


class Terminal:
    """A terminal of some size, and what the process in it has drawn."""

    def __init__(self, width: int, height: int) -> None:
        self._ours, self._theirs = os.openpty()
        self._drawn = b""
        self._news = asyncio.Event()
        os.set_blocking(self._ours, False)
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.modes = termios.tcgetattr(self._theirs)

    def start(
        self, server: RedisServer | str, command: str, *arguments: str, **environment: str
    ) -> None:
        with open(self._theirs, "r+b", buffering=0, closefd=False) as theirs:
            self._process = start_scrapy(
                *(command, *arguments),
                cwd=NOWHERE,
                env=_environment(server) | environment,
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                in_terminal=True,
            )
        asyncio.get_running_loop().add_reader(self._ours, self._read)

    def _read(self) -> None:
        with suppress(BlockingIOError):
            self._drawn += os.read(self._ours, 65536)
        self._news.set()

    def press(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    async def ends_with(self, keys: bytes) -> int:
        """Press them until it hears: Python's `input` does not hear of a Ctrl-C that comes between
        its prompt and its reading, before the next key. One more, while it ends, would kill it.
        """
        ended = asyncio.ensure_future(self.ended())
        has_heard = False
        while not (ended.done() or has_heard):
            before = len(self._drawn)
            self.press(keys)
            await asyncio.wait([ended], timeout=1)
            has_heard = len(self._drawn) >= before + len("^C\r\n")  # more than the terminal's echo
        return await ended

    @property
    def drawn(self) -> str:
        """All of it, with what the terminal obeys."""
        return self._drawn.decode(errors="replace")

    async def has_drawn(self, text: str, times: int = 1) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while self.drawn.count(text) < times:
                self._news.clear()
                await self._news.wait()

    async def ended(self) -> int:
        """Its exit status. The terminal is then as it was before."""
        async with asyncio.timeout(TIMEOUT_S):
            status = await self._process.ended()
        self._read()
        assert termios.tcgetattr(self._theirs) == self.modes
        return status

    async def close(self) -> None:
        self._process.kill()
        await self._process.ended()
        asyncio.get_running_loop().remove_reader(self._ours)
        os.close(self._ours)
        os.close(self._theirs)


@asynccontextmanager
async def terminal(
    server: RedisServer | str,
    *arguments: str,
    width: int = 80,
    height: int = 24,
    command: str = "semaphore",
    **environment: str,
) -> AsyncIterator[Terminal]:
    """`scrapy semaphore`, or another command, with these arguments in a terminal."""
    terminal = Terminal(width, height)
    terminal.start(server, command, *arguments, **environment)
    try:
        yield terminal
    finally:
        await terminal.close()


# A server with something to see -----------------------------------------------------------------

OLD = 3 * 3600  # seconds
SITE = "www.example.org"
LONG_NAME = "a-very-long-name.of.example.edu"


class OldCaller(Caller):
    """A node whose updates claim that its requests have held permits, and waited, for 3 h."""

    def next_update(self, scope: str, limit: int | Limit = 1, **overrides: Any) -> LeaseUpdate:
        return super().next_update(scope, limit, held_age=OLD, wait_age=OLD, **overrides)

    async def hold(self, scope: str, limit: int | Limit) -> None:
        await self.take(scope, limit=limit)
        await self.renew(scope, limit)


async def three_nodes(server: RedisServer) -> list[OldCaller]:
    """At one site two hold and three wait, for 3 h; at another each holds one; nobody renews."""
    nodes = [await OldCaller.join(server, name) for name in ("one", "two", "three")]
    for node in (*nodes, *nodes[:2]):
        await node.take(SITE, limit=2)
    for node in nodes:
        await node.hold(LONG_NAME, 8)
    return nodes
