"""However often nodes join and leave at random moments, nothing of them is left."""

from __future__ import annotations

import asyncio
import threading
from random import Random
from typing import Any

import pytest
from redis import Redis

from tests.shared_crawl.node import joined
from tests.support.nodes import eventually

TASKS, TIMES = 10, 50
LONGEST_S = 0.02  # about as long as joining takes


@pytest.mark.slow
async def test_nothing_is_left_of_nodes_that_join_and_leave(client: Redis) -> None:
    random, loop, threads = Random(1), asyncio.get_running_loop(), set(threading.enumerate())
    connections = len(client.client_list())
    before = asyncio.all_tasks(), _timers(loop)

    async def live() -> None:
        async with joined(client, CRAWL_LEASE=2.0) as node:
            node.enqueue("http://a/1")
            await asyncio.sleep(LONGEST_S * random.random())

    async def live_often() -> None:
        for _ in range(TIMES):
            await live()

    await asyncio.gather(*(live_often() for _ in range(TASKS)))
    assert (asyncio.all_tasks(), _timers(loop)) == before
    await eventually(lambda: set(threading.enumerate()) <= threads)  # it ends after its loop
    await eventually(lambda: len(client.client_list()) == connections)
    for part in ("nodes", "working", "taken", "hungry"):
        assert not client.exists("{semaphore:books}:" + part), part


def _timers(loop: Any) -> list[object]:
    return [timer for timer in loop._scheduled if not timer.cancelled()]
