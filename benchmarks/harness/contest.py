"""Processes whose clients all want permits of one scope: who is served, and what that takes.

A client asks, works for a while, gives back, and asks again. Each process writes down when that
was, on CLOCK_MONOTONIC, which Linux keeps for all processes of a machine together: no server says
how many were at work at once.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.harness.contender import Client, Contender, Place
from benchmarks.harness.in_hand import mean, most
from benchmarks.harness.meter import Reading
from tests.support.servers import RedisServer

START_S = 0.1  # from when all are told to when they start
WARM_UP_S = 0.5  # from then to when the counted time begins
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Visit:
    """One permit: when it was asked for and granted, and when the work was done."""

    node: int
    asked: float
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Timetable:
    """Moments on the monotonic clock: all start, and the counted time begins and ends."""

    start: float
    begin: float
    end: float


class Player:
    """A process that takes part, as it is seen by who runs the contest."""

    def wait_until_ready(self) -> None:
        raise NotImplementedError

    def start(self, timetable: Timetable) -> None:
        raise NotImplementedError

    def result(self) -> tuple[list[tuple[float, float, float]], float]:
        """Its visits (asked, granted, done), and the processor time of the counted time."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Load:
    """What the clients of a process do."""

    work_s: float  # with each permit
    clients: int


Join = Callable[[Place, Load], AbstractContextManager[Player]]
"""Start a process; it is killed at the end of the `with` if it still runs."""


@dataclass(frozen=True, slots=True)
class Result:
    """What was seen in the counted time; `visits` has those before and after it, too."""

    visits: Sequence[Visit]
    begin: float
    end: float
    client_seconds: float  # of processor time, of all processes together
    server: Reading

    @property
    def counted(self) -> list[Visit]:
        """The visits that began in the counted time."""
        return [visit for visit in self.visits if self.begin <= visit.begin < self.end]

    @property
    def most(self) -> int:
        """How many were at work at once, at most, at any time."""
        return most(self.visits)

    @property
    def mean(self) -> float:
        """How many were at work at once, on average."""
        return mean(self.visits, self.begin, self.end)


def contest(
    server: RedisServer,
    join: Join,
    place: Place,
    clients: Sequence[int],
    work_s: float,
    seconds: float,
) -> Result:
    """With so many clients in each process, for so many seconds that are counted."""
    with ExitStack() as stack, server.client() as client:
        players = [stack.enter_context(join(place, Load(work_s, number))) for number in clients]
        for player in players:
            player.wait_until_ready()
        start = time.monotonic() + START_S
        timetable = Timetable(start, start + WARM_UP_S, start + WARM_UP_S + seconds)
        for player in players:
            player.start(timetable)
        time.sleep(timetable.begin - time.monotonic())
        before = Reading.now(client)
        time.sleep(timetable.end - time.monotonic())
        used = Reading.now(client) - before
        results = [player.result() for player in players]
    visits = [Visit(node, *times) for node, (own, _) in enumerate(results) for times in own]
    client_seconds = sum(seconds for _, seconds in results)
    return Result(visits, timetable.begin, timetable.end, client_seconds, used)


# In Python --------------------------------------------------------------------------------------


def in_python(contender: Contender) -> Join:
    """Processes of this benchmark's own."""
    return partial(_python, contender)


class PythonPlayer(Player):
    """A process that joins a contender."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def wait_until_ready(self) -> None:
        self._receive()

    def start(self, timetable: Timetable) -> None:
        self._pipe.send(timetable)

    def result(self) -> tuple[list[tuple[float, float, float]], float]:
        visits, seconds = self._receive()
        return visits, seconds

    def _receive(self) -> Any:
        if not self._pipe.poll(TIMEOUT_S):
            raise TimeoutError("a process of the contest says nothing")
        return self._pipe.recv()


@contextmanager
def _python(contender: Contender, place: Place, load: Load) -> Iterator[Player]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_play, args=(contender, place, load, there), daemon=True)
    process.start()
    there.close()  # so that its end is seen here
    try:
        yield PythonPlayer(here)
    finally:
        process.join(1)
        process.kill()


def _play(contender: Contender, place: Place, load: Load, pipe: Connection) -> None:
    pipe.send(asyncio.run(_take_part(contender, place, load, pipe)))


async def _take_part(
    contender: Contender, place: Place, load: Load, pipe: Connection
) -> tuple[list[tuple[float, float, float]], float]:
    visits: list[tuple[float, float, float]] = []

    async def come_and_go(client: Client, end: float) -> None:
        while (asked := time.monotonic()) < end:
            await client.acquire()
            granted = time.monotonic()
            await asyncio.sleep(load.work_s)
            visits.append((asked, granted, time.monotonic()))
            await client.release()

    async with contender.node(place, load.clients) as clients:
        pipe.send("ready")
        timetable = await asyncio.to_thread(pipe.recv)
        await _until(timetable.start)
        tasks = [asyncio.create_task(come_and_go(client, timetable.end)) for client in clients]
        await _until(timetable.begin)
        before = time.process_time()
        await _until(timetable.end)
        used = time.process_time() - before
        await asyncio.gather(*tasks)
    return visits, used


async def _until(moment: float) -> None:
    await asyncio.sleep(moment - time.monotonic())


# In another language ----------------------------------------------------------------------------


def by_command(*command: str) -> Join:
    """Processes of a command, to which the place and the load are added, as JSON.

    It writes a line when it is ready, reads the timetable, as a JSON list, from its standard input,
    and writes what `Player.result` returns.
    """
    return partial(_command, command)


class CommandPlayer(Player):
    """A process of a command."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def wait_until_ready(self) -> None:
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError(f"{self._process.args!r} has ended")

    def start(self, timetable: Timetable) -> None:
        assert self._process.stdin is not None
        moments = [timetable.start, timetable.begin, timetable.end]
        self._process.stdin.write(json.dumps(moments) + "\n")
        self._process.stdin.flush()

    def result(self) -> tuple[list[tuple[float, float, float]], float]:
        out, _ = self._process.communicate(timeout=TIMEOUT_S)
        visits, seconds = json.loads(out)
        return visits, seconds


@contextmanager
def _command(command: Sequence[str], place: Place, load: Load) -> Iterator[Player]:
    told = {
        "path": place.path,
        "scope": place.scope,
        "limit": place.limit,
        "lease_ms": 1000 * place.lease,
        "clients": load.clients,
        "work_ms": 1000 * load.work_s,
    }
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*command, json.dumps(told)], stdin=pipe, stdout=pipe, text=True
    ) as process:
        try:
            yield CommandPlayer(process)
        finally:
            process.kill()
