"""An adaptive limit, driven through reports: what it makes of latencies and refusals."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from statistics import mean

import pytest

from semaphore_middleware.model.feedback import Feedback, FeedbackSummary
from semaphore_middleware.model.limits import Limit
from semaphore_middleware.redis.protocol import Ask, Reply
from tests.support.nodes import Caller, Outside, in_asyncio, key
from tests.support.servers import RedisServer

LIMIT_MAX = 16
LIMIT = Limit(LIMIT_MAX, adaptive=True)
LATENCY_S = 0.1  # seconds


class Visitor:
    """Has as much in hand as it may, in rounds: all are granted, then all are answered."""

    def __init__(self, caller: Caller, latency: Callable[[int], float]) -> None:
        self._caller = caller
        self._latency = latency
        self._numbers = count(1)

    async def round(self) -> int:
        """How many were in hand."""
        numbers = tuple(next(self._numbers) for _ in range(LIMIT_MAX + 1))
        granted = (await self._caller.acquire("s", *numbers, limit=LIMIT)).granted
        latency = self._latency(len(granted))
        await self.answer(granted, Feedback(latency))
        waiting = tuple(number for number in numbers if number not in granted)
        await self._caller.release("s", *waiting, limit=LIMIT)
        return len(granted)

    async def answer(self, numbers: tuple[int, ...], outcome: Feedback) -> Reply:
        report = FeedbackSummary.of([(outcome, 0.0)] * len(numbers))
        ask = Ask("report", "s", LIMIT, numbers, report)
        (answer,) = await self._caller.store.run(self._caller.connection, [ask])
        return answer

    async def rounds(self, number: int) -> list[int]:
        return [await self.round() for _ in range(number)]


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
    assert (await a.acquire("s", 10**6, limit=LIMIT)).limit == LIMIT_MAX
    answer = await visitor.answer((10**6,), Feedback(refused=True, retry_after=0.001))
    assert answer.limit == LIMIT_MAX // 2
    outside.end_quiet()
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
    answer = await b.acquire("s", *range(LIMIT_MAX), limit=LIMIT)
    assert 4 <= answer.limit == len(answer.granted) <= 7
    seen = await a.inspect("s")
    assert len(seen.waiters) == LIMIT_MAX - answer.limit
    assert (seen.limit, seen.limit_max) == (answer.limit, LIMIT_MAX)


@in_asyncio
async def test_a_few_pages_that_take_very_long_do_not_decide(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    visitor = Visitor(a, lambda _: LATENCY_S)
    await visitor.rounds(60)
    for start in range(0, 400, LIMIT_MAX):
        numbers = tuple(range(10**6 + start, 10**6 + start + LIMIT_MAX))
        granted = (await a.acquire("s", *numbers, limit=LIMIT)).granted
        latencies = [100 * LATENCY_S] + [LATENCY_S] * (len(granted) - 1)
        report = FeedbackSummary.of([(Feedback(latency), 0.0) for latency in latencies])
        (answer,) = await a.store.run(a.connection, [Ask("report", "s", LIMIT, granted, report)])
    assert answer.limit == LIMIT_MAX


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
    numbers = tuple(range(10**6, 10**6 + LIMIT_MAX))
    await a.acquire("s", *numbers, limit=LIMIT)
    late = FeedbackSummary.of([(Feedback(50 * LATENCY_S), 10.0**10)] * LIMIT_MAX)
    (answer,) = await a.store.run(a.connection, [Ask("report", "s", LIMIT, numbers, late)])
    assert answer.limit == LIMIT_MAX


@in_asyncio
async def test_it_does_not_grow_where_it_is_not_used(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    visitor = Visitor(a, lambda _: LATENCY_S)
    before = (await visitor.rounds(9))[-1]
    assert 2 < before < LIMIT_MAX
    for number in range(10**6, 10**6 + 200):
        await a.acquire("s", number, limit=LIMIT)
        answer = await visitor.answer((number,), Feedback(LATENCY_S))
    assert answer.limit == before


@in_asyncio
async def test_it_does_not_grow_where_a_delay_keeps_it_from_being_used(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    spaced = Limit(LIMIT_MAX, delay=60, adaptive=True)
    for number in range(0, 400, 2):
        outside.client.hset(key("s", "state"), "next", 1)
        answer = await a.acquire("s", number, number + 1, limit=spaced)
        report = FeedbackSummary.of([(Feedback(LATENCY_S), 0.0)])
        ask = Ask("report", "s", spaced, answer.granted, report)
        (answer,) = await a.store.run(a.connection, [ask])
    assert answer.limit <= 2


@in_asyncio
async def test_resuming_a_site_does_not_begin_its_limit_anew(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    await Visitor(a, lambda _: LATENCY_S).rounds(60)
    await a.admin.pause("s")
    await a.admin.resume("s")
    assert (await a.acquire("s", 10**6, limit=LIMIT)).limit == LIMIT_MAX
    await a.admin.reset("s")
    await a.release("s", 10**6, limit=LIMIT)
    assert (await a.acquire("s", 10**6 + 1, limit=LIMIT)).limit == 1


@in_asyncio
async def test_a_limit_that_is_not_adaptive_stays(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    fixed = Limit(4)
    for number in range(100):
        await a.acquire("s", number, limit=fixed)
        report = FeedbackSummary.of([(Feedback(0.1 * (1 + number)), 0.0)])
        (answer,) = await a.store.run(a.connection, [Ask("report", "s", fixed, (number,), report)])
        assert answer.limit == 4
