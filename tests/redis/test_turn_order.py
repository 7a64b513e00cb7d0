"""Who is next: the node that holds the fewest, then the one served longest ago; strictest limit."""

from __future__ import annotations

import sys

from semaphore_middleware.model.limits import Limit
from tests.support.nodes import KEYS, Caller, Outside, in_asyncio
from tests.support.servers import RedisServer


async def served(outside: Outside, callers: list[Caller], limit: int = 1) -> str:
    """Give back what is held, again and again, and see who gets it, until nobody waits."""
    by_name = {caller.name: caller for caller in callers}
    order = ""
    while held := outside.held():
        for name, count in held.items():
            order += name * count
            await by_name[name].renew("s", limit)
            await by_name[name].give_back("s", count, limit)
    return order


# Turns ----------------------------------------------------------------------------------------


@in_asyncio
async def test_nodes_take_turns_however_much_one_asks_for(
    server: RedisServer, outside: Outside
) -> None:
    a, b, c = [await Caller.join(server, name) for name in "abc"]
    await a.take("s", 8)
    await b.take("s", 2)
    await c.take("s", 3)
    assert await served(outside, [a, b, c]) == "a" + "abc" + "abc" + "ac" + "aaaa"


@in_asyncio
async def test_the_next_permit_goes_to_the_node_that_holds_the_fewest(
    server: RedisServer, outside: Outside
) -> None:
    a, b, c = [await Caller.join(server, name) for name in "abc"]
    await a.take("s", 3, limit=4)
    await b.take("s", 1, limit=4)
    await b.take("s", 1, limit=4)
    await c.take("s", 2, limit=4)
    assert outside.held() == {"a": 3, "b": 1}
    assert outside.queue() == ["c", "b"]
    await a.give_back("s", 2, limit=4)
    assert outside.held() == {"a": 1, "b": 2, "c": 1}
    await a.give_back("s", 1, limit=4)
    assert outside.held() == {"b": 2, "c": 2}


@in_asyncio
async def test_of_those_that_hold_as_many_the_one_served_longest_ago_is_next(
    server: RedisServer, outside: Outside
) -> None:
    a, b, c = [await Caller.join(server, name) for name in "abc"]
    for caller in (b, a, c):
        await caller.take("s", 2, limit=3)
    assert outside.held() == {"a": 1, "b": 2}
    assert outside.queue() == ["c", "a"]
    await b.give_back("s", 2, limit=3)
    assert outside.held() == {"a": 2, "c": 1}, "the one that has none, then who was served before"


@in_asyncio
async def test_a_node_that_wants_one_permit_of_a_site_that_another_floods_keeps_it(
    server: RedisServer, outside: Outside
) -> None:
    """As long as what it gives back and what it asks for next are in one statement."""
    many, one = await Caller.join(server, "many"), await Caller.join(server, "one")
    await many.take("s", 100, limit=2)
    await one.take("s", 1, limit=2)
    await many.give_back("s", 1, limit=2)
    await one.renew("s", limit=2)
    for _ in range(10):
        await one.give_back("s", 1, limit=2, take=1)
        await one.renew("s", limit=2)
        assert one.held("s") == 1
        await many.give_back("s", 1, limit=2)
        assert outside.held() == {"many": 1, "one": 1}


@in_asyncio
async def test_a_newcomer_counts_as_served_when_it_comes(
    server: RedisServer, outside: Outside
) -> None:
    """Else nodes that come and go would be served before those that wait."""
    a, patient = await Caller.join(server, "a"), await Caller.join(server, "patient")
    await a.take("s")
    await patient.take("s")
    newcomers = [await Caller.join(server, f"new{n}") for n in range(3)]
    for newcomer in newcomers:
        await newcomer.take("s")
    assert outside.queue() == ["patient", "new0", "new1", "new2"]
    await a.give_back("s")
    assert outside.held() == {"patient": 1}


@in_asyncio
async def test_a_node_that_asks_while_it_gives_back_does_not_pass_those_that_came_meanwhile(
    server: RedisServer, outside: Outside
) -> None:
    a, b, c = [await Caller.join(server, name) for name in "abc"]
    await a.take("s")
    await b.take("s")
    await c.take("s")
    await a.give_back("s", take=1)
    assert outside.held() == {"b": 1}
    assert outside.queue() == ["c", "a"]


@in_asyncio
async def test_a_node_that_leaves_the_queue_and_comes_back_is_not_served_before_those_that_stay(
    server: RedisServer, outside: Outside
) -> None:
    a, b, c = [await Caller.join(server, name) for name in "abc"]
    await a.take("s")
    await b.take("s")
    await c.take("s")
    await b.give_up("s")
    await b.take("s")
    assert outside.queue() == ["c", "b"]


@in_asyncio
async def test_a_node_gets_no_credit_for_the_time_it_was_away(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s", 100)
    for _ in range(50):
        await a.give_back("s")
    await b.take("s", 5)
    order = await served(outside, [a, b])
    assert order[:12] == "a" + "ababababab" + "a"


@in_asyncio
async def test_a_node_that_cancelled_many_waiters_is_not_punished_afterwards(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await b.take("s")
    await a.take("s", 400)
    await a.give_up("s", 400)
    await b.take("s", 3)
    await a.take("s", 3)
    assert await served(outside, [a, b]) == "b" + "bababa"


@in_asyncio
async def test_a_node_that_comes_last_is_served_within_one_turn_of_each_other_node(
    server: RedisServer, outside: Outside
) -> None:
    others = [await Caller.join(server, name) for name in "abcd"]
    late = await Caller.join(server, "z")
    for caller in others:
        await caller.take("s", 50)
    await late.take("s")
    order = await served(outside, [*others, late])
    assert order.index("z") <= 1 + len(others)


@in_asyncio
async def test_asking_again_keeps_the_place_in_the_queue(
    server: RedisServer, outside: Outside
) -> None:
    a, b, c = [await Caller.join(server, name) for name in "abc"]
    for caller in (a, b, c):
        await caller.take("s", 2)
    queue = outside.queue()
    assert queue == ["b", "c", "a"]
    for caller in (c, a, b):
        await caller.renew("s")
        await caller.take("s")
    assert outside.queue() == queue


@in_asyncio
async def test_a_queue_that_was_lost_is_made_anew(server: RedisServer, outside: Outside) -> None:
    """A server that evicts keys may have thrown it away."""
    a, b, c = [await Caller.join(server, name) for name in "abc"]
    await a.take("s")
    await c.take("s", 2)
    await b.take("s", 2)
    assert outside.client.delete(KEYS.of("s")[1]) == 1
    await a.give_back("s")
    assert outside.held() == {"c": 1}
    assert outside.queue() == ["b", "c"]
    assert outside.waiting() == {"b": 2, "c": 1}


# The strictest limit --------------------------------------------------------------------------


@in_asyncio
async def test_the_strictest_limit_wins(server: RedisServer, outside: Outside) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s", limit=5)
    await b.take("s", limit=2)
    assert (await a.take("s", 2, limit=5)).granted == 1
    assert outside.held() == {"a": 1, "b": 1}
    assert (await a.inspect("s")).limit == 2


@in_asyncio
async def test_a_limit_holds_until_the_scope_is_idle(server: RedisServer, outside: Outside) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s", limit=1)
    await b.take("s", limit=3)
    await a.give_back("s", limit=1)
    assert (await b.take("s", limit=3)).granted == 1
    await b.give_up("s", 1, limit=3)
    await b.give_back("s", 1, limit=3)
    assert outside.in_use() == set()
    assert (await b.take("s", 4, limit=3)).granted == 3


@in_asyncio
async def test_lowering_a_limit_takes_nothing_from_holders(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s", 3, limit=3)
    await b.take("s", limit=1)
    assert (await a.renew("s", limit=3)).status == "ok"
    assert a.held("s") == 3
    for _ in range(2):
        await a.give_back("s", limit=3)
        assert outside.queue() == ["b"], "nothing is granted until enough are gone"
    await a.give_back("s", limit=3)
    assert outside.held() == {"b": 1}


@in_asyncio
async def test_a_limit_may_be_lowered_by_renewing(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    await a.take("s", 4, limit=3)
    await a.renew("s", limit=2)
    await a.give_back("s", limit=3)
    assert outside.held() == {"a": 2}
    assert outside.waiting() == {"a": 1}


@in_asyncio
async def test_scopes_have_limits_of_their_own(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    for scope, limit in {"s": 1, "t": 2, "u": 3}.items():
        assert (await a.take(scope, 4, limit=limit)).granted == limit


@in_asyncio
async def test_the_greatest_limit_that_can_be_written_is_no_limit(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    assert (await a.take("s", 3, limit=sys.maxsize)).granted == 3
    limit = (await a.inspect("s")).limit
    assert limit is not None
    assert limit > 10**12


@in_asyncio
async def test_thousands_of_permits_go_in_one_statement(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    for n in (2000, 0):
        assert (await a.take("s", n, limit=1500)).granted == 1500
    assert outside.held() == {"a": 1500}
    assert outside.waiting() == {"a": 500}
    await a.give_up("s", 500, limit=1500)
    await a.give_back("s", 1500, limit=1500)
    assert outside.in_use() == set()


@in_asyncio
async def test_thousands_of_permits_that_two_nodes_wait_for_are_shared_in_few_calls(
    server: RedisServer, outside: Outside
) -> None:
    a, b, c = [await Caller.join(server, name) for name in "abc"]
    big = Limit(10_000)
    await a.take("s", 3000, limit=Limit(3000))
    await b.take("s", 5000, limit=big)
    await c.take("s", 5000, limit=big)
    await a.give_back("s", 3000, limit=big)
    for _ in range(3):
        await b.poke("s")
    assert outside.held() == {"b": 1500, "c": 1500}
