"""Accounts are leases. How long keys live, and what `inspect` tells of them."""

from __future__ import annotations

import pytest

from semaphore_middleware.model.limits import Limit
from tests.support.nodes import ENDLESS_S, KEYS, Caller, Outside, in_asyncio
from tests.support.servers import RedisServer


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
async def test_keys_outlive_leases_and_end_in_a_day(server: RedisServer, outside: Outside) -> None:
    brief, long = await Caller.join(server, "a", lease=5), await Caller.join(server, "b", lease=60)
    await long.take("s")
    await brief.take("s")
    await brief.renew("s")
    assert outside.in_use() == set(KEYS.of("s"))
    for key in outside.in_use():
        assert 60_000 < outside.ttl(key) <= 24 * 3_600_000
    outside.edit("s", "state", expires=1)  # what half a day does
    outside.client.pexpire(KEYS.of("s")[0], 60_000)
    await brief.renew("s")
    assert outside.ttl(KEYS.of("s")[0]) > 60_000


@pytest.mark.parametrize("limit", [Limit(1), Limit(1, delay=30)])
@in_asyncio
async def test_an_idle_scope_leaves_no_key_but_with_a_delay_its_next_start(
    server: RedisServer, outside: Outside, limit: Limit
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    for caller in (a, b):
        await caller.take("s", 2, limit)
    for caller in (a, b):
        await caller.renew("s", limit)
        await caller.give_up("s", caller.book("s").waiting, limit)
        await caller.give_back("s", caller.held("s"), limit)
    (key, _) = KEYS.of("s")
    assert outside.in_use() == ({key} if limit.delay else set())
    if limit.delay:
        assert outside.client.hkeys(key) == [b"state"]
        assert 0 < outside.ttl(key) <= 30_000


@in_asyncio
async def test_inspect_tells_all_and_changes_nothing(server: RedisServer, outside: Outside) -> None:
    """Those that wait come first, in the order of the queue, and then the others by name."""
    c, dead, b, a = [await Caller.join(server, name) for name in ("c", "dead", "node:b", "a")]
    assert str(await a.inspect("s")) == "s: 0/- held, 0 waiting"
    await c.take("s", 3, limit=2)
    await c.say("s", limit=2, held_age=7.0, wait_age=5.0)
    for caller in (dead, b):
        await caller.take("s", limit=2)
    outside.end_leases("dead", "s")
    outside.told()
    before = outside.dump()
    seen = await a.inspect("s")
    await a.inspect("never used")
    assert (outside.dump(), outside.told()) == (before, [])
    counts = [(member.node, member.held, member.waiting) for member in seen.members]
    assert counts == [("node:b", 0, 1), ("c", 2, 1)], "the first holds fewer"
    for member in seen.members:
        assert 0 < member.lease_left <= ENDLESS_S
    holder = seen.members[1]
    assert 7.0 <= holder.oldest < 7.0 + ENDLESS_S
    assert 5.0 <= holder.longest_wait < 7.0
    assert str(seen) == "s: 2/2 held, 2 waiting"
