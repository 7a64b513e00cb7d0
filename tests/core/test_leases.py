"""A permit is a lease: what the dead leave behind goes to the living, and idle scopes to nobody."""

from __future__ import annotations

import random

import pytest

from semaphore_middleware.model.limits import Limit
from semaphore_middleware.redis.protocol import Verb
from tests.support.nodes import ENDLESS_S, Caller, Outside, eventually, in_asyncio
from tests.support.servers import RedisServer

SHORT_LEASE_S = 0.2  # seconds: a lease to wait for the end of


@in_asyncio
async def test_a_dead_node_s_permit_goes_to_who_asks_next(
    server: RedisServer, outside: Outside
) -> None:
    dead, b = await Caller.join(server, "dead", lease=SHORT_LEASE_S), await Caller.join(server, "b")
    await dead.acquire("s", 1)

    async def granted() -> bool:
        return (await b.acquire("s", 1)).granted == (1,)

    await eventually(granted)
    assert outside.held() == ["b:1"]


@in_asyncio
async def test_a_dead_node_s_permit_goes_to_the_head_of_the_line_whoever_calls(
    server: RedisServer, outside: Outside
) -> None:
    dead, b, c = [await Caller.join(server, name) for name in ("dead", "b", "c")]
    await dead.acquire("s", 1)
    await b.acquire("s", 1)
    await c.acquire("s", 1)
    outside.end_leases("dead", "s")
    await c.poke("s")
    assert outside.told() == [("b", "granted 1")]
    assert outside.line() == ["c:1"]


@in_asyncio
async def test_a_dead_waiter_is_passed_over(server: RedisServer, outside: Outside) -> None:
    a, dead, b = [await Caller.join(server, name) for name in ("a", "dead", "b")]
    await a.acquire("s", 1)
    await dead.acquire("s", 1, 2)
    await b.acquire("s", 1)
    outside.end_leases("dead", "s")
    await a.release("s", 1)
    assert outside.told() == [("b", "granted 1")]
    assert outside.line() == []


@in_asyncio
async def test_a_dead_waiter_leaves_nothing_behind(server: RedisServer, outside: Outside) -> None:
    a, dead = await Caller.join(server, "a"), await Caller.join(server, "dead")
    await a.acquire("s", 1)
    await dead.acquire("s", *range(10))
    outside.end_leases("dead", "s")
    await a.renew("s", 1)
    fields = outside.state("s")
    assert not [field for field in fields if "dead" in field]
    await a.release("s", 1)
    assert outside.in_use() == set()


@in_asyncio
async def test_who_renews_lives(server: RedisServer, outside: Outside) -> None:
    a, dead = await Caller.join(server, "a"), await Caller.join(server, "dead", lease=SHORT_LEASE_S)
    await a.acquire("s", 1, 2, limit=2)
    await dead.acquire("s", 1, limit=2)
    await dead.acquire("t", 1)
    await a.renew("s", 1, 2, limit=2)

    async def dead_is_gone() -> bool:
        await a.poke("t")
        await a.renew("s", 1, 2, limit=2)
        return not outside.line("s") and not outside.held("t")

    await eventually(dead_is_gone)
    assert outside.held("s") == ["a:1", "a:2"]


@in_asyncio
async def test_a_grant_does_not_lengthen_the_lease(server: RedisServer) -> None:
    """A waiter's node counts its deadline from its own last call, which the grant is not."""
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b", lease=60)
    await a.acquire("s", 1)
    await b.acquire("s", 1)
    (waiting,) = (await a.inspect("s")).waiters
    await a.release("s", 1)
    (held,) = (await a.inspect("s")).holders
    assert held.lease_left <= waiting.lease_left <= 60


@in_asyncio
async def test_asking_again_keeps_a_waiter_alive(server: RedisServer, outside: Outside) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.acquire("s", 1)
    await b.acquire("s", 1)
    outside.end_leases("b", "s")
    await b.acquire("s", 1)
    await a.release("s", 1)
    assert outside.held() == ["b:1"]


# Keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@in_asyncio
async def test_every_key_expires_whatever_was_done(
    server: RedisServer, outside: Outside, seed: int
) -> None:
    dice = random.Random(seed)
    verbs: tuple[Verb, ...] = ("acquire", "acquire", "release", "renew")
    callers = [
        await Caller.join(server, name, lease=lease) for name, lease in (("a", 5), ("b", 60))
    ]
    for _ in range(200):
        caller, verb = dice.choice(callers), dice.choice(verbs)
        limit = Limit(dice.randint(1, 3), dice.choice((0, 0, 0.001, 0.02)), 0.5)
        numbers = dice.sample(range(8), dice.randint(1, 4))
        await caller.say(verb, dice.choice("st"), numbers, limit)
        endless = [key for key in outside.client.scan_iter("semaphore:*") if outside.ttl(key) <= 0]
        assert endless == []


@in_asyncio
async def test_keys_outlive_every_lease(server: RedisServer, outside: Outside) -> None:
    brief, long = await Caller.join(server, "a", lease=5), await Caller.join(server, "b", lease=60)
    await long.acquire("s", 1)
    await brief.acquire("s", 1)
    await brief.poke("s")
    for key in outside.in_use():
        assert outside.ttl(key) > 60_000


@in_asyncio
async def test_a_scope_whose_nodes_all_died_goes_by_itself_within_hours(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a", lease=15)
    await a.acquire("s", 1, 2, 3)
    assert len(outside.in_use()) == 4
    for key in outside.in_use():
        assert 15_000 < outside.ttl(key) <= 6 * 3_600_000


@in_asyncio
async def test_an_idle_scope_leaves_nothing_but_the_epoch(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    for caller in (a, b):
        await caller.acquire("s", 1, 2)
    for caller in (a, b):
        await caller.release("s", 1, 2)
    assert outside.in_use() == set()


@in_asyncio
async def test_an_idle_scope_with_a_delay_remembers_only_its_next_start(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await a.acquire("s", 1, limit=Limit(1, delay=30))
    await a.release("s", 1, limit=Limit(1, delay=30))
    (key,) = outside.in_use()
    assert set(outside.state("s")) == {"next", "idle"}
    assert 0 < outside.ttl(key) <= 30_000


# Inspect --------------------------------------------------------------------------------------


@in_asyncio
async def test_inspect_tells_limit_holders_and_the_line(server: RedisServer) -> None:
    a, b = await Caller.join(server, "node:a"), await Caller.join(server, "b")
    await a.acquire("s", 1, 2, 3, limit=2)
    await b.acquire("s", 1, limit=2)
    seen = await b.inspect("s")
    assert seen.limit == 2
    assert [(member.id, member.node) for member in seen.holders] == [
        ("node:a:1", "node:a"),
        ("node:a:2", "node:a"),
    ]
    assert [member.id for member in seen.waiters] == ["node:a:3", "b:1"]
    for member in seen.holders + seen.waiters:
        assert 0 <= member.age < ENDLESS_S
        assert 0 < member.lease_left <= ENDLESS_S
    assert str(seen) == "s: 2/2 held, 2 waiting"


@in_asyncio
async def test_inspect_leaves_out_the_dead(server: RedisServer, outside: Outside) -> None:
    a, dead = await Caller.join(server, "a"), await Caller.join(server, "dead")
    await dead.acquire("s", 1)
    await a.acquire("s", 1)
    await dead.acquire("s", 2)
    outside.end_leases("dead", "s")
    seen = await a.inspect("s")
    assert seen.holders == ()
    assert [member.id for member in seen.waiters] == ["a:1"]


@in_asyncio
async def test_inspect_changes_nothing(server: RedisServer, outside: Outside) -> None:
    a, dead = await Caller.join(server, "a"), await Caller.join(server, "dead")
    await a.acquire("s", 1, 2, 3, limit=2)
    await dead.acquire("s", 1)
    outside.end_leases("dead", "s")
    before = outside.dump()
    for scope in ("s", "never used"):
        await a.inspect(scope)
    assert outside.dump() == before
    assert outside.told() == []


@in_asyncio
async def test_an_idle_scope_is_seen_to_be_idle(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    seen = await a.inspect("s")
    assert (seen.limit, seen.holders, seen.waiters) == (None, (), ())
    assert str(seen) == "s: 0/- held, 0 waiting"
