"""No script goes round and round: whatever became of the keys, a call returns.

A script that never returns cannot be killed once it has written, and the server serves nobody else.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from semaphore_middleware.redis.store import Store
from tests.support.nodes import ENDLESS_S, KEYS, Caller, Outside, key
from tests.support.servers import RedisServer

CROWD = 1000  # as many as one call looks at
QUEUE = KEYS.of("s")[1]


def queue_strangers(outside: Outside) -> None:
    outside.client.zadd(QUEUE, {f"stranger {i}": -1 - i for i in range(3 * CROWD)})


MISFORTUNES: dict[str, Callable[[Outside], object]] = {
    "queue lost": lambda it: it.client.delete(QUEUE),
    "leases over": lambda it: it.client.hincrbyfloat(KEYS.epoch, "clock", 2e3 * ENDLESS_S),
    "accounts lost": lambda it: it.client.hdel(key("s"), *(f"node:n{i}" for i in range(CROWD))),
    "strangers": queue_strangers,
    "waits for nothing": lambda it: it.client.zadd(QUEUE, {"a": -1}),
}


@pytest.mark.parametrize(
    "names",
    [
        *(("queue lost", "leases over"), ("leases over", "queue lost"), ("accounts lost",)),
        *(("accounts lost", "queue lost"), ("waits for nothing",), ("strangers", "leases over")),
    ],
)
async def test_every_call_returns_and_in_the_end_somebody_is_served(
    server: RedisServer, outside: Outside, names: tuple[str, ...]
) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    await a.take("s")
    statement = a.statement("s", term=1, seq=1, asked=1, believed=0, started=0)
    for i in range(CROWD):
        await Store(KEYS, f"n{i}", ENDLESS_S, a.recovery).sync(a.connection, [statement])
    assert outside.client.zcard(QUEUE) == CROWD
    for name in names:
        MISFORTUNES[name](outside)
    await b.take("s")  # a call that takes too long raises
    await a.give_back("s")
    calls = 0
    while not outside.held():
        await b.renew("s")
        calls += 1
        assert calls <= 4
    await a.admin.survey()
    assert sum(outside.held().values()) == 1


async def test_a_call_does_so_much_the_next_goes_on(server: RedisServer, outside: Outside) -> None:
    a, b, c = [await Caller.join(server, name) for name in "abc"]
    for node in (a, b, c):
        await node.take("s")
    queue_strangers(outside)
    await a.give_back("s")
    assert outside.client.zcard(QUEUE) == 2 * CROWD + 2
    await b.renew("s")
    assert outside.client.zcard(QUEUE) == CROWD + 2
