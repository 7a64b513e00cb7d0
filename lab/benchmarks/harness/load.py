"""Processes that put a server under load together, and what was seen meanwhile.

A process writes a line when it is ready, and reads the timetable from its standard input, as a
JSON list. At its end it writes a JSON list of two: what it has seen, and its processor time in the
counted time. The clock is CLOCK_MONOTONIC, which Linux keeps for all processes of a machine
together.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from tests.support.server_time import Reading
from tests.support.servers import RedisServer

START_S = 0.5  # from when all are told to when they start
TIMEOUT_S = 60.0


class Timetable(NamedTuple):
    """Moments on the monotonic clock: all start, and the counted time begins and ends."""

    start: float
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Load:
    """What was seen, by each process, and what the counted time took."""

    seen: Sequence[Any]
    begin: float
    end: float
    client_seconds: float  # of processor time, of all processes together
    server: Reading


class Visit(NamedTuple):
    """A permit, from when its node was notified until the work was done."""

    node: int
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Result:
    """The permits of a load; `visits` has those before and after the counted time, too."""

    visits: Sequence[Visit]  # in the order of their beginnings
    load: Load

    @property
    def counted(self) -> list[Visit]:
        """The visits that began in the counted time."""
        return [visit for visit in self.visits if self.load.begin <= visit.begin < self.load.end]

    @property
    def handoffs(self) -> list[float]:
        """Of one permit: seconds from a release on one node until another one was notified."""
        return [
            after.begin - before.end
            for before, after in pairwise(self.counted)
            if before.node != after.node
        ]


def put_under_load(
    server: RedisServer, commands: Sequence[Sequence[str]], warm_up_s: float, seconds: float
) -> Load:
    """Run the commands at the same time, for so many seconds that are counted."""
    with ExitStack() as stack, server.client() as client:
        processes = [stack.enter_context(running(command)) for command in commands]
        for process in processes:
            next_line(process)
        start = time.monotonic() + START_S
        times = Timetable(start, start + warm_up_s, start + warm_up_s + seconds)
        for process in processes:
            tell(process, json.dumps(times))
        time.sleep(times.begin - time.monotonic())
        before = Reading.now(client)
        time.sleep(times.end - time.monotonic())
        used = Reading.now(client) - before
        told = [json.loads(process.communicate(timeout=TIMEOUT_S)[0]) for process in processes]
    seen, client_seconds = zip(*told, strict=True)
    return Load(seen, times.begin, times.end, sum(client_seconds), used)


@contextmanager
def running(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A process with pipes to it; it is killed at the end of the `with`."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def next_line(process: subprocess.Popen[str]) -> str:
    """Wait for its next line."""
    assert process.stdout is not None
    if line := process.stdout.readline():
        return line
    raise RuntimeError(f"{process.args!r} has ended")


# In a process -----------------------------------------------------------------------------------


async def take_part(work: Callable[[Timetable], Coroutine[Any, Any, object]]) -> None:
    """Do this work by the timetable, and print what it returns. Everything is ready for it."""
    write("ready\n")
    times = Timetable(*json.loads(await asyncio.to_thread(sys.stdin.readline)))
    await until(times.start)
    working = asyncio.create_task(work(times))
    await until(times.begin)
    before = time.process_time()
    await until(times.end)
    used = time.process_time() - before
    write(json.dumps([await working, used]))


def write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


async def until(moment: float) -> None:
    """A moment on the monotonic clock, which is that of asyncio's loops."""
    await asyncio.sleep(moment - time.monotonic())
