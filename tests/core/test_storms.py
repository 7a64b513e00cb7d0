"""Whatever is opened and closed at random moments leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from semaphore_middleware import ClosedError
from semaphore_middleware.core.semaphore import CLOSE_S
from semaphore_middleware.link.link import Link, Subscription
from semaphore_middleware.link.location import Server
from tests.support.simulated import SimulatedServer, in_simulated_time

TASKS, TIMES = 10, 10
LEASE_S = 2.0
LONGEST_S = 0.05  # about as long as opening takes

Life = Callable[[SimulatedServer, Random], Coroutine[Any, Any, None]]


async def semaphore(server: SimulatedServer, random: Random) -> None:
    async with server.node(history=60.0) as node:
        with suppress(ClosedError, TimeoutError):
            async with node.permit("s", 2, timeout=LONGEST_S * random.random()):
                await asyncio.sleep(LONGEST_S * random.random())


async def link(server: SimulatedServer, random: Random) -> None:
    calls = Link(server.connect(Server("redis://localhost", 1.0)))
    subscription = Subscription(calls, [b"channel"], 1.0, lambda _: None, "nothing")
    try:
        await calls.open()
        subscription.start()
        await asyncio.sleep(LONGEST_S * random.random())
        await subscription.renew()
        await asyncio.sleep(LONGEST_S * random.random())
    finally:
        try:
            await subscription.close()
            assert all(task.done() for task in subscription._tasks)
        finally:
            await calls.close()


@pytest.mark.parametrize("life", [semaphore, link])
@in_simulated_time
async def test_nothing_is_left_of_what_opens_and_closes(life: Life) -> None:
    server, random = SimulatedServer(lease=LEASE_S), Random(1)
    loop: Any = asyncio.get_running_loop()
    tasks = asyncio.all_tasks()

    async def live_often() -> None:
        for _ in range(TIMES):
            task = asyncio.create_task(life(server, random))
            if random.random() < 0.5:
                await asyncio.wait([task], timeout=2 * LONGEST_S * random.random())
                task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    await asyncio.gather(*(live_often() for _ in range(TASKS)))
    await asyncio.sleep(CLOSE_S)  # a close that was cancelled goes on
    assert (asyncio.all_tasks(), loop.left) == (tasks, [])
    # And it may have left a lease.
    async with server.node() as last:
        await asyncio.gather(*(last.acquire("s", 2) for _ in range(2)))
    assert server.held() == {}
    assert server.network.connections == 0
    assert not [key for key in server.expiries() if b":queue:" in key]
