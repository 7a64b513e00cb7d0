"""Who is next, and under which limit: what the simulation does not judge."""

from __future__ import annotations

import sys

import pytest

from semaphore_middleware.model.limits import Limit
from semaphore_middleware.redis.protocol import Reply
from tests.support.nodes import ENDLESS_S, Caller, Outside
from tests.support.servers import RedisServer


async def test_who_asks_anew_is_behind_who_waits(server: RedisServer, outside: Outside) -> None:
    a, b, c = [await Caller.join(server, name) for name in "abc"]
    for caller in (a, b, c):
        await caller.take("s", 2)
    await b.give_up("s", 2)
    await b.take("s")
    assert outside.queue() == ["c", "b", "a"]
    await a.give_up("s")
    await a.give_back("s", take=1)
    assert (outside.held(), outside.queue()) == ({"c": 1}, ["b", "a", "c"])


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
    assert (await b.inspect("s")).limit == 10**12


@pytest.mark.parametrize("how", ["a lease later", "reset"])
async def test_a_limit_ends_with_those_that_ask_for_it(
    server: RedisServer, outside: Outside, how: str
) -> None:
    """Though the site is never idle: a visitor with a delay of years would slow all for ever."""

    async def look_at_all() -> Reply:
        if how == "reset":
            await a.admin.reset("s")
        else:
            outside.edit("s", "state", due=1)
        return await a.renew("s", limit=4)

    strict = Limit(1, delay=1e9, jitter=0.25, adaptive=True, rate="3/d", burst=2)
    a, visitor = [await Caller.join(server, name) for name in ("a", "visitor")]
    await a.take("s", 3, limit=4)
    await visitor.take("s", limit=strict)
    await a.take("s", limit=4)
    assert ((await look_at_all()).granted, (await a.inspect("s")).limit) == (3, 1), "it waits"
    asks_for = {member.node: member.asks_for for member in (await a.inspect("s")).members}
    assert asks_for == {"visitor": strict, "a": Limit(4)}
    await visitor.give_up("s", limit=strict)
    assert (await a.renew("s", limit=4)).granted == 3
    [seen] = outside.look("s")
    half_a_lease = 1000 * ENDLESS_S / 2
    assert float(seen.state["due"]) <= seen.accounts["a"]["lease_end"] - half_a_lease
    reply = await look_at_all()
    assert (reply.granted, reply.limit, reply.is_paced) == (4, 4, False)


async def test_thousands_of_permits_go_in_few_calls(server: RedisServer, outside: Outside) -> None:
    a, b, c = [await Caller.join(server, name) for name in "abc"]
    assert (await a.take("s", 3500, limit=3000)).granted == 3000
    await a.give_up("s", 500, limit=3000)
    for caller in (b, c):
        await caller.take("s", 5000, limit=Limit(10_000))
    await a.give_back("s", 3000, limit=Limit(10_000))
    for _ in range(3):
        await b.renew("s", limit=10**9)
    assert outside.held() == {"b": 1500, "c": 1500}
