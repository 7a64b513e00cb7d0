"""Starts that were granted and have not begun: their requests wait for permits of other scopes."""

from __future__ import annotations

import pytest

from semaphore_middleware.model.limits import Limit
from tests.support.nodes import Caller, Outside, in_asyncio
from tests.support.servers import RedisServer

SLOW = Limit(9, delay=60)
RATED = Limit(9, rate="1/m", burst=3)


@in_asyncio
async def test_nothing_starts_between_a_start_and_its_beginning(
    server: RedisServer, outside: Outside
) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    a.book("s").asked += 1
    assert (await a.say("s", SLOW, pending=0, started=0)).granted == 1
    assert outside.state()["pending"] == "1"
    reply = await b.take("s", limit=SLOW)
    assert (reply.granted, reply.retry_in) == (0, None), "no time is known"
    await a.say("s", SLOW, pending=0, started=1)  # it begins
    assert outside.state()["pending"] == "0"
    assert outside.told() == [("b", f"retry {60_000} s")]
    assert (await b.renew("s", limit=SLOW)).granted == 0
    outside.start_is_due()
    assert (await b.renew("s", limit=SLOW)).granted == 1


@in_asyncio
async def test_a_pending_start_that_is_returned_is_another_s_at_once(
    server: RedisServer, outside: Outside
) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    a.book("s").asked += 1
    await a.say("s", SLOW, pending=0, started=0)
    await b.take("s", limit=SLOW)
    book = a.book("s")
    book.returned, book.unused = 1, 1
    await a.say("s", SLOW, pending=0, started=0)
    assert outside.held() == {"b": 1}


@in_asyncio
async def test_pending_starts_count_in_a_burst(server: RedisServer, outside: Outside) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    a.book("s").asked += 2
    assert (await a.say("s", RATED, pending=0, started=0)).granted == 2
    reply = await b.take("s", 2, limit=RATED)
    assert reply.granted == 1
    assert 59 < (reply.retry_in or 0) <= 60, "whenever the others begin"
    await a.say("s", RATED, pending=0, started=2)
    assert outside.held() == {"a": 2, "b": 1}
    reply = await b.renew("s", limit=RATED)
    assert reply.granted == 1
    assert 59 < (reply.retry_in or 0) <= 60


@in_asyncio
async def test_a_beginning_that_is_told_late_counts_from_then(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    a.book("s").asked += 1
    await a.say("s", RATED, pending=0, started=0)
    outside.edit("s", "state", next_at_rate=0)
    await a.say("s", RATED, pending=0, started=1)
    await a.say("s", RATED, pending=0, started=1)  # once more, and it counts once
    reply = await a.take("s", 4, limit=RATED)
    assert reply.granted == 3
    assert 59 < (reply.retry_in or 0) <= 60


@pytest.mark.parametrize("end", ["lease", "term", "evicted"])
@in_asyncio
async def test_a_node_that_is_gone_may_have_begun_what_was_pending(
    server: RedisServer, outside: Outside, end: str
) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    a.book("s").asked += 1
    await a.say("s", SLOW, pending=0, started=0)
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
    assert 0 < (reply.retry_in or 0) <= 60
    assert outside.state()["pending"] == "0"


@in_asyncio
async def test_what_is_granted_later_is_pending_too(server: RedisServer, outside: Outside) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    full = Limit(1)
    await b.take("s", limit=full)
    a.book("s").asked += 1
    await a.say("s", full, pending=0, started=0)
    await b.give_back("s", limit=full)
    assert outside.state()["pending"] == "1"
    await a.say("s", full, pending=0, started=0)  # which does not know of it yet
    assert outside.state()["pending"] == "1"
    await a.say("s", full, pending=0, started=1)
    assert outside.state()["pending"] == "0"


@in_asyncio
async def test_a_start_that_was_never_pending_is_not_taken_back(server: RedisServer) -> None:
    """One request begins at once; then others of the node are to begin later, and one gives up."""
    a = await Caller.join(server, "a")
    await a.take("s", limit=SLOW)
    book = a.book("s")
    book.returned, book.unused = 1, 1
    book.asked += 1
    reply = await a.say("s", SLOW, pending=0)
    assert reply.granted == 1
    assert 59 < (reply.retry_in or 0) <= 60


@in_asyncio
async def test_a_start_that_was_taken_back_before_is_not_taken_for_the_next(
    server: RedisServer, outside: Outside
) -> None:
    """A start that was said is taken back, then requests of the node are to begin later."""
    a = await Caller.join(server, "a")
    await a.take("s", 2, limit=SLOW)
    await a.say("s", SLOW, started=1)
    a.book("s").returned = 1
    await a.say("s", SLOW, pending=0, started=0)
    outside.start_is_due()
    assert (await a.say("s", SLOW, pending=0, started=0)).granted == 2
    a.book("s").asked += 1
    reply = await a.say("s", SLOW, pending=0, started=1)
    assert reply.granted == 2
    assert 59 < (reply.retry_in or 0) <= 60
