"""Accounts are leases: what lengthens one, and what `inspect` tells of them."""

from __future__ import annotations

from tests.support.nodes import ENDLESS_S, Caller, Outside, in_asyncio
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
