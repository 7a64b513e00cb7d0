"""A delay between starts: who may start next, and who is told when to come back."""

from __future__ import annotations

import pytest

from semaphore_middleware.model.limits import Limit
from semaphore_middleware.redis.protocol import Notification
from tests.support.nodes import Caller, Outside, eventually, in_asyncio, key
from tests.support.servers import RedisServer

SLOW = Limit(5, delay=60)


def start_is_due(outside: Outside, scope: str = "s") -> None:
    """What time does to a delay."""
    outside.client.hset(key(scope, "state"), "next", 1)


@in_asyncio
async def test_with_a_delay_one_starts_at_a_time(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    assert (await a.acquire("s", 1, 2, 3, limit=SLOW)).granted == (1,)
    assert (await a.acquire("s", 2, 3, limit=SLOW)).granted == ()
    start_is_due(outside)
    assert (await a.acquire("s", 2, limit=SLOW)).granted == (2,)
    assert outside.held() == ["a:1", "a:2"]
    assert outside.line() == ["a:3"]


@in_asyncio
async def test_the_delay_of_an_idle_scope_goes_by_real_time_though_nobody_called(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await a.acquire("s", 1, limit=SLOW)
    await a.release("s", 1)
    # What 55 s without a call would do.
    outside.client.hincrbyfloat(key("s", "state"), "idle", -55_000)

    again = (await a.acquire("s", 2, limit=SLOW)).retry_in
    assert again is not None
    assert again <= 5


@in_asyncio
async def test_starts_that_are_due_come_by_asking_when_told(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    limit = Limit(5, delay=0.02)
    await a.acquire("s", 1, 2, 3, limit=limit)

    async def all_started() -> bool:
        await a.poke("s")
        return not outside.line()

    await eventually(all_started)
    assert sorted(outside.held()) == ["a:1", "a:2", "a:3"]


@in_asyncio
async def test_the_head_of_the_line_is_told_in_the_reply_when_to_come_back(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    answer = await a.acquire("s", 1, 2, limit=SLOW)
    assert answer.retry_in is not None
    assert 0 < answer.retry_in <= 60
    again = (await a.acquire("s", 2, limit=SLOW)).retry_in
    assert again is not None
    assert 0 < again <= answer.retry_in
    assert outside.told() == []


@in_asyncio
async def test_the_head_of_the_line_is_told_once_over_its_channel_when_to_come_back(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await b.acquire("s", 1, limit=Limit(1, delay=60))
    await a.acquire("s", 4, 5, limit=SLOW)
    for _ in range(3):
        await b.release("s", 1, limit=SLOW)
        await b.acquire("s", 2, limit=SLOW)
    told = outside.told()
    assert len(told) == 1
    node, text = told[0]
    word, number, wait = text.split()
    assert (node, word, number) == ("a", "again", "4")
    assert 0 < int(wait) <= 60_000
    message = Notification.read(text.encode())
    assert message is not None
    assert message.retry_in == ((4, int(wait) / 1000),)


@in_asyncio
async def test_the_next_head_is_told_when_the_first_one_leaves(
    server: RedisServer, outside: Outside
) -> None:
    a, b, c = [await Caller.join(server, name) for name in "abc"]
    await a.acquire("s", 1, limit=SLOW)
    await b.acquire("s", 1, limit=SLOW)
    await c.acquire("s", 1, limit=SLOW)
    await b.release("s", 1, limit=SLOW)
    assert [(node, text.split()[:2]) for node, text in outside.told()] == [("c", ["again", "1"])]


@in_asyncio
async def test_the_next_head_is_told_when_the_first_one_starts(
    server: RedisServer, outside: Outside
) -> None:
    a, b, c = [await Caller.join(server, name) for name in "abc"]
    await a.acquire("s", 1, limit=SLOW)
    await b.acquire("s", 1, limit=SLOW)
    await c.acquire("s", 1, limit=SLOW)
    start_is_due(outside)
    assert (await b.acquire("s", 1, limit=SLOW)).granted == (1,)
    assert [(node, text.split()[:2]) for node, text in outside.told()] == [("c", ["again", "1"])]


@pytest.mark.parametrize("action", ["configure", "pause"])
@in_asyncio
async def test_a_head_that_came_back_in_vain_is_told_again_when_time_is_in_its_way(
    server: RedisServer, outside: Outside, action: str
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.acquire("s", 1, limit=SLOW)
    await b.acquire("s", 1, limit=SLOW)
    await (a.admin.pause("s") if action == "pause" else a.admin.configure("s", 1))
    assert (await b.acquire("s", 1, limit=SLOW)).retry_in is None
    await a.admin.resume("s")
    await a.release("s", 1, limit=SLOW)
    assert [(node, text.split()[:2]) for node, text in outside.told()] == [("b", ["again", "1"])]


@in_asyncio
async def test_who_waits_for_a_permit_and_not_for_time_is_not_told_to_come_back(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.acquire("s", 1, limit=Limit(1, delay=60))
    assert (await b.acquire("s", 1, limit=Limit(1, delay=60))).retry_in is None
    assert outside.told() == []


@in_asyncio
async def test_the_longest_delay_in_use_wins(server: RedisServer, outside: Outside) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await b.acquire("s", 1, limit=SLOW)
    await a.acquire("s", 1, limit=Limit(5, delay=0))
    start_is_due(outside)
    answer = await a.acquire("s", 1, 2, limit=Limit(5, delay=0.001))
    assert answer.granted == (1,)
    assert answer.retry_in is not None
    assert answer.retry_in > 1


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (Limit(5, delay=60, jitter=1), Limit(5, delay=60)),
        (Limit(5, delay=60), Limit(5, delay=60, jitter=1)),
        (Limit(5, delay=60, jitter=1), Limit(5, delay=50)),
        (Limit(5, delay=50), Limit(5, delay=60, jitter=1)),
    ],
)
@in_asyncio
async def test_the_longest_of_the_least_gaps_in_use_wins(
    server: RedisServer, outside: Outside, first: Limit, then: Limit
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.acquire("s", 1, limit=first)
    least = max(limit.delay * (1 - limit.jitter) for limit in (first, then))
    await b.acquire("s", 1, limit=then)
    for _ in range(20):
        start_is_due(outside)
        assert (await b.acquire("s", 1, limit=then)).granted == (1,)
        await b.release("s", 1, limit=then)
        answer = await b.acquire("s", 1, limit=then)
        assert answer.retry_in is not None
        assert least - 0.1 < answer.retry_in <= 70


@in_asyncio
async def test_a_delay_outlives_the_idle_scope(server: RedisServer, outside: Outside) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.acquire("s", 1, limit=SLOW)
    await a.release("s", 1, limit=SLOW)
    assert (await b.acquire("s", 1, limit=SLOW)).granted == ()
    start_is_due(outside)
    assert (await b.acquire("s", 1, limit=SLOW)).granted == (1,)


@pytest.mark.parametrize(("jitter", "least", "most"), [(0, 60, 60), (0.5, 30, 90), (1, 0, 120)])
@in_asyncio
async def test_jitter_varies_the_delay_by_its_share_either_way(
    server: RedisServer, jitter: float, least: float, most: float
) -> None:
    a = await Caller.join(server, "a")
    waits = []
    for n in range(50):
        answer = await a.acquire(f"s{n}", 1, 2, limit=Limit(5, 60, jitter))
        assert answer.retry_in is not None
        waits.append(answer.retry_in)
    assert least <= min(waits) <= max(waits) <= most
    spread = max(waits) - min(waits)
    assert spread > (most - least) / 2 if jitter else spread == 0


@in_asyncio
async def test_without_a_delay_all_that_are_free_start_at_once(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    answer = await a.acquire("s", 1, 2, 3, 4, limit=3)
    assert (answer.granted, answer.retry_in) == ((1, 2, 3), None)
