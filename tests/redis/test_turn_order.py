"""Who is next, and under which limit: what the simulation does not judge."""

from __future__ import annotations

import sys

from semaphore_middleware.model.limits import Limit
from tests.support.nodes import KEYS, Caller, Outside, in_asyncio
from tests.support.servers import RedisServer


@in_asyncio
async def test_nobody_passes_those_that_wait(server: RedisServer, outside: Outside) -> None:
    """Not who comes anew, comes back, asks again, or asks while it gives back."""
    a, b, c, d = [await Caller.join(server, name) for name in "abcd"]
    for caller in (a, b, c):
        await caller.take("s", 2)
    for caller in (c, a, b):
        await caller.renew("s")
        await caller.take("s")
    assert outside.queue() == ["b", "c", "a"]
    await d.take("s")
    assert outside.queue() == ["b", "c", "d", "a"]
    await b.give_up("s", 3)
    await b.take("s")
    assert outside.queue() == ["c", "d", "b", "a"]
    await a.give_up("s", 2)
    await a.give_back("s", take=1)
    assert (outside.held(), outside.queue()) == ({"c": 1}, ["d", "b", "a", "c"])


@in_asyncio
async def test_a_queue_that_was_lost_is_made_anew(server: RedisServer, outside: Outside) -> None:
    """A server that evicts keys may have thrown it away."""
    a, b, c = [await Caller.join(server, name) for name in "abc"]
    for caller, n in ((a, 1), (c, 2), (b, 2)):
        await caller.take("s", n)
    assert outside.client.delete(KEYS.of("s")[1]) == 1
    await a.give_back("s")
    assert (outside.held(), outside.queue()) == ({"c": 1}, ["b", "c"])
    assert outside.waiting() == {"b": 2, "c": 1}


@in_asyncio
async def test_the_strictest_limit_holds(server: RedisServer, outside: Outside) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    await a.take("s", 3, limit=5)
    await b.take("s", 2, limit=2)
    assert (await a.renew("s", limit=5)).status == "ok", "nothing is taken from holders"
    assert (await a.inspect("s")).limit == 2
    for left in (2, 1):
        assert (outside.held(), outside.queue()) == ({"a": left + 1}, ["b"])
        await a.give_back("s", limit=5)
    assert outside.held() == {"a": 1, "b": 1}
    await b.give_up("s", 1, limit=2)
    await b.renew("s", limit=2)
    for caller in (a, b):
        await caller.give_back("s", limit=5)
    assert (await b.take("s", 4, limit=sys.maxsize)).granted == 4
    assert ((await b.inspect("s")).limit or 0) > 10**12


@in_asyncio
async def test_thousands_of_permits_go_in_few_calls(server: RedisServer, outside: Outside) -> None:
    a, b, c = [await Caller.join(server, name) for name in "abc"]
    assert (await a.take("s", 3500, limit=3000)).granted == 3000
    await a.give_up("s", 500, limit=3000)
    for caller in (b, c):
        await caller.take("s", 5000, limit=Limit(10_000))
    await a.give_back("s", 3000, limit=Limit(10_000))
    for _ in range(3):
        await b.poke("s")
    assert outside.held() == {"b": 1500, "c": 1500}
