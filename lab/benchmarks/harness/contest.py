"""Processes whose clients all want permits of one scope: who is served, and what that takes.

`python -m lab.benchmarks.harness.contest CONTENDER TOLD`: the contender is pickled, as hexadecimal
digits, and what it is told is JSON. A client asks, works for a while, gives back, and asks again.
Each process writes down when that was: no server says how many were at work at once.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from lab.benchmarks.harness.contender import Client, Contender, Place
from lab.benchmarks.harness.load import Result, Timetable, Visit, put_under_load, take_part
from tests.support.servers import RedisServer

WARM_UP_S = 0.5


def contest(
    server: RedisServer,
    contender: Contender,
    place: Place,
    clients: Sequence[int],
    work_s: float,
    seconds: float,
) -> Result:
    """With so many clients in each process, for so many seconds that are counted."""
    command = [sys.executable, "-m", "lab.benchmarks.harness.contest"]
    commands = []
    for number, own in enumerate(clients):
        told = {"place": asdict(replace(place, number=number)), "clients": own, "work_s": work_s}
        commands.append([*command, pickle.dumps(contender).hex(), json.dumps(told)])
    load = put_under_load(server, commands, WARM_UP_S, seconds)
    visits = [Visit(node, *times) for node, own in enumerate(load.seen) for times in own]
    return Result(sorted(visits, key=lambda visit: visit.begin), load)


# In a process -----------------------------------------------------------------------------------


async def play(contender: Contender, place: Place, number: int, work_s: float) -> None:
    visits: list[tuple[float, float]] = []

    async def come_and_go(client: Client, end: float) -> None:
        while time.monotonic() < end:
            await client.acquire()
            granted = time.monotonic()
            await asyncio.sleep(work_s)
            visits.append((granted, time.monotonic()))
            await client.release()

    async with contender.node(place, number) as clients:

        async def work(times: Timetable) -> Any:
            await asyncio.gather(*(come_and_go(client, times.end) for client in clients))
            return visits

        await take_part(work)


if __name__ == "__main__":
    contender, told = pickle.loads(bytes.fromhex(sys.argv[1])), json.loads(sys.argv[2])
    asyncio.run(play(contender, Place(**told["place"]), told["clients"], told["work_s"]))
