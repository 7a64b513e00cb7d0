"""A node's own concurrency: who is set aside, and who is called when a hand is free."""

from __future__ import annotations

import asyncio

import pytest

from semaphore_middleware import ClosedError
from semaphore_middleware.hands import Hands
from tests.nodes import in_asyncio


def busy(most: int) -> Hands:
    hands = Hands(most)
    for _ in range(most):
        hands.take()
    return hands


async def aside(hands: Hands, count: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(hands.wait()) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def called(tasks: list[asyncio.Task[None]]) -> list[bool]:
    for _ in range(3):
        await asyncio.sleep(0)
    return [task.done() for task in tasks]


def test_without_a_number_hands_are_never_full() -> None:
    hands = Hands(0)
    for _ in range(1000):
        hands.take()
    assert not hands.full


@in_asyncio
async def test_each_free_hand_calls_one_in_the_order_of_waiting() -> None:
    hands = busy(2)
    tasks = await aside(hands, 3)
    assert hands.somebody_aside
    hands.free()
    assert await called(tasks) == [True, False, False]
    hands.free()
    assert await called(tasks) == [True, True, False]
    hands.call_one()
    assert await called(tasks) == [True, True, True]
    assert not hands.somebody_aside


@in_asyncio
async def test_nobody_is_called_while_hands_are_full() -> None:
    hands = busy(1)
    tasks = await aside(hands, 1)
    hands.call_one()
    assert await called(tasks) == [False]
    tasks[0].cancel()


@in_asyncio
async def test_one_that_is_cancelled_after_its_call_passes_it_on() -> None:
    hands = busy(1)
    first, second = await aside(hands, 2)
    hands.free()
    first.cancel()
    assert await called([first, second]) == [True, True]
    assert first.cancelled()
    assert not second.cancelled()


@in_asyncio
async def test_one_that_is_cancelled_before_is_passed_over() -> None:
    hands = busy(1)
    first, second = await aside(hands, 2)
    first.cancel()
    await asyncio.sleep(0)
    hands.free()
    assert await called([first, second]) == [True, True]


@in_asyncio
async def test_all_are_refused_when_the_spider_closes() -> None:
    hands = busy(1)
    tasks = await aside(hands, 2)
    hands.refuse_all(ClosedError("closing"))
    await called(tasks)
    for task in tasks:
        with pytest.raises(ClosedError):
            task.result()
    assert not hands.somebody_aside
