"""A holder that dies, which is a process that is killed, and one that merely works for long."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

from benchmarks.harness.contender import Client, Contender, Place
from benchmarks.harness.race import HOLD, Judge

LIVING = 3  # clients beside a dead holder
LEASES = 3.0  # after so many, a dead holder's permit counts as gone for good
WORK = 1.8  # leases that who merely works for long does so
NEWCOMER = 1.3  # leases after which somebody else asks


@dataclass(frozen=True, slots=True)
class Death:
    judge: Judge
    back_after: float | None
    """Seconds from a holder's death to the grant of its permit to another; None: never seen."""


class Victim:
    """A process that takes a permit when it is told to, and does not live to give it back."""

    def __init__(self, contender: Contender, place: Place) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        arguments = (contender, place, there)
        self._process = context.Process(target=_take_a_permit, args=arguments, daemon=True)
        self._process.start()

    async def is_there(self) -> None:
        await asyncio.to_thread(self._pipe.recv)

    async def take(self) -> None:
        self._pipe.send("take")
        await asyncio.to_thread(self._pipe.recv)

    def die(self) -> None:
        self._process.kill()
        self._process.join()


def _take_a_permit(contender: Contender, place: Place, pipe: Connection) -> None:
    async def live() -> None:
        async with contender.join(place) as client:
            pipe.send("here")
            await asyncio.to_thread(pipe.recv)
            await client.acquire()
            pipe.send("taken")
            await asyncio.Event().wait()

    asyncio.run(live())


async def dead_holders(
    contenders: Sequence[tuple[Contender, Place]], others: int = LIVING
) -> list[Death]:
    """For each contender one, at once: it is mostly waiting. `others` live, and come and go."""
    victims = [Victim(*contender) for contender in contenders]
    try:
        for victim in victims:
            await victim.is_there()
        await asyncio.gather(*(victim.take() for victim in victims))
    finally:
        for victim in victims:
            victim.die()
    died = time.monotonic()
    return await asyncio.gather(*(_outlive(died, *pair, others) for pair in contenders))


async def _outlive(died: float, contender: Contender, place: Place, others: int) -> Death:
    judge = Judge(place.limit)
    back_after = None
    async with AsyncExitStack() as stack:
        join = stack.enter_async_context
        clients = [await join(contender.join(place)) for _ in range(others)]
        tasks = []
        for client in clients:  # not at once: this is no race
            tasks.append(asyncio.create_task(_come_and_go(judge, client)))
            await asyncio.sleep(HOLD)
        with suppress(TimeoutError):
            async with asyncio.timeout(LEASES * place.lease):
                await judge.full.wait()
                back_after = time.monotonic() - died
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return Death(judge, back_after)


async def _come_and_go(judge: Judge, client: Client) -> None:
    while True:
        await judge.visit(client, 5 * HOLD)


async def long_holder(contender: Contender, place: Place) -> Judge:
    """Of one permit. Nobody else calls while it works for long; then a newcomer asks."""
    judge = Judge(place.limit)
    async with contender.join(place) as worker, contender.join(place) as newcomer:
        working = asyncio.create_task(judge.visit(worker, WORK * place.lease))
        await asyncio.sleep(NEWCOMER * place.lease)
        await asyncio.gather(working, judge.visit(newcomer, HOLD))
    return judge
