"""What the suites of other semaphores try and no other test here does: the scenarios, not the code.

`test_cancellation.py`, `test_semaphore.py`, `test_leases.py` and `tests/redis/test_scripts.py` have
the rest of them: a request that is cancelled leaves the queue; first come, first served; a permit
that is given back twice frees one; a call that comes twice or late counts once.
"""

from __future__ import annotations

import asyncio

import pytest

from semaphore_middleware import FairSemaphore, Permit
from tests.support.nodes import ENDLESS_S, Caller, Outside, eventually, in_asyncio
from tests.support.servers import RedisServer

SHORT_LEASE_S = 1.5  # seconds: a lease to lose

on_one_node_or_two = pytest.mark.parametrize("nodes", [1, 2], ids=["one node", "another node"])


def ask(semaphore: FairSemaphore, limit: int = 1) -> asyncio.Task[Permit]:
    return asyncio.create_task(semaphore.acquire("s", limit))


async def until_waiting(semaphore: FairSemaphore, count: int) -> None:
    async def as_many() -> bool:
        return (await semaphore.admin.inspect("s")).waiting == count

    await eventually(as_many)


async def nothing_is_left(server: RedisServer) -> None:
    async def empty() -> bool:
        return server.members() == {}

    await eventually(empty)


# asyncio and trio -------------------------------------------------------------------------------


@on_one_node_or_two
@in_asyncio
async def test_permit_of_a_request_that_is_cancelled_as_it_comes_goes_to_the_next(
    server: RedisServer, nodes: int
) -> None:
    """However far its grant has come. The next one hung for ever in asyncio before 3.11.2."""
    async with (
        FairSemaphore(server.url, lease=ENDLESS_S) as a,
        FairSemaphore(server.url, lease=ENDLESS_S) as b,
    ):
        taker = (a, b)[nodes - 1]
        for turns in range(0, 80, 4):
            held = await a.acquire("s", 1)
            first, second = ask(taker), ask(taker)
            await until_waiting(a, 2)
            held.release()
            for _ in range(turns):
                await asyncio.sleep(0)
            first.cancel()
            (outcome,) = await asyncio.gather(first, return_exceptions=True)
            if isinstance(outcome, Permit):  # it was quicker
                outcome.release()
            (await second).release()
        await nothing_is_left(server)


@on_one_node_or_two
@in_asyncio
async def test_those_behind_cancelled_requests_are_served_in_their_order(
    server: RedisServer, nodes: int
) -> None:
    served: list[int] = []

    async def work(semaphore: FairSemaphore, number: int) -> None:
        async with semaphore.permit("s", 1):
            served.append(number)

    async with (
        FairSemaphore(server.url, lease=ENDLESS_S) as a,
        FairSemaphore(server.url, lease=ENDLESS_S) as b,
    ):
        held = await a.acquire("s", 1)
        taker = (a, b)[nodes - 1]
        tasks = [asyncio.create_task(work(taker, number)) for number in range(6)]
        await until_waiting(a, 6)
        tasks[0].cancel()
        tasks[3].cancel()
        held.release()
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert served == [2, 4, 5]


@on_one_node_or_two
@in_asyncio
async def test_who_gives_back_and_asks_again_at_once_comes_after_those_that_wait(
    server: RedisServer, nodes: int
) -> None:
    """Without a pause in between: nobody may take the permit from under those that wait for it."""
    async with (
        FairSemaphore(server.url, lease=ENDLESS_S) as a,
        FairSemaphore(server.url, lease=ENDLESS_S) as b,
    ):
        held = await a.acquire("s", 1)
        first = ask((a, b)[nodes - 1])
        await until_waiting(a, 1)
        for _ in range(5):
            held.release()
            again = ask(a)
            held = await first
            assert not again.done()
            first = again
        held.release()
        (await first).release()
        await nothing_is_left(server)


# Redisson ---------------------------------------------------------------------------------------


@in_asyncio
async def test_permits_given_back_at_once_serve_as_many_that_wait(server: RedisServer) -> None:
    """One message for all of them is enough (Redisson's issue 6664), and none waits for its
    node's next renewal (5762): no renewal comes in this lease.
    """
    async with (
        FairSemaphore(server.url, lease=ENDLESS_S) as a,
        FairSemaphore(server.url, lease=ENDLESS_S) as b,
    ):
        held = await asyncio.gather(*(a.acquire("s", 8) for _ in range(8)))
        tasks = [ask(b, 8) for _ in range(8)]
        await until_waiting(a, 8)
        for permit in held:
            permit.release()
        for permit in await asyncio.gather(*tasks):
            permit.release()
        await nothing_is_left(server)


@in_asyncio
async def test_permit_given_back_after_its_lease_has_ended_frees_none_of_another_s(
    server: RedisServer, outside: Outside
) -> None:
    """Redisson's issue 4086: an expired permit counted twice, once as expired, once as released."""
    late = await Caller.join(server, "late", lease=SHORT_LEASE_S)
    await late.take("s")
    said = late.statement("s", 1, returned=1)
    living = await Caller.join(server, "living")
    await living.take("s", 2)

    async def granted() -> bool:
        await living.renew("s")
        return outside.held() == {"living": 1}

    await eventually(granted)
    for _ in range(3):
        await late.send(said)
    assert outside.held() == {"living": 1}
    assert outside.waiting() == {"living": 1}


# Hazelcast --------------------------------------------------------------------------------------


@in_asyncio
async def test_release_that_is_sent_again_after_its_node_was_served_anew_frees_nothing(
    server: RedisServer, outside: Outside
) -> None:
    """Meanwhile the permit has been another node's, and has come back."""
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s")
    await b.take("s")
    a.book("s").returned += 1
    released = a.statement("s")
    a.hear(*await a.send(released) or [])
    assert outside.held() == {"b": 1}
    await a.take("s")
    await b.renew("s")
    await b.give_back("s")
    await b.take("s")
    assert outside.held() == {"a": 1}
    await a.send(released)
    assert outside.held() == {"a": 1}
    assert outside.waiting() == {"b": 1}
