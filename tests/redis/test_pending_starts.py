"""Starts that were granted and have not begun: their requests wait for permits of other scopes."""

from __future__ import annotations

import pytest

from semaphore_middleware.model.limits import Limit
from semaphore_middleware.redis.protocol import Reply
from tests.support.nodes import Caller, Outside, in_asyncio
from tests.support.servers import RedisServer

SLOW = Limit(9, delay=3600)
RATED = Limit(9, rate="1/h", burst=3)


async def take_pending(caller: Caller, n: int, limit: Limit) -> Reply:
    """Ask for starts that begin later."""
    caller.book("s").asked += n
    return await caller.say("s", limit, pending=0, started=0)


@in_asyncio
async def test_nothing_starts_between_a_start_and_its_beginning(
    server: RedisServer, outside: Outside
) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    assert (await take_pending(a, 1, SLOW)).granted == 1
    reply = await b.take("s", limit=SLOW)
    assert (reply.granted, reply.retry_in) == (0, None), "no time is known"
    for _ in range(2):  # it begins; that is heard twice, and counts once
        await a.say("s", SLOW, pending=0, started=1)
    assert outside.told() == [("b", "retry 3600000 s")]
    outside.start_is_due()
    assert (await b.renew("s", limit=SLOW)).granted == 1


@in_asyncio
async def test_pending_starts_count_in_a_burst_and_from_their_beginning(
    server: RedisServer, outside: Outside
) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    assert (await take_pending(a, 2, RATED)).granted == 2
    b.book("s").asked = 2
    for have_begun in (False, True):
        if have_begun:
            await a.say("s", RATED, pending=0, started=2)
        reply = await b.renew("s", limit=RATED)
        assert reply.granted == 1
        assert 3480 < (reply.retry_in or 0) <= 3600
    assert outside.held() == {"a": 2, "b": 1}


@pytest.mark.parametrize("end", ["lease", "term", "evicted"])
@in_asyncio
async def test_a_node_that_is_gone_may_have_begun_what_was_pending(
    server: RedisServer, outside: Outside, end: str
) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    await take_pending(a, 1, SLOW)
    await b.take("s", limit=SLOW)
    if end == "lease":
        outside.end_leases("a", "s")
    elif end == "term":
        a.lose("s")
        await a.renew("s", limit=SLOW)
    else:
        await b.admin.evict("a")
    reply = await b.renew("s", limit=SLOW)
    assert reply.granted == 0
    assert 0 < (reply.retry_in or 0) <= 3600
