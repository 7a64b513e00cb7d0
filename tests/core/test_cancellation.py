"""A task may be cancelled at any await, and a permit lost at any moment: nothing leaks."""

from __future__ import annotations

import asyncio

import pytest

from semaphore_middleware import AcquireTimeoutError, FairSemaphore, PermitLostError
from tests.support.nodes import ENDLESS_S, Outside, eventually, in_asyncio
from tests.support.servers import RedisServer

SHORT_LEASE_S = 1.5  # seconds: a lease to lose


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def hold(semaphore: FairSemaphore) -> None:
    async with semaphore.permit("s", 1):
        await asyncio.sleep(0)


async def cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def nothing_is_left(server: RedisServer) -> None:
    async def empty() -> bool:
        return server.members() == {}

    await eventually(empty)


# Cancelled --------------------------------------------------------------------------------------


@in_asyncio
async def test_cancelled_while_it_waits_a_request_leaves_the_queue(server: RedisServer) -> None:
    async with FairSemaphore(server.url) as a, FairSemaphore(server.url) as b:
        held = await a.acquire("s", 1)
        tasks = [asyncio.create_task(hold(b)) for _ in range(3)]

        async def in_the_queue() -> bool:
            return (await a.admin.inspect("s")).waiting > 0

        await eventually(in_the_queue)
        for left in (2, 1, 0):
            await cancel(tasks.pop())
            assert len(b.permits()) == left

        async def out_of_the_queue() -> bool:
            return (await a.admin.inspect("s")).waiting == 0

        await eventually(out_of_the_queue)
        held.release()
        await nothing_is_left(server)


@in_asyncio
async def test_cancelled_after_any_number_of_turns_nothing_leaks(server: RedisServer) -> None:
    async with FairSemaphore(server.url) as a, FairSemaphore(server.url) as b:
        held = await a.acquire("s", 1)
        for k in range(31):
            tasks = [asyncio.create_task(hold(each)) for each in (a, b)]
            await turns(k)
            for task in tasks:
                await cancel(task)
        held.release()
        await nothing_is_left(server)


@in_asyncio
async def test_cancelled_while_the_grant_is_under_way_nothing_leaks(server: RedisServer) -> None:
    async with FairSemaphore(server.url) as a, FairSemaphore(server.url) as b:
        for k in range(0, 300, 10):
            for giver, taker in ((a, a), (a, b)):
                held = await giver.acquire("s", 1)
                task = asyncio.create_task(hold(taker))
                await asyncio.sleep(0.001)
                held.release()
                await turns(k)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await nothing_is_left(server)


@in_asyncio
async def test_cancelled_by_hundreds_the_rest_still_get_theirs(server: RedisServer) -> None:
    async with FairSemaphore(server.url) as a, FairSemaphore(server.url) as b:
        held = await a.acquire("s", 1)
        tasks = [asyncio.create_task(hold(each)) for each in (a, b) * 200]
        await turns(20)
        for task in tasks[::3]:
            task.cancel()
        held.release()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert outcomes.count(None) == len(tasks) - len(tasks[::3])
        await nothing_is_left(server)


@in_asyncio
async def test_a_timeout_that_races_with_the_grant_leaks_nothing(server: RedisServer) -> None:
    async with FairSemaphore(server.url) as semaphore:
        for milliseconds in (0, 0.1, 0.3, 0.5, 1, 2) * 5:
            try:
                permit = await semaphore.acquire("s", 1, timeout=milliseconds / 1000)
            except AcquireTimeoutError:
                continue
            permit.release()
        await nothing_is_left(server)


# Lost -------------------------------------------------------------------------------------------


async def lose(outside: Outside) -> None:
    """The server forgets the permit: the next renewal tells."""
    outside.client.delete(*outside.in_use())


@in_asyncio
async def test_a_lost_permit_ends_what_runs_under_it(server: RedisServer, outside: Outside) -> None:
    async with FairSemaphore(server.url, lease=SHORT_LEASE_S) as semaphore:
        with pytest.raises(PermitLostError, match="could not be renewed in time"):
            async with semaphore.permit("s", 1) as permit:
                await lose(outside)
                await asyncio.sleep(ENDLESS_S)
        assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]
        assert not permit.lost, "it was given back"
        async with semaphore.permit("s", 1):
            pass


@in_asyncio
async def test_a_permit_given_back_by_the_body_itself_is_lost_all_the_same(
    server: RedisServer, outside: Outside
) -> None:
    async with FairSemaphore(server.url, lease=SHORT_LEASE_S) as semaphore:
        permit = await semaphore.acquire("s", 1)
        with pytest.raises(PermitLostError), permit.until_lost():
            try:
                await lose(outside)
                await asyncio.sleep(ENDLESS_S)
            finally:
                permit.release()


@in_asyncio
async def test_a_body_that_makes_something_else_of_it_leaves_no_cancellation_behind(
    server: RedisServer, outside: Outside
) -> None:
    task = asyncio.current_task()
    assert task is not None
    async with FairSemaphore(server.url, lease=SHORT_LEASE_S) as semaphore:
        with pytest.raises(ZeroDivisionError):
            async with semaphore.permit("s", 1):
                await lose(outside)
                try:
                    await asyncio.sleep(ENDLESS_S)
                except asyncio.CancelledError:
                    raise ZeroDivisionError from None
        assert task.cancelling() == 0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.sleep(ENDLESS_S)


@in_asyncio
async def test_a_cancellation_from_outside_stays_one(server: RedisServer) -> None:
    entered = asyncio.Event()

    async def work() -> None:
        async with semaphore.permit("s", 1):
            entered.set()
            await asyncio.sleep(ENDLESS_S)

    async with FairSemaphore(server.url) as semaphore:
        task = asyncio.create_task(work())
        await entered.wait()
        await cancel(task)
        await nothing_is_left(server)


@in_asyncio
async def test_a_cancellation_from_outside_wins_over_a_lost_permit(
    server: RedisServer, outside: Outside
) -> None:
    entered, ending = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        async with semaphore.permit("s", 1):
            entered.set()
            try:
                await asyncio.sleep(ENDLESS_S)
            finally:
                ending.set()
                await asyncio.sleep(0.01)

    async with FairSemaphore(server.url, lease=SHORT_LEASE_S) as semaphore:
        task = asyncio.create_task(work())
        await entered.wait()
        await lose(outside)
        await ending.wait()  # lost; and while it ends
        await cancel(task)


@in_asyncio
async def test_each_task_s_permit_is_its_own_to_lose(server: RedisServer, outside: Outside) -> None:
    async with FairSemaphore(server.url, lease=SHORT_LEASE_S) as semaphore:
        kept = await semaphore.acquire("kept", 1)
        before = outside.in_use()
        with pytest.raises(PermitLostError):
            async with semaphore.permit("lost", 1):
                outside.client.delete(*(outside.in_use() - before))
                with kept.until_lost():
                    await asyncio.sleep(ENDLESS_S)
        assert not kept.lost


@in_asyncio
async def test_closing_ends_what_runs_under_a_permit_before_another_may_start(
    server: RedisServer,
) -> None:
    closing, other = FairSemaphore(server.url), FairSemaphore(server.url)
    inside: list[str] = []
    entered = asyncio.Event()

    async def work(semaphore: FairSemaphore, name: str) -> None:
        async with semaphore.permit("s", 1):
            inside.append(name)
            entered.set()
            try:
                assert inside == [name], "alone"
                if name == "closing":
                    await asyncio.Event().wait()
            finally:
                inside.remove(name)

    async with other:
        await closing.open()
        working = asyncio.create_task(work(closing, "closing"))
        await entered.wait()
        next_one = asyncio.create_task(work(other, "other"))
        await closing.close()
        with pytest.raises(PermitLostError, match="closed"):
            await working
        await next_one
    assert server.members() == {}
