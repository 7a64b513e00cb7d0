"""Many clients on one semaphore, and a judge of its own who counts who is really inside.

The judge lives in the process of the clients and sees them go in and out; it asks no server. A
permit is stolen when its holder lives and is inside, but the semaphore no longer counts it as one.
"""

from __future__ import annotations

import asyncio
import math
import time
from bisect import bisect_right
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import redis

from benchmarks.harness.contender import Client, Contender, Place

HOLD = 0.01  # seconds
MARGIN = 2 * HOLD  # on its way to the server, and back from it, nobody overtakes anybody
APART = 1.0  # seconds by which half of the clocks are ahead
LONG_WORK = 0.65  # of a lease: no reason yet to take the permit from who holds it for so long


@dataclass(slots=True)
class Judge:
    limit: int
    passed: int = 0
    """Times that somebody went in where `limit` were inside already."""
    stolen: int | None = 0
    """None: the semaphore keeps no names to ask for."""
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


@dataclass(frozen=True, slots=True)
class Race:
    """How many take part, and for how long."""

    clients: int
    seconds: float

    async def judged(self, contender: Contender, place: Place, apart: bool = False) -> Judge:
        """All want permits, again and again. With `apart`, half of the clocks are ahead, and one
        whose clock is right holds a permit for long.
        """
        judge = Judge(place.limit)
        async with self._join(contender, place, apart) as (first, *others):
            end = time.monotonic() + self.seconds

            async def come_and_go(client: Client) -> None:
                while time.monotonic() < end:
                    await judge.visit(client, HOLD)

            hold = min(LONG_WORK * place.lease, self.seconds) if apart else HOLD
            await asyncio.gather(judge.visit(first, hold), *map(come_and_go, others))
        return judge

    async def timed(
        self, contender: Contender, place: Place, server: redis.Redis
    ) -> tuple[float, float]:
        """Round trips a permit and permits a second, with no judge and no time spent inside."""
        granted = 0
        async with self._join(contender, place, apart=False) as clients:
            reads, start = _reads(server), time.monotonic()

            async def take_turns(client: Client) -> None:
                nonlocal granted
                while time.monotonic() < start + self.seconds:
                    await client.acquire()
                    granted += 1
                    await client.release()

            await asyncio.gather(*map(take_turns, clients))
            took = time.monotonic() - start
            return (_reads(server) - reads) / granted, granted / took

    @asynccontextmanager
    async def _join(
        self, contender: Contender, place: Place, apart: bool
    ) -> AsyncIterator[list[Client]]:
        async with AsyncExitStack() as stack:
            clients = []
            for number in range(self.clients):
                ahead = APART * (number % 2) if apart else 0.0
                own = replace(place, number=number, clock_ahead=ahead)
                clients.append(await stack.enter_async_context(contender.join(own)))
            yield clients


def _reads(server: redis.Redis) -> int:
    """How often the server has read from a client: one a round trip of who awaits the answer."""
    stats: Any = server.info("stats")
    return int(stats["total_reads_processed"])
