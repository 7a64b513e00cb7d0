"""Who is next: first come first served within a node, turns between nodes, the strictest limit."""

from __future__ import annotations

import sys

from semaphore_middleware.model.limits import Limit
from semaphore_middleware.redis.protocol import Ask
from tests.support.nodes import Caller, Outside, in_asyncio
from tests.support.servers import RedisServer


async def served(outside: Outside, callers: list[Caller], scope: str = "s") -> list[str]:
    """Give back what is held, again and again, and see who gets it, until nobody waits."""
    by_name = {caller.name: caller for caller in callers}
    order = []
    while held := outside.held(scope):
        order += held
        for id in held:
            name, _, number = id.rpartition(":")
            await by_name[name].release(scope, int(number))
    return order


# Turns ----------------------------------------------------------------------------------------


@in_asyncio
async def test_a_node_is_served_in_the_order_of_its_asking(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await a.acquire("s", 9, 3)
    await a.acquire("s", 7)
    await a.acquire("s", 5, 1)
    assert await served(outside, [a]) == ["a:9", "a:3", "a:7", "a:5", "a:1"]


@in_asyncio
async def test_nodes_take_turns_however_much_one_asks_for(
    server: RedisServer, outside: Outside
) -> None:
    a, b, c = [await Caller.join(server, name) for name in "abc"]
    await a.acquire("s", *range(8))
    await b.acquire("s", 0, 1)
    await c.acquire("s", 0, 1, 2)
    order = await served(outside, [a, b, c])
    assert [id[0] for id in order] == list("a" + "abc" + "abc" + "ac" + "aaaa")


@in_asyncio
async def test_a_node_gets_no_credit_for_the_time_it_was_away(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.acquire("s", *range(100))
    for number in range(50):
        await a.release("s", number)
    await b.acquire("s", *range(5))
    order = await served(outside, [a, b])
    assert [id[0] for id in order[:12]] == list("a" + "ababababab" + "a")


@in_asyncio
async def test_a_node_that_cancelled_many_waiters_is_not_punished_afterwards(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await b.acquire("s", 0)
    await a.acquire("s", *range(1000, 1400))
    await a.release("s", *range(1000, 1400))
    await b.acquire("s", 1, 2, 3)
    await a.acquire("s", 1, 2, 3)
    order = await served(outside, [a, b])
    assert [id[0] for id in order] == list("b" + "bababa")


@in_asyncio
async def test_a_node_that_comes_last_is_served_within_one_turn_of_each_other_node(
    server: RedisServer, outside: Outside
) -> None:
    others = [await Caller.join(server, name) for name in "abcd"]
    late = await Caller.join(server, "late")
    for caller in others:
        await caller.acquire("s", *range(50))
    await late.acquire("s", 1)
    order = await served(outside, [*others, late])
    assert order.index("late:1") <= 1 + len(others)


# The strictest limit --------------------------------------------------------------------------


@in_asyncio
async def test_the_strictest_limit_wins(server: RedisServer, outside: Outside) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.acquire("s", 1, limit=5)
    await b.acquire("s", 1, limit=2)
    assert (await a.acquire("s", 2, 3, limit=5)).granted == ()
    assert outside.held() == ["a:1", "b:1"]
    assert (await a.inspect("s")).limit == 2


@in_asyncio
async def test_a_limit_holds_until_the_scope_is_idle(server: RedisServer, outside: Outside) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.acquire("s", 1, limit=1)
    await b.acquire("s", 1, limit=3)
    await a.release("s", 1, limit=1)
    assert (await b.acquire("s", 1, 2, limit=3)).granted == (1,)
    await b.release("s", 1, 2, limit=3)
    assert outside.in_use() == set()
    assert (await b.acquire("s", 3, 4, 5, 6, limit=3)).granted == (3, 4, 5)


@in_asyncio
async def test_lowering_a_limit_takes_nothing_from_holders(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.acquire("s", 1, 2, 3, limit=3)
    await b.acquire("s", 1, limit=1)
    assert (await a.renew("s", 1, 2, 3, limit=3)).lost == ()
    for number in (1, 2):
        await a.release("s", number, limit=3)
        assert outside.line() == ["b:1"], "nothing is granted until enough are gone"
    await a.release("s", 3, limit=3)
    assert outside.held() == ["b:1"]


@in_asyncio
async def test_a_limit_may_be_lowered_by_renewing(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    await a.acquire("s", 1, 2, 3, limit=3)
    await a.acquire("s", 4, limit=3)
    await a.renew("s", 1, limit=2)
    await a.release("s", 3, limit=3)
    assert sorted(outside.held()) == ["a:1", "a:2"]
    assert outside.line() == ["a:4"]


@in_asyncio
async def test_scopes_have_limits_of_their_own(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    for scope, limit in {"s": 1, "t": 2, "u": 3}.items():
        assert len((await a.acquire(scope, 1, 2, 3, 4, limit=limit)).granted) == limit


@in_asyncio
async def test_the_greatest_limit_that_can_be_written_is_no_limit(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    assert (await a.acquire("s", 1, 2, 3, limit=sys.maxsize)).granted == (1, 2, 3)
    limit = (await a.inspect("s")).limit
    assert limit is not None
    assert limit > 10**12


@in_asyncio
async def test_thousands_of_permits_go_in_one_batch(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    numbers = tuple(range(2000))
    for _ in range(2):
        answers = await a.store.run(a.connection, [Ask("acquire", "s", Limit(1500), numbers)])
        granted = [number for answer in answers for number in answer.granted]
        assert granted == list(range(1500))
    assert len(outside.held()) == 1500
    assert outside.line() == [f"a:{number}" for number in range(1500, 2000)]
    await a.store.run(a.connection, [Ask("release", "s", Limit(1500), numbers)])
    assert outside.in_use() == set()
