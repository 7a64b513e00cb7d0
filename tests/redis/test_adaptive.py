"""An adaptive limit, driven through feedback: what it makes of latencies and refusals."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean

import pytest

from semaphore_middleware.model.feedback import Feedback, FeedbackSummary
from semaphore_middleware.model.limits import Limit
from semaphore_middleware.redis.protocol import Reply
from tests.support.nodes import Caller, Outside, in_asyncio
from tests.support.servers import RedisServer

LIMIT_MAX = 16
LIMIT = Limit(LIMIT_MAX, adaptive=True)
LATENCY_S = 0.1  # seconds


class Visitor:
    """Has as much in hand as it may, in rounds: all are granted, then all are answered."""

    def __init__(self, caller: Caller, latency: Callable[[int], float]) -> None:
        self._caller = caller
        self._latency = latency

    async def round(self) -> int:
        """How many were in hand."""
        await self._caller.take("s", LIMIT_MAX + 1, limit=LIMIT)
        in_hand = self._caller.held("s")
        await self._caller.give_up("s", LIMIT_MAX + 1 - in_hand, limit=LIMIT)
        await answer(self._caller, *[Feedback(self._latency(in_hand))] * in_hand)
        return in_hand

    async def rounds(self, number: int) -> list[int]:
        return [await self.round() for _ in range(number)]


async def answer(
    caller: Caller, *feedback: Feedback, age: float = 0.0, limit: Limit = LIMIT
) -> Reply:
    """Give as many permits back, with how the site answered."""
    summary = FeedbackSummary.of((each, age) for each in feedback)
    return await caller.give_back("s", len(feedback), limit, feedback=summary)


def above(capacity: int) -> Callable[[int], float]:
    """Twice as slow with more than that in hand."""
    return lambda in_hand: LATENCY_S * (2 if in_hand > capacity else 1)


@pytest.mark.parametrize("capacity", [5, 8, 10, 13])
@in_asyncio
async def test_it_settles_near_what_the_site_can_take(server: RedisServer, capacity: int) -> None:
    visitor = Visitor(await Caller.join(server, "a"), above(capacity))
    await visitor.rounds(60)
    settled = await visitor.rounds(100)
    assert 0.8 * capacity <= mean(settled) <= 1.2 * capacity
    slow = sum(in_hand > capacity for in_hand in settled)
    assert slow < 20, "it tries more now and then, not all the time"


@in_asyncio
async def test_it_grows_to_the_configured_limit_and_never_past_it(server: RedisServer) -> None:
    visitor = Visitor(await Caller.join(server, "a"), lambda _: LATENCY_S)
    in_hand = await visitor.rounds(60)
    assert in_hand[0] == 1
    assert in_hand[-1] == max(in_hand) == LIMIT_MAX


@in_asyncio
async def test_not_now_halves_it_at_once_and_it_grows_back_slowly(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    visitor = Visitor(a, lambda _: LATENCY_S)
    await visitor.rounds(60)
    assert (await a.take("s", limit=LIMIT)).limit == LIMIT_MAX
    reply = await answer(a, Feedback(refused=True, retry_after=0.001))
    assert reply.limit == LIMIT_MAX // 2
    outside.end_backoff()
    in_hand = await visitor.rounds(12)
    assert max(in_hand) <= LIMIT_MAX // 2 + 3
    assert (await visitor.rounds(60))[-1] == LIMIT_MAX


@in_asyncio
async def test_it_is_one_value_for_all_nodes_and_outlives_the_idle_scope(
    server: RedisServer,
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    visitor = Visitor(a, above(6))
    await visitor.rounds(60)
    reply = await b.take("s", LIMIT_MAX, limit=LIMIT)
    assert 4 <= reply.limit == reply.granted <= 7
    seen = await a.inspect("s")
    assert seen.waiting == LIMIT_MAX - reply.limit
    assert (seen.limit, seen.limit_max) == (reply.limit, LIMIT_MAX)


@in_asyncio
async def test_a_few_pages_that_take_very_long_do_not_decide(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    visitor = Visitor(a, lambda _: LATENCY_S)
    await visitor.rounds(60)
    for _ in range(400 // LIMIT_MAX):
        granted = (await a.take("s", LIMIT_MAX, limit=LIMIT)).granted
        assert granted == LIMIT_MAX
        latencies = [100 * LATENCY_S] + [LATENCY_S] * (granted - 1)
        reply = await answer(a, *map(Feedback, latencies))
    assert reply.limit == LIMIT_MAX


@in_asyncio
async def test_a_site_that_is_slow_whatever_we_do_is_not_held_back_for_ever(
    server: RedisServer,
) -> None:
    visitor = Visitor(await Caller.join(server, "a"), lambda _: latency)
    latency = LATENCY_S
    await visitor.rounds(60)
    latency = 3 * LATENCY_S
    in_hand = await visitor.rounds(300)
    assert min(in_hand) == 1
    assert in_hand[-1] == LIMIT_MAX


@in_asyncio
async def test_answers_to_what_began_before_it_changed_say_nothing_of_it(
    server: RedisServer,
) -> None:
    a = await Caller.join(server, "a")
    visitor = Visitor(a, lambda _: LATENCY_S)
    await visitor.rounds(60)
    await a.take("s", LIMIT_MAX, limit=LIMIT)
    reply = await answer(a, *[Feedback(50 * LATENCY_S)] * LIMIT_MAX, age=10.0**10)
    assert reply.limit == LIMIT_MAX


@in_asyncio
async def test_it_does_not_grow_where_it_is_not_used(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    visitor = Visitor(a, lambda _: LATENCY_S)
    before = (await visitor.rounds(9))[-1]
    assert 2 < before < LIMIT_MAX
    for _ in range(200):
        await a.take("s", limit=LIMIT)
        reply = await answer(a, Feedback(LATENCY_S))
    assert reply.limit == before


@in_asyncio
async def test_it_does_not_grow_where_a_delay_keeps_it_from_being_used(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    spaced = Limit(LIMIT_MAX, delay=60, adaptive=True)
    await a.take("s", 200, limit=spaced)
    for _ in range(199):
        assert a.held("s") == 1
        reply = await answer(a, Feedback(LATENCY_S), limit=spaced)
        outside.start_is_due()
        await a.renew("s", limit=spaced)
    assert reply.limit <= 2


@in_asyncio
async def test_resuming_a_site_does_not_begin_its_limit_anew(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    await Visitor(a, lambda _: LATENCY_S).rounds(60)
    await a.admin.pause("s")
    await a.admin.resume("s")
    assert (await a.take("s", limit=LIMIT)).limit == LIMIT_MAX
    await a.admin.reset("s")
    await a.give_back("s", limit=LIMIT)
    assert (await a.take("s", limit=LIMIT)).limit == 1


@in_asyncio
async def test_a_limit_that_is_not_adaptive_stays(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    fixed = Limit(4)
    for number in range(100):
        await a.take("s", limit=fixed)
        reply = await answer(a, Feedback(0.1 * (1 + number)), limit=fixed)
        assert reply.limit == 4
