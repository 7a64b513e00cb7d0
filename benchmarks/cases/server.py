"""What a permit costs the server, against the least that a semaphore in Redis could cost.

The yardstick writes a holder down and takes it off again: a ZADD, and a ZREM when it is over, as
many of them in a round trip as ours takes permits in a call. It keeps no limit, no line, no lease.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import redis

from benchmarks.harness.report import Cell, Goal, Report
from semaphore_middleware.model.limits import Limit
from semaphore_middleware.redis.protocol import Ask
from tests.support.nodes import Caller
from tests.support.servers import RedisServer

SHAPES = ((1, 1), (10, 1), (100, 1), (100, 10), (100, 100))  # permits a call, sites they are of
GOAL = (100, 1), 3.0
NOT_OURS = ("info", "evalsha")  # the benchmark's own questions, and the calls themselves

COLUMNS = (
    "permits a call",
    "sites",
    "ours, us a permit",
    "ZADD + ZREM, us",
    "ratio",
    "commands a permit in the scripts",
)


@dataclass(slots=True)
class Meter:
    """Server processor time and commands run, while `running`: one entry for each time."""

    client: redis.Redis
    microseconds: list[float] = field(default_factory=list)  # a permit
    commands: list[float] = field(default_factory=list)  # a permit, run by the scripts or sent

    @contextmanager
    def running(self, permits: int) -> Iterator[None]:
        seconds, commands = processor_seconds(self.client), _commands(self.client)
        yield
        self.commands.append((_commands(self.client) - commands) / permits)
        self.microseconds.append((processor_seconds(self.client) - seconds) * 1e6 / permits)


def processor_seconds(client: redis.Redis) -> float:
    """What the server has used so far, its kernel time (sockets) with it."""
    info: Any = client.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


def _commands(client: redis.Redis) -> int:
    stats: Any = client.info("commandstats")
    names = re.compile(rf"cmdstat_(?!{'|'.join(NOT_OURS)})")
    return sum(entry["calls"] for name, entry in stats.items() if names.match(name))


def measure(quick: bool) -> Report:
    server = RedisServer().start()
    try:
        return asyncio.run(_measure(server, *((5, 200) if quick else (15, 2000))))
    finally:
        server.remove()


async def _measure(server: RedisServer, rounds: int, permits: int) -> Report:
    caller = await Caller.join(server, "node")
    rows: list[Sequence[Cell]] = []
    goals = []
    with server.client() as client:
        for shape in SHAPES:
            ours, yardstick = Meter(client), Meter(client)
            batch = Batch(caller, *shape)
            await _alternate(rounds, permits, batch, ours, yardstick)
            ratio = median(
                a / b for a, b in zip(ours.microseconds, yardstick.microseconds, strict=True)
            )
            us = median(ours.microseconds), median(yardstick.microseconds)
            rows.append((*shape, *us, ratio, median(ours.commands)))
            if shape == GOAL[0]:
                goals.append(Goal("100 permits a call of one site, ratio", ratio, at_most=GOAL[1]))
    await caller.connection.close()
    note = (
        f"Medians of {rounds} rounds of {permits} permits each, ours and the yardstick in turn, on "
        "one connection of one server. A permit is taken in one call and given back in another."
    )
    return Report("server: processor time of the server a permit", COLUMNS, rows, goals, [note])


async def _alternate(
    rounds: int, permits: int, batch: Batch, ours: Meter, yardstick: Meter
) -> None:
    pair: list[tuple[Meter, Callable[[], Awaitable[None]]]] = [
        (ours, batch.take_and_give_back),
        (yardstick, batch.add_and_remove),
    ]
    for _ in range(10):  # loads the scripts and makes the keys' epochs
        await batch.take_and_give_back()
        await batch.add_and_remove()
    for _ in range(rounds):
        for meter, once in pair:
            times = max(1, permits // batch.permits)
            with meter.running(times * batch.permits):
                for _ in range(times):
                    await once()
        pair.reverse()


class Batch:
    """So many permits at a time, of so many sites, both ways."""

    def __init__(self, caller: Caller, permits: int, sites: int) -> None:
        self.permits = permits
        self._caller = caller
        self._sites = [f"site-{number}.example" for number in range(sites)]
        self._each = permits // sites
        self._last = 0

    async def take_and_give_back(self) -> None:
        numbers = self._new_numbers()
        limit = Limit(self._each)
        store, link = self._caller.store, self._caller.connection
        takes = [Ask("acquire", site, limit, own) for site, own in numbers]
        taken = await store.run(link, takes)
        assert all(answer.granted == answer.ask.numbers for answer in taken)
        await store.run(link, [Ask("release", site, limit, own) for site, own in numbers])

    async def add_and_remove(self) -> None:
        members = [
            (f"yardstick:{site}", f"{self._caller.name}:{number}")
            for site, own in self._new_numbers()
            for number in own
        ]
        call = self._caller.connection.call
        await call([("ZADD", key, number, member) for number, (key, member) in enumerate(members)])
        await call([("ZREM", key, member) for key, member in members])

    def _new_numbers(self) -> list[tuple[str, tuple[int, ...]]]:
        """Always new ones, as a node's are."""
        numbers = []
        for site in self._sites:
            start, self._last = self._last + 1, self._last + self._each
            numbers.append((site, tuple(range(start, self._last + 1))))
        return numbers
