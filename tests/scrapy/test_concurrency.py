"""A node's own concurrency: who is set aside, and who is called when a hand is free."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from semaphore_middleware import ClosedError
from semaphore_middleware.scrapy import concurrency as hands
from semaphore_middleware.scrapy.concurrency import Hands
from tests.support.nodes import in_asyncio

Task = asyncio.Task[Any]


async def busy(most: int) -> Hands:
    all_at_work = Hands(most)
    for _ in range(most):
        assert await all_at_work.take()
    return all_at_work


async def waiting(count: int, wait: Callable[[], Coroutine[Any, Any, object]]) -> list[Task]:
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
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hands, "BRIEF", 600.0)


# With a permit ----------------------------------------------------------------------------------


@in_asyncio
async def test_without_a_number_there_are_always_hands() -> None:
    all_at_work = Hands(0)
    for _ in range(1000):
        assert await all_at_work.take()
    assert not all_at_work.wanted


@pytest.mark.usefixtures("patient")
@in_asyncio
async def test_a_free_hand_goes_to_who_has_waited_longest() -> None:
    at_work = await busy(2)
    first, second = await waiting(2, at_work.take)
    assert at_work.wanted
    at_work.free()
    late = asyncio.create_task(at_work.take())
    assert await done(first, second, late) == [True, False, False]
    at_work.free()
    at_work.free()
    assert await done(second, late) == [True, True]
    assert all([first.result(), second.result(), late.result()])
    assert not at_work.wanted


@in_asyncio
async def test_who_gets_no_hand_in_brief_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hands, "BRIEF", 0.01)
    at_work = await busy(1)
    assert not await at_work.take()
    at_work.free()
    assert await at_work.take()


@pytest.mark.usefixtures("patient")
@in_asyncio
async def test_a_hand_that_comes_with_a_cancellation_is_freed() -> None:
    at_work = await busy(1)
    first, second = await waiting(2, at_work.take)
    at_work.free()
    first.cancel()
    assert await done(first, second) == [True, True]
    assert first.cancelled()
    assert second.result()


@pytest.mark.usefixtures("patient")
@in_asyncio
async def test_one_that_is_cancelled_before_is_passed_over() -> None:
    at_work = await busy(1)
    first, second = await waiting(2, at_work.take)
    first.cancel()
    await turns()
    at_work.free()
    assert await done(first, second) == [True, True]
    assert second.result()


# Set aside --------------------------------------------------------------------------------------


@in_asyncio
async def test_each_free_hand_calls_one_who_is_aside() -> None:
    at_work = await busy(2)
    tasks = await waiting(3, at_work.wait)
    assert at_work.wanted
    at_work.free()
    assert await done(*tasks) == [True, False, False]
    at_work.free()
    assert await done(*tasks) == [True, True, False]
    at_work.call_one()
    assert await done(*tasks) == [True, True, True]
    assert not at_work.wanted


@pytest.mark.usefixtures("patient")
@in_asyncio
async def test_who_has_a_permit_goes_before_who_is_aside() -> None:
    at_work = await busy(1)
    (aside,) = await waiting(1, at_work.wait)
    (holder,) = await waiting(1, at_work.take)
    at_work.free()
    assert await done(aside, holder) == [False, True]
    at_work.free()
    assert await done(aside) == [True]


@in_asyncio
async def test_nobody_is_called_while_all_are_at_work() -> None:
    at_work = await busy(1)
    (aside,) = await waiting(1, at_work.wait)
    at_work.call_one()
    assert await done(aside) == [False]
    aside.cancel()


@in_asyncio
async def test_one_that_is_cancelled_after_its_call_passes_it_on() -> None:
    at_work = await busy(1)
    first, second = await waiting(2, at_work.wait)
    at_work.free()
    first.cancel()
    assert await done(first, second) == [True, True]
    assert first.cancelled()
    assert not second.cancelled()


@pytest.mark.usefixtures("patient")
@in_asyncio
async def test_all_are_refused_when_the_spider_closes() -> None:
    at_work = await busy(1)
    tasks = [*await waiting(2, at_work.wait), *await waiting(2, at_work.take)]
    at_work.refuse_all(ClosedError("closing"))
    await turns()
    for task in tasks:
        with pytest.raises(ClosedError):
            task.result()
    assert not at_work.wanted
