"""No script goes round and round: whatever became of the keys, a call returns.

A script that never returns cannot be killed once it has written, and the server serves nobody else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from semaphore_middleware.redis.store import Store
from tests.support.nodes import ENDLESS_S, KEYS, Caller, Outside, in_asyncio
from tests.support.servers import RedisServer

CROWD = 1000  # as many as one call looks at
QUEUE = KEYS.of("s")[1]


def lose_the_queue(outside: Outside) -> None:
    outside.client.delete(QUEUE)


def end_all_leases(outside: Outside) -> None:
    outside.client.hincrbyfloat(KEYS.epoch, "clock", 2000 * ENDLESS_S)


def lose_the_accounts(outside: Outside) -> None:
    outside.client.hdel(KEYS.of("s")[0], *(f"node:n{i}" for i in range(CROWD)))


def queue_strangers(outside: Outside) -> None:
    outside.client.zadd(QUEUE, {f"stranger {i}": -1 - i for i in range(3 * CROWD)})


def queue_one_that_waits_for_nothing(outside: Outside) -> None:
    outside.client.zadd(QUEUE, {"a": -1})


@pytest.mark.parametrize(
    "misfortunes",
    [
        [lose_the_queue, end_all_leases],
        [end_all_leases, lose_the_queue],
        [lose_the_accounts],
        [lose_the_accounts, lose_the_queue],
        [queue_one_that_waits_for_nothing],
        [queue_strangers, end_all_leases],
    ],
    ids=lambda misfortunes: "-and-".join(one.__name__ for one in misfortunes),
)
@in_asyncio
async def test_every_call_returns_and_in_the_end_somebody_is_served(
    server: RedisServer, outside: Outside, misfortunes: list[Callable[[Outside], Any]]
) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    await a.take("s")
    statement = a.statement("s", term=1, seq=1, asked=1, believed=0, started=0)
    for i in range(CROWD):
        await Store(KEYS, f"n{i}", ENDLESS_S, a.recovery).sync(a.connection, [statement])
    assert outside.client.zcard(QUEUE) == CROWD
    for misfortune in misfortunes:
        misfortune(outside)
    await b.take("s")  # a call that takes too long raises
    await a.give_back("s")
    calls = 0
    while not outside.held():
        await b.renew("s")
        calls += 1
        assert calls <= 4
    await a.admin.survey()
    assert sum(outside.held().values()) == 1


@in_asyncio
async def test_a_call_does_so_much_and_the_next_goes_on(
    server: RedisServer, outside: Outside
) -> None:
    a, b, c = [await Caller.join(server, name) for name in "abc"]
    for node in (a, b, c):
        await node.take("s")
    queue_strangers(outside)
    await a.give_back("s")
    assert outside.client.zcard(QUEUE) == 2 * CROWD + 2
    await b.renew("s")
    assert outside.client.zcard(QUEUE) == CROWD + 2
