"""Clients on one semaphore, what may go wrong for them, and a judge who counts who is inside.

The judge lives in the process of the clients and sees them go in and out; it asks no server. A
permit is stolen when its holder lives and is inside, but the semaphore no longer counts it as one.

`python -m lab.benchmarks.harness.race HOLDER` is a process that takes a permit and is killed:
HOLDER is a contender and its place, pickled, as hexadecimal digits.
"""

from __future__ import annotations

import asyncio
import math
import pickle
import sys
import time
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate

from lab.benchmarks.harness.contender import Client, Contender, Place
from lab.benchmarks.harness.load import hear, running, tell, write

HOLD = 0.01  # seconds
MARGIN = 2 * HOLD  # on its way to the server, and back from it, nobody overtakes anybody
APART = 1.0  # seconds by which half of the clocks are ahead
LONG_WORK = 0.65  # of a lease: no reason yet to take the permit from who holds it for so long
LEASES = 3.0  # after so many, a dead holder's permit counts as gone for good
WORK = 1.8  # leases that who merely works for long does so
NEWCOMER = 1.3  # leases after which somebody else asks


@dataclass(slots=True)
class Judge:
    """What it has seen of the clients of one semaphore."""

    limit: int
    passed: int = 0
    """Times that somebody went in where `limit` were inside already."""
    stolen: int | None = 0
    """None: the semaphore keeps no names to ask for."""
    back_after: float | None = None
    """Seconds from a holder's death to the grant of its permit to another; None: never seen."""
    inside: int = 0
    full: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when as many as may are inside for the first time."""
    visits: list[tuple[float, float]] = field(default_factory=list)  # asked, granted

    async def visit(self, client: Client, hold: float) -> None:
        asked = time.monotonic()
        await client.acquire()
        self.visits.append((asked, time.monotonic()))
        self.inside += 1
        self.passed += self.inside > self.limit
        if self.inside >= self.limit:
            self.full.set()
        await asyncio.sleep(hold)
        held = await client.holds()
        self.inside -= 1
        if held is None or self.stolen is None:
            self.stolen = None
        else:
            self.stolen += not held
        await client.release()

    @property
    def out_of_order(self) -> int:
        """Grants after which, by more than the margin, one came that had been asked for earlier,
        by more than the margin.
        """
        visits = sorted(self.visits, key=lambda visit: visit[1])
        grants = [granted for _, granted in visits]
        asked_from_here_on = [*accumulate((asked for asked, _ in reversed(visits)), min)][::-1]
        first_asked = [*asked_from_here_on, math.inf]
        return sum(
            first_asked[bisect_right(grants, granted + MARGIN)] < asked - MARGIN
            for asked, granted in visits
        )


async def run(
    contender: Contender, place: Place, clients: int, seconds: float, apart: bool = False
) -> Judge:
    """All want permits, again and again. With `apart`, half of the clocks are ahead, and one whose
    clock is right holds a permit for long.
    """
    judge = Judge(place.limit)
    async with AsyncExitStack() as stack:
        joined = []
        for number in range(clients):
            ahead = APART * (number % 2) if apart else 0.0
            own = replace(place, number=number, clock_ahead=ahead)
            joined.append(await stack.enter_async_context(contender.join(own)))
        end = time.monotonic() + seconds

        async def come_and_go(client: Client) -> None:
            while time.monotonic() < end:
                await judge.visit(client, HOLD)

        hold = min(LONG_WORK * place.lease, seconds) if apart else HOLD
        first, *others = joined
        await asyncio.gather(judge.visit(first, hold), *map(come_and_go, others))
    return judge


async def long_holder(contender: Contender, place: Place) -> Judge:
    """Of one permit. Nobody else calls while it works for long; then a newcomer asks."""
    judge = Judge(place.limit)
    async with contender.join(place) as worker, contender.join(place) as newcomer:
        working = asyncio.create_task(judge.visit(worker, WORK * place.lease))
        await asyncio.sleep(NEWCOMER * place.lease)
        await asyncio.gather(working, judge.visit(newcomer, HOLD))
    return judge


# Death ------------------------------------------------------------------------------------------


async def dead_holders(
    contenders: Sequence[tuple[Contender, Place]], others: int
) -> Sequence[Judge]:
    """For each contender one, at once: it is mostly waiting. `others` live, and come and go."""
    command = (sys.executable, "-m", "lab.benchmarks.harness.race")
    with ExitStack() as stack:  # at its end, they are killed
        victims = [
            stack.enter_context(running((*command, pickle.dumps(one).hex()))) for one in contenders
        ]
        for victim in victims:
            hear(victim)
        for victim in victims:
            tell(victim, "take")
        for victim in victims:
            hear(victim)
    died = time.monotonic()
    return await asyncio.gather(*(_outlive(died, *pair, others) for pair in contenders))


async def take_a_permit(contender: Contender, place: Place) -> None:
    """When it is told to. It does not live to give it back."""
    async with contender.join(place) as client:
        write("here\n")
        await asyncio.to_thread(sys.stdin.readline)
        await client.acquire()
        write("taken\n")
        await asyncio.Event().wait()


async def _outlive(died: float, contender: Contender, place: Place, others: int) -> Judge:
    judge = Judge(place.limit)

    async def come_and_go(client: Client) -> None:
        while True:
            await judge.visit(client, 5 * HOLD)

    async with AsyncExitStack() as stack:
        join = stack.enter_async_context
        clients = [await join(contender.join(place)) for _ in range(others)]
        tasks = []
        for client in clients:  # not at once: this is no race
            tasks.append(asyncio.create_task(come_and_go(client)))
            await asyncio.sleep(HOLD)
        with suppress(TimeoutError):
            async with asyncio.timeout(LEASES * place.lease):
                await judge.full.wait()
                judge.back_after = time.monotonic() - died
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return judge


if __name__ == "__main__":
    asyncio.run(take_a_permit(*pickle.loads(bytes.fromhex(sys.argv[1]))))
