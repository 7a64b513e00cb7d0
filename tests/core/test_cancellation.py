"""A task may be cancelled at any await, and a permit lost at any moment: nothing leaks."""

from __future__ import annotations

import asyncio

import pytest

from semaphore_middleware import FairSemaphore, PermitLostError
from tests.support.nodes import ENDLESS_S, Outside, eventually
from tests.support.servers import RedisServer


async def test_a_lost_permit_ends_what_runs_under_it(server: RedisServer, outside: Outside) -> None:
    async with FairSemaphore(server.url, lease=1.5) as semaphore:
        with pytest.raises(PermitLostError, match="could not be renewed in time"):
            async with semaphore.permit("s", 1) as permit:
                outside.client.delete(*outside.in_use())  # the next renewal tells
                await asyncio.sleep(ENDLESS_S)
        assert not permit.lost, "it was given back"
        kept = await semaphore.acquire("kept", 1)
        with pytest.raises(PermitLostError):
            async with semaphore.permit("s", 1) as permit:
                with kept.until_lost():
                    permit._lose("it is gone")
                    await asyncio.sleep(ENDLESS_S)
        assert not kept.lost


async def test_no_cancellation_is_left_behind_whatever_the_body_does(server: RedisServer) -> None:
    task = asyncio.current_task()
    assert task is not None
    async with FairSemaphore(server.url) as semaphore:
        permit = await semaphore.acquire("s", 1)
        with pytest.raises(PermitLostError, match="it is gone"), permit.until_lost():
            try:
                permit._lose("it is gone")
                await asyncio.sleep(ENDLESS_S)
            finally:
                permit.release()
        with pytest.raises(ZeroDivisionError):
            async with semaphore.permit("s", 1) as permit:
                try:
                    permit._lose("it is gone")
                    await asyncio.sleep(ENDLESS_S)
                except asyncio.CancelledError:
                    raise ZeroDivisionError from None
        assert task.cancelling() == 0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.sleep(ENDLESS_S)
        permit = await semaphore.acquire("s", 1)
        permit._lose("it is gone")
        with pytest.raises(PermitLostError, match="it is gone"), permit.until_lost():
            pytest.fail("it has begun")
        permit.release()


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_cancellation_from_outside_stays_one(server: RedisServer, is_lost: bool) -> None:
    entered, ending = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        async with semaphore.permit("s", 1):
            entered.set()
            try:
                await asyncio.sleep(ENDLESS_S)
            finally:
                ending.set()
                for _ in range(5):
                    await asyncio.sleep(0)

    async with FairSemaphore(server.url) as semaphore:
        task = asyncio.create_task(work())
        await entered.wait()
        if is_lost:
            for permit in semaphore.permits():
                permit._lose("it is gone")
            await ending.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: server.members() == {})
