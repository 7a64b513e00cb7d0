"""An adaptive limit, driven by feedback: how it reacts to latencies and refusals."""

from collections.abc import Callable
from statistics import mean

import pytest

from semaphore_middleware.core.protocol import Reply
from semaphore_middleware.model.feedback import Feedback, FeedbackSummary
from semaphore_middleware.model.limits import Limit
from tests.support.nodes import Caller, Outside
from tests.support.servers import RedisServer

LIMIT_MAX = 16
LIMIT = Limit(LIMIT_MAX, adaptive=True)
LATENCY_S = 0.1


class Visitor:
    """Has as many requests open as it may, in rounds: all are granted, then all are answered."""

    def __init__(self, caller: Caller, capacity: int = LIMIT_MAX) -> None:
        self.caller = caller
        self.latency: Callable[[int], float] = lambda n: LATENCY_S * (2 if n > capacity else 1)

    async def round(self) -> int:
        """How many were open; with more than the capacity, all were twice as slow."""
        await self.caller.take("s", LIMIT_MAX + 1, limit=LIMIT)
        open_now = self.caller.held("s")
        await self.caller.give_up("s", LIMIT_MAX + 1 - open_now, limit=LIMIT)
        await answer(self.caller, *[Feedback(self.latency(open_now))] * open_now)
        return open_now

    async def rounds(self, number: int) -> list[int]:
        return [await self.round() for _ in range(number)]


async def grown_visitor(server: RedisServer) -> Visitor:
    """One that has reached the configured limit, at a site that takes everything."""
    visitor = Visitor(await Caller.join(server, "a"))
    open_now = await visitor.rounds(60)
    assert open_now[0] == 1
    assert open_now[-1] == max(open_now) == LIMIT_MAX
    return visitor


async def answer(caller: Caller, *seen: Feedback, age: float = 0.0, limit: Limit = LIMIT) -> Reply:
    """Give as many permits back, with how the site answered."""
    summary = FeedbackSummary.of((each, age) for each in seen)
    return await caller.give_back("s", len(seen), limit, feedback=summary)


@pytest.mark.parametrize("capacity", [5, 8, 13])
async def test_it_settles_near_what_the_site_can_take(server: RedisServer, capacity: int) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    visitor = Visitor(a, capacity)
    await visitor.rounds(60)
    settled = await visitor.rounds(100)
    assert 0.8 * capacity <= mean(settled) <= 1.2 * capacity
    slow = sum(open_now > capacity for open_now in settled)
    assert slow < 20, "it tries more now and then, not all the time"
    reply = await b.take("s", LIMIT_MAX, limit=LIMIT)  # one value for all, though it was idle
    assert capacity - 2 <= reply.limit == reply.granted <= capacity + 1
    seen = await a.inspect("s")
    assert (seen.limit, seen.limit_max) == (reply.limit, LIMIT_MAX)


async def test_a_refusal_halves_it(server: RedisServer, outside: Outside) -> None:
    visitor = await grown_visitor(server)
    a = visitor.caller
    assert (await a.take("s", limit=LIMIT)).limit == LIMIT_MAX
    reply = await answer(a, Feedback(refused=True, retry_after=0.001))
    assert reply.limit == LIMIT_MAX // 2
    outside.end_backoff()
    assert max(await visitor.rounds(12)) <= LIMIT_MAX // 2 + 3
    assert (await visitor.rounds(60))[-1] == LIMIT_MAX


async def test_a_few_slow_pages_and_old_answers_do_not_decide(server: RedisServer) -> None:
    a = (await grown_visitor(server)).caller
    for _ in range(25):
        assert (await a.take("s", LIMIT_MAX, limit=LIMIT)).granted == LIMIT_MAX
        latencies = [100 * LATENCY_S] + [LATENCY_S] * (LIMIT_MAX - 1)
        reply = await answer(a, *map(Feedback, latencies))
    assert reply.limit == LIMIT_MAX
    await a.take("s", LIMIT_MAX, limit=LIMIT)
    reply = await answer(a, *[Feedback(50 * LATENCY_S)] * LIMIT_MAX, age=10.0**10)
    assert reply.limit == LIMIT_MAX


async def test_a_site_that_is_always_slow_is_not_held_back_for_ever(server: RedisServer) -> None:
    visitor = await grown_visitor(server)
    visitor.latency = lambda _: 3 * LATENCY_S
    open_now = await visitor.rounds(300)
    assert min(open_now) == 1
    assert open_now[-1] == LIMIT_MAX


async def test_it_does_not_grow_where_it_is_not_used(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    spaced = Limit(LIMIT_MAX, delay=60, adaptive=True)
    await a.take("s", 100, limit=spaced)
    for _ in range(99):
        assert a.held("s") == 1
        reply = await answer(a, Feedback(LATENCY_S), limit=spaced)
        outside.start_is_due()
        await a.renew("s", limit=spaced)
    assert reply.limit <= 2
    outside.client.flushdb()
    outside.client.script_flush()
    b = await Caller.join(server, "b")
    outside.end_recovery()
    before = (await Visitor(b).rounds(9))[-1]
    assert 2 < before < LIMIT_MAX
    for _ in range(100):
        await b.take("s", limit=LIMIT)
        reply = await answer(b, Feedback(LATENCY_S))
    assert reply.limit == before


async def test_without_it_nothing_is_learned_of_latencies(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    plain = Limit(LIMIT_MAX)
    await a.take("s", limit=plain)
    await answer(a, Feedback(refused=True), limit=plain)
    assert float(outside.look("s")[0].learned["working_limit"]) == 0


async def test_a_pause_does_not_begin_it_anew_and_a_reset_does(server: RedisServer) -> None:
    a = (await grown_visitor(server)).caller
    await a.admin.pause("s")
    await a.admin.resume("s")
    assert (await a.take("s", limit=LIMIT)).limit == LIMIT_MAX
    await a.admin.reset("s")
    await a.give_back("s", limit=LIMIT)
    assert (await a.take("s", limit=LIMIT)).limit == 1


async def test_who_waits_learns_why(server: RedisServer) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    await a.take("s", limit=LIMIT)
    await a.give_back("s", limit=LIMIT, take=3, feedback=FeedbackSummary.of([(Feedback(0.1), 0.0)]))
    reply = await b.take("s", limit=LIMIT)
    assert reply.reason is not None
    assert (b.held("s"), reply.reason.name) == (0, "adaptive")
    seen = await b.inspect("s")
    assert (seen.state, seen.reason, seen.wait) == ("adaptive", reply.reason, None)
    assert seen.why.startswith(reply.reason.sentence)
