"""What the suites of other semaphores try and no other test here does: the scenarios, not the code.

From asyncio and trio, and Redisson. `test_cancellation.py`, `test_semaphore.py` and
`tests/redis/test_scripts.py` have the rest: a request that is cancelled leaves the queue, or leaves
its permit to the next; a permit that is given back twice frees one; a call that comes twice counts
once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from semaphore_middleware import FairSemaphore, Permit
from tests.support.nodes import ENDLESS_S, Caller, Outside, eventually, in_asyncio
from tests.support.servers import RedisServer

on_one_node_or_two = pytest.mark.parametrize("count", [1, 2], ids=["one node", "another node"])


@asynccontextmanager
async def holder_and_taker(
    server: RedisServer, count: int
) -> AsyncIterator[tuple[FairSemaphore, FairSemaphore]]:
    """One node, twice, or two nodes."""
    async with (
        FairSemaphore(server.url, lease=ENDLESS_S) as a,
        FairSemaphore(server.url, lease=ENDLESS_S) as b,
    ):
        yield a, (a, b)[count - 1]


def ask(semaphore: FairSemaphore, limit: int = 1) -> asyncio.Task[Permit]:
    return asyncio.create_task(semaphore.acquire("s", limit))


async def until_waiting(outside: Outside, count: int) -> None:
    async def as_many() -> bool:
        return sum(outside.waiting().values()) == count

    await eventually(as_many)


@on_one_node_or_two
@in_asyncio
async def test_who_gives_back_and_asks_again_at_once_comes_after_those_that_wait(
    server: RedisServer, outside: Outside, count: int
) -> None:
    """Without a pause in between: nobody may take the permit from under those that wait for it."""
    async with holder_and_taker(server, count) as (holder, taker):
        held = await holder.acquire("s", 1)
        first = ask(taker)
        await until_waiting(outside, 1)
        for _ in range(5):
            held.release()
            again = ask(holder)
            held = await first
            assert not again.done()
            first = again
        held.release()
        (await first).release()


@in_asyncio
async def test_permits_given_back_at_once_serve_as_many_that_wait(
    server: RedisServer, outside: Outside
) -> None:
    """One message for all of them is enough (Redisson's issue 6664), and none waits for its
    node's next renewal (5762): no renewal comes in this lease.
    """
    async with holder_and_taker(server, 2) as (holder, taker):
        held = await asyncio.gather(*(holder.acquire("s", 8) for _ in range(8)))
        tasks = [ask(taker, 8) for _ in range(8)]
        await until_waiting(outside, 8)
        for permit in held:
            permit.release()
        for permit in await asyncio.gather(*tasks):
            permit.release()


@in_asyncio
async def test_a_permit_given_back_after_its_lease_has_ended_frees_none_of_another_s(
    server: RedisServer, outside: Outside
) -> None:
    """Redisson's issue 4086: an expired permit counted twice, once as expired, once as released."""
    late, living = await Caller.join(server, "late"), await Caller.join(server, "living")
    await late.take("s")
    said = late.statement("s", 1, returned=1)
    await living.take("s", 2)
    outside.end_leases("late", "s")
    await living.renew("s")
    for _ in range(3):
        await late.send(said)
    assert outside.held() == {"living": 1}
    assert outside.waiting() == {"living": 1}
