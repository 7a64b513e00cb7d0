"""Accounts are leases: what the dead leave goes to the living, and idle scopes leave nothing."""

from __future__ import annotations

import random

import pytest

from semaphore_middleware.model.limits import Limit
from tests.support.nodes import ENDLESS_S, KEYS, Caller, Outside, eventually, in_asyncio
from tests.support.servers import RedisServer

SHORT_LEASE_S = 0.2  # seconds: a lease to wait for the end of


@in_asyncio
async def test_a_dead_node_s_permit_goes_to_who_asks_next(
    server: RedisServer, outside: Outside
) -> None:
    dead, b = await Caller.join(server, "dead", lease=SHORT_LEASE_S), await Caller.join(server, "b")
    await dead.take("s")
    await b.take("s")

    async def granted() -> bool:
        await b.renew("s")
        return b.held("s") == 1

    await eventually(granted)
    assert outside.held() == {"b": 1}


@in_asyncio
async def test_a_dead_node_s_permit_goes_to_the_first_in_the_queue_whoever_calls(
    server: RedisServer, outside: Outside
) -> None:
    dead, b, c = [await Caller.join(server, name) for name in ("dead", "b", "c")]
    for caller in (dead, b, c):
        await caller.take("s")
    outside.end_leases("dead", "s")
    await c.renew("s")
    assert outside.told() == [("b", "granted 1 1 s")]
    assert outside.queue() == ["c"]


@in_asyncio
async def test_a_dead_waiter_is_passed_over(server: RedisServer, outside: Outside) -> None:
    a, dead, b = [await Caller.join(server, name) for name in ("a", "dead", "b")]
    await a.take("s")
    await dead.take("s", 2)
    await b.take("s")
    assert outside.queue() == ["dead", "b"]
    outside.end_leases("dead", "s")
    await a.give_back("s")
    assert outside.told() == [("b", "granted 1 1 s")]
    assert outside.queue() == []


@in_asyncio
async def test_a_dead_waiter_leaves_nothing_behind(server: RedisServer, outside: Outside) -> None:
    a, dead = await Caller.join(server, "a"), await Caller.join(server, "dead")
    await a.take("s")
    await dead.take("s", 10)
    outside.end_leases("dead", "s")
    await a.renew("s")
    assert set(outside.look("s")[0].accounts) == {"a"}
    assert outside.queue() == []
    await a.give_back("s")
    assert outside.in_use() == set()


@in_asyncio
async def test_who_renews_lives(server: RedisServer, outside: Outside) -> None:
    a, dead = await Caller.join(server, "a"), await Caller.join(server, "dead", lease=SHORT_LEASE_S)
    await a.take("s", 2, limit=2)
    await dead.take("s", limit=2)
    await dead.take("t")

    async def dead_is_gone() -> bool:
        await a.poke("t")
        await a.renew("s", limit=2)
        return not outside.queue("s") and not outside.held("t")

    await eventually(dead_is_gone)
    assert outside.held("s") == {"a": 2}


@in_asyncio
async def test_a_grant_does_not_lengthen_the_lease(server: RedisServer) -> None:
    """A waiter's node counts its deadline from its own last call, which the grant is not."""
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b", lease=60)
    await a.take("s")
    await b.take("s")
    waiting, _ = (await a.inspect("s")).members
    await a.give_back("s")
    (held,) = (await a.inspect("s")).members
    assert (waiting.node, held.node, held.held) == ("b", "b", 1)
    assert held.lease_left <= waiting.lease_left <= 60


@in_asyncio
async def test_asking_again_keeps_a_waiter_alive(server: RedisServer, outside: Outside) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s")
    await b.take("s")
    outside.end_leases("b", "s")
    await b.renew("s")
    await a.give_back("s")
    assert outside.held() == {"b": 1}


# Keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@in_asyncio
async def test_every_key_expires_whatever_was_done(
    server: RedisServer, outside: Outside, seed: int
) -> None:
    """But for the epoch's, of which there is one: without it, nothing is granted for a while."""
    dice = random.Random(seed)
    callers = [
        await Caller.join(server, name, lease=lease) for name, lease in (("a", 5), ("b", 60))
    ]
    for _ in range(200):
        caller, scope = dice.choice(callers), dice.choice("st")
        limit = Limit(dice.randint(1, 3), dice.choice((0, 0, 0.001, 0.02)), 0.5)
        match dice.randrange(4):
            case 0:
                await caller.take(scope, dice.randint(1, 4), limit)
            case 1:
                await caller.renew(scope, limit)
            case 2:
                await caller.give_back(scope, dice.randint(0, caller.held(scope)), limit)
            case 3:
                await caller.give_up(scope, dice.randint(0, caller.book(scope).waiting), limit)
        endless = [key for key in outside.in_use() if outside.ttl(key) == -1]
        assert endless == []


@in_asyncio
async def test_keys_outlive_every_lease(server: RedisServer, outside: Outside) -> None:
    brief, long = await Caller.join(server, "a", lease=5), await Caller.join(server, "b", lease=60)
    await long.take("s")
    await brief.take("s")
    await brief.renew("s")
    assert outside.in_use() == set(KEYS.of("s"))
    for key in outside.in_use():
        assert outside.ttl(key) > 60_000


@in_asyncio
async def test_a_scope_whose_nodes_all_died_goes_by_itself_within_a_day(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a", lease=15)
    await a.take("s", 3)
    assert outside.in_use() == set(KEYS.of("s"))
    for key in outside.in_use():
        assert 15_000 < outside.ttl(key) <= 24 * 3_600_000


@in_asyncio
async def test_an_idle_scope_leaves_nothing_but_the_epoch(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    for caller in (a, b):
        await caller.take("s", 2)
    for caller in (a, b):
        await caller.renew("s")
        await caller.give_up("s", caller.book("s").waiting)
        await caller.give_back("s", caller.held("s"))
    assert outside.in_use() == set()


@in_asyncio
async def test_an_idle_scope_with_a_delay_remembers_only_its_next_start(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    limit = Limit(1, delay=30)
    await a.take("s", limit=limit)
    await a.give_back("s", limit=limit)
    assert outside.in_use() == {KEYS.of("s")[0]}
    assert outside.client.hkeys(KEYS.of("s")[0]) == [b"state"]
    assert 0 < outside.ttl(KEYS.of("s")[0]) <= 30_000


# Inspect --------------------------------------------------------------------------------------


@in_asyncio
async def test_inspect_tells_the_limit_and_what_each_node_holds_and_waits_for(
    server: RedisServer,
) -> None:
    """Those that wait come first, in the order of the queue, and then the others by name."""
    c, b, a = [await Caller.join(server, name) for name in ("c", "node:b", "a")]
    await c.take("s", 3, limit=2)
    await b.take("s", limit=2)
    await a.take("s", 0, limit=2)
    seen = await a.inspect("s")
    assert seen.limit == 2
    assert [(member.node, member.held, member.waiting) for member in seen.members] == [
        ("node:b", 0, 1),  # it holds fewer
        ("c", 2, 1),
    ]
    for member in seen.members:
        assert 0 < member.lease_left <= ENDLESS_S
        assert 0 <= member.oldest < ENDLESS_S
        assert 0 <= member.longest_wait < ENDLESS_S
    assert str(seen) == "s: 2/2 held, 2 waiting"


@in_asyncio
async def test_inspect_tells_for_how_long_the_oldest_request_holds_and_waits(
    server: RedisServer,
) -> None:
    a = await Caller.join(server, "a")
    await a.take("s", 2)
    await a.say("s", held_age=7.0, wait_age=5.0)
    (member,) = (await a.inspect("s")).members
    assert 7.0 <= member.oldest < 7.0 + ENDLESS_S
    assert 5.0 <= member.longest_wait < 7.0


@in_asyncio
async def test_inspect_leaves_out_the_dead(server: RedisServer, outside: Outside) -> None:
    a, dead = await Caller.join(server, "a"), await Caller.join(server, "dead")
    await dead.take("s")
    await a.take("s")
    await dead.take("s")
    outside.end_leases("dead", "s")
    seen = await a.inspect("s")
    assert [(member.node, member.held, member.waiting) for member in seen.members] == [("a", 0, 1)]


@in_asyncio
async def test_inspect_changes_nothing(server: RedisServer, outside: Outside) -> None:
    a, dead = await Caller.join(server, "a"), await Caller.join(server, "dead")
    await a.take("s", 3, limit=2)
    await dead.take("s")
    outside.end_leases("dead", "s")
    outside.told()
    before = outside.dump()
    for scope in ("s", "never used"):
        await a.inspect(scope)
    assert outside.dump() == before
    assert outside.told() == []


@in_asyncio
async def test_an_idle_scope_is_seen_to_be_idle(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    seen = await a.inspect("s")
    assert (seen.limit, seen.members, seen.held, seen.waiting) == (None, (), 0, 0)
    assert str(seen) == "s: 0/- held, 0 waiting"
