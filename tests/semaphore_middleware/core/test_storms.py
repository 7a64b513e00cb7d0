"""Whatever is opened and closed at random moments, nothing of it is left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from semaphore_middleware import ClosedError, FairSemaphore
from semaphore_middleware.redis.link import Link, Subscription
from semaphore_middleware.redis.location import Server
from tests.support.nodes import eventually
from tests.support.servers import RedisServer

TASKS, TIMES = 10, 50
LEASE_S = 2.0
LONGEST_S = 0.02  # about as long as opening takes

Life = Callable[[RedisServer, Random], Coroutine[Any, Any, None]]


async def semaphore(server: RedisServer, random: Random) -> None:
    async with FairSemaphore(server.url, lease=LEASE_S, history=60.0) as node:
        with suppress(ClosedError, TimeoutError):
            async with node.permit("s", 2, timeout=LONGEST_S * random.random()):
                await asyncio.sleep(LONGEST_S * random.random())


async def link(server: RedisServer, random: Random) -> None:
    calls = Link(Server(server.url, 1.0))
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
        finally:
            await calls.close()


@pytest.mark.slow
@pytest.mark.parametrize("life", [semaphore, link])
async def test_nothing_is_left_of_what_opens_and_closes(server: RedisServer, life: Life) -> None:
    random, loop, threads = Random(1), asyncio.get_running_loop(), set(threading.enumerate())
    before = asyncio.all_tasks(), _timers(loop)

    async def live_often() -> None:
        for _ in range(TIMES):
            task = asyncio.create_task(life(server, random))
            if random.random() < 0.5:
                await asyncio.wait([task], timeout=2 * LONGEST_S * random.random())
                task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    await asyncio.gather(*(live_often() for _ in range(TASKS)))
    assert (asyncio.all_tasks(), _timers(loop)) == before
    await eventually(lambda: set(threading.enumerate()) <= threads)  # it ends after its loop
    # A close that was cancelled has left a lease.
    async with FairSemaphore(server.url, lease=LEASE_S) as last:
        await asyncio.gather(*(last.acquire("s", 2) for _ in range(2)))
    assert server.members() == {}
    with server.client() as client:
        await eventually(lambda: len(client.client_list()) == 1)
        assert not list(client.scan_iter(b"*:queue:*"))


def _timers(loop: Any) -> list[object]:
    return [timer for timer in loop._scheduled if not timer.cancelled()]
