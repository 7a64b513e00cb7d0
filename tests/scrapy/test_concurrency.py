"""LocalConcurrency: for whom a place is reserved, and who gets it if that one does not need it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from scrapy import Request

from semaphore_middleware import ClosedError
from semaphore_middleware.core.observer import PermitWaiting
from semaphore_middleware.core.permit import Permit
from semaphore_middleware.scrapy.concurrency import LocalConcurrency
from tests.support.nodes import in_asyncio

Task = asyncio.Task[Any]


def request() -> Request:
    return Request("http://example.com/")


def full(limit: int) -> LocalConcurrency:
    places = LocalConcurrency(limit)
    for _ in range(limit):
        begin(places, request())
    return places


def begin(places: LocalConcurrency, one: Request) -> None:
    assert places.reserve(one)
    assert places.use(one)


async def line(places: LocalConcurrency, *waiting: Request) -> list[Task]:
    """Tasks that wait for a place each."""
    tasks = [asyncio.create_task(places.wait(one)) for one in waiting]
    await turns()
    assert not [task for task in tasks if task.done()]
    return tasks


async def turns() -> None:
    for _ in range(5):  # of the loop
        await asyncio.sleep(0)


async def done(*tasks: Task) -> list[bool]:
    await turns()
    return [task.done() for task in tasks]


def told_to_wait(one: Request) -> PermitWaiting:
    permit = Permit.__new__(Permit)
    permit.owner = one
    return PermitWaiting(permit)


@in_asyncio
async def test_limit_0_is_no_limit() -> None:
    places = full(0)
    for _ in range(1000):
        begin(places, request())
    assert not places.is_short


@in_asyncio
async def test_a_place_is_reserved_once_and_used_once() -> None:
    places, one, other = LocalConcurrency(1), request(), request()
    assert places.reserve(one)
    assert places.reserve(one)
    assert not places.reserve(other)
    assert not places.use(other)
    assert places.use(one)
    assert not places.use(one)
    places.release()
    assert places.reserve(other)


@in_asyncio
async def test_free_places_are_reserved_first_come_first_served() -> None:
    places, first, second, late = full(2), request(), request(), request()
    tasks = await line(places, first, second)
    assert places.is_short
    places.release()
    assert not places.reserve(late)
    assert await done(*tasks) == [True, False]
    assert places.use(first)
    assert not places.use(second)
    places.release()
    assert await done(*tasks) == [True, True]
    assert places.use(second)
    assert not places.is_short


@in_asyncio
async def test_free_places_are_reserved_by_priority() -> None:
    places, low, high, also_high = full(1), request(), request(), request()
    tasks = [
        asyncio.create_task(places.wait(one, priority=priority))
        for one, priority in ((low, 0.0), (high, 5.0), (also_high, 5.0))
    ]
    await turns()
    places.release()
    assert await done(*tasks) == [False, True, False]
    places.leave(also_high)
    places.leave(high)
    assert await done(tasks[0]) == [True]


@in_asyncio
async def test_who_has_waited_in_vain_keeps_the_place_in_line() -> None:
    places, first, second = full(1), request(), request()
    await places.wait(first, timeout=0.001)
    assert not places.use(first)
    tasks = await line(places, second, first)
    places.release()
    assert await done(*tasks) == [False, True]


@in_asyncio
async def test_who_is_told_to_wait_for_a_permit_leaves_the_place_to_the_next() -> None:
    places, first, second = full(1), request(), request()
    tasks = await line(places, first, second)
    places.release()
    places.on_event(told_to_wait(second))  # no news: it has no place
    assert await done(*tasks) == [True, False]
    places.on_event(told_to_wait(first))
    assert await done(*tasks) == [True, True]
    assert not places.use(first)
    assert places.use(second)


@in_asyncio
async def test_who_leaves_takes_no_place() -> None:
    places, first, second, third = full(1), request(), request(), request()
    tasks = await line(places, first, second, third)
    places.leave(first)
    places.release()
    assert await done(*tasks[1:]) == [True, False]
    places.leave(second)
    assert await done(*tasks) == [True, True, True]
    assert places.use(third)
    places.leave(third)  # it has used its place: that is given back by `release`
    assert not places.reserve(first)


@in_asyncio
async def test_fail_all_reaches_all_that_wait() -> None:
    places = full(1)
    tasks = await line(places, request(), request())
    places.fail_all(ClosedError("closing"))
    await turns()
    for task in tasks:
        with pytest.raises(ClosedError):
            task.result()
    assert not places.is_short
