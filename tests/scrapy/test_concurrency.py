"""LocalConcurrency: who gets a free place, who parks, and who is woken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from semaphore_middleware import ClosedError
from semaphore_middleware.scrapy import concurrency
from semaphore_middleware.scrapy.concurrency import LocalConcurrency
from tests.support.nodes import in_asyncio

Task = asyncio.Task[Any]


async def full(limit: int) -> LocalConcurrency:
    places = LocalConcurrency(limit)
    for _ in range(limit):
        assert await places.acquire()
    return places


async def start(count: int, wait: Callable[[], Coroutine[Any, Any, object]]) -> list[Task]:
    """Tasks that wait for a place."""
    tasks = [asyncio.create_task(wait()) for _ in range(count)]
    await turns()
    assert not [task for task in tasks if task.done()]
    return tasks


async def turns() -> None:
    for _ in range(5):  # of the loop
        await asyncio.sleep(0)


async def done(*tasks: Task) -> list[bool]:
    await turns()
    return [task.done() for task in tasks]


@pytest.fixture
def no_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "PERMIT_IDLE_TIMEOUT_S", 600.0)


# With a permit ----------------------------------------------------------------------------------


@in_asyncio
async def test_limit_0_is_no_limit() -> None:
    places = LocalConcurrency(0)
    for _ in range(1000):
        assert await places.acquire()
    assert not places.is_short


@pytest.mark.usefixtures("no_timeout")
@in_asyncio
async def test_places_are_handed_over_first_come_first_served() -> None:
    places = await full(2)
    first, second = await start(2, places.acquire)
    assert places.is_short
    places.release()
    late = asyncio.create_task(places.acquire())
    assert await done(first, second, late) == [True, False, False]
    places.release()
    places.release()
    assert await done(second, late) == [True, True]
    assert all([first.result(), second.result(), late.result()])
    assert not places.is_short


@in_asyncio
async def test_acquire_returns_false_after_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "PERMIT_IDLE_TIMEOUT_S", 0.01)
    places = await full(1)
    assert not await places.acquire()
    places.release()
    assert await places.acquire()


@pytest.mark.usefixtures("no_timeout")
@in_asyncio
async def test_a_place_that_comes_with_a_cancellation_is_passed_on() -> None:
    places = await full(1)
    first, second = await start(2, places.acquire)
    places.release()
    first.cancel()
    assert await done(first, second) == [True, True]
    assert first.cancelled()
    assert second.result()


@pytest.mark.usefixtures("no_timeout")
@in_asyncio
async def test_a_cancelled_task_is_passed_over() -> None:
    places = await full(1)
    first, second = await start(2, places.acquire)
    first.cancel()
    await turns()
    places.release()
    assert await done(first, second) == [True, True]
    assert second.result()


# Parked -----------------------------------------------------------------------------------------


@in_asyncio
async def test_each_free_place_wakes_one_parked_task() -> None:
    places = await full(2)
    tasks = await start(3, places.park)
    assert places.is_short
    places.release()
    assert await done(*tasks) == [True, False, False]
    places.release()
    assert await done(*tasks) == [True, True, False]
    places.wake_parked()
    assert await done(*tasks) == [True, True, True]
    assert not places.is_short


@pytest.mark.usefixtures("no_timeout")
@in_asyncio
async def test_permit_holders_go_before_parked_tasks() -> None:
    places = await full(1)
    (parked,) = await start(1, places.park)
    (holder,) = await start(1, places.acquire)
    places.release()
    assert await done(parked, holder) == [False, True]
    places.release()
    assert await done(parked) == [True]


@in_asyncio
async def test_nobody_is_woken_while_all_places_are_taken() -> None:
    places = await full(1)
    (parked,) = await start(1, places.park)
    places.wake_parked()
    assert await done(parked) == [False]
    parked.cancel()


@in_asyncio
async def test_a_task_that_is_cancelled_when_woken_wakes_the_next() -> None:
    places = await full(1)
    first, second = await start(2, places.park)
    places.release()
    first.cancel()
    assert await done(first, second) == [True, True]
    assert first.cancelled()
    assert not second.cancelled()


@pytest.mark.usefixtures("no_timeout")
@in_asyncio
async def test_fail_all_reaches_waiting_and_parked_tasks() -> None:
    places = await full(1)
    tasks = [*await start(2, places.park), *await start(2, places.acquire)]
    places.fail_all(ClosedError("closing"))
    await turns()
    for task in tasks:
        with pytest.raises(ClosedError):
            task.result()
    assert not places.is_short
