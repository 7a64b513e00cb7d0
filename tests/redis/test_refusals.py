"""A site that refuses requests is left alone by all nodes: how long, and what counts as once."""

from __future__ import annotations

import pytest

from semaphore_middleware.model.feedback import Feedback, FeedbackSummary
from semaphore_middleware.model.limits import Limit
from semaphore_middleware.redis.protocol import Reply
from tests.support.nodes import Caller, Outside, in_asyncio, key
from tests.support.servers import RedisServer

LIMIT = Limit(4)
REFUSED = Feedback(refused=True)
FAILED = Feedback(failed=True)
GOOD = Feedback(latency=0.1)
START, MOST = 1.0, 300.0  # seconds: what `Backoff` says by default


async def report(caller: Caller, outcome: Feedback, age: float = 0.0) -> Reply:
    """Give a permit back, with how the site answered a request of that age."""
    return await caller.give_back("s", 1, LIMIT, feedback=FeedbackSummary.of([(outcome, age)]))


async def one_more(caller: Caller, outcome: Feedback) -> Reply:
    """A request that gets its permit now, and its answer at once."""
    held = caller.held("s")
    await caller.take("s", limit=LIMIT)
    assert caller.held("s") == held + 1
    return await report(caller, outcome)


async def wait_of_next(caller: Caller) -> float:
    """For how long one more request has to wait."""
    reply = await caller.take("s", limit=LIMIT)
    assert reply.retry_in is not None
    return reply.retry_in


@in_asyncio
async def test_after_a_refusal_nobody_starts_for_as_long_as_the_site_said(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s", limit=LIMIT)
    await b.take("s", limit=LIMIT)
    assert (await report(a, Feedback(refused=True, retry_after=30))).backoff == 30
    reply = await b.take("s", limit=LIMIT)
    assert reply.granted == 1, "the one that it had"
    assert reply.retry_in is not None
    assert 29 < reply.retry_in <= 30
    outside.end_backoff()
    assert (await b.renew("s", limit=LIMIT)).granted == 2


@in_asyncio
async def test_a_refusal_does_not_hand_the_permit_to_the_next_in_the_queue(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s", 4, limit=LIMIT)
    await b.take("s", limit=LIMIT)
    await report(a, REFUSED)
    assert outside.queue() == ["b"]
    told = dict(outside.told())
    assert told["b"].split()[0] == "retry"
    assert told["a"] == "backoff s", "a request that has not started yet should not"


@in_asyncio
async def test_each_start_counts_as_long_as_a_site_is_left_alone(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    assert not (await b.take("s", limit=LIMIT)).is_counted
    await a.take("s", limit=LIMIT)
    assert (await report(a, Feedback(refused=True, retry_after=30))).is_counted
    assert (await b.renew("s", limit=LIMIT)).is_counted
    outside.end_backoff()
    assert not (await b.renew("s", limit=LIMIT)).is_counted


@in_asyncio
async def test_each_incident_without_a_word_of_the_site_doubles_the_pause(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    pauses = []
    for _ in range(11):
        pauses.append((await one_more(a, REFUSED)).backoff)
        outside.end_backoff()
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


@in_asyncio
async def test_many_refusals_of_one_incident_are_one_step(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s", 2, limit=LIMIT)
    await b.take("s", 2, limit=LIMIT)
    assert (await report(a, REFUSED, age=0.5)).backoff == START
    assert (await report(a, REFUSED, age=0.5)).backoff is None
    assert (await report(b, REFUSED, age=0.1)).backoff is None
    outside.end_backoff()
    assert (await report(b, REFUSED, age=10**10)).backoff is None, "it began long before"
    assert (await one_more(a, REFUSED)).backoff == 2 * START


@in_asyncio
async def test_of_one_incident_the_longest_wait_that_the_site_asks_for_counts(
    server: RedisServer,
) -> None:
    a = await Caller.join(server, "a")
    await a.take("s", 3, limit=LIMIT)
    await report(a, Feedback(refused=True, retry_after=5))
    await report(a, Feedback(refused=True, retry_after=60))
    assert 59 < await wait_of_next(a) <= 60
    await report(a, Feedback(refused=True, retry_after=5))
    assert 59 < await wait_of_next(a) <= 60


@in_asyncio
async def test_no_site_is_left_alone_for_longer_than_the_cap(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    assert (await one_more(a, Feedback(refused=True, retry_after=1e12))).backoff == MOST


@in_asyncio
async def test_a_quarter_of_a_limit_s_worth_of_answers_halves_the_pause(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    for _ in range(3):
        await one_more(a, REFUSED)
        outside.end_backoff()
    assert (await one_more(a, GOOD)).wants_feedback
    assert (await one_more(a, REFUSED)).backoff == 4, "half of 4, doubled"


@in_asyncio
async def test_resuming_ends_a_pause_at_once(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    await a.take("s", 2, limit=LIMIT)
    await report(a, Feedback(refused=True, retry_after=100))
    assert (await a.inspect("s")).backoff_left == pytest.approx(100, abs=10)
    await a.admin.resume("s")
    assert not (await a.inspect("s")).backoff_left
    assert (await a.take("s", limit=LIMIT)).granted == 3


@in_asyncio
async def test_what_a_site_has_taught_keeps_no_limit(server: RedisServer, outside: Outside) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await one_more(a, REFUSED)
    outside.end_backoff()
    assert (await b.take("s", 9, limit=9)).granted == 9


@in_asyncio
async def test_enough_answers_forgive_all(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    await one_more(a, REFUSED)
    outside.end_backoff()
    assert (await one_more(a, GOOD)).wants_feedback
    assert not (await one_more(a, GOOD)).wants_feedback
    assert (await one_more(a, REFUSED)).backoff == START


@in_asyncio
async def test_a_site_that_refuses_only_what_is_too_much_is_not_left_alone_for_longer_each_time(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    for _ in range(3):
        await a.take("s", 4, limit=LIMIT)
        assert (await report(a, REFUSED)).backoff == START
        for _ in range(3):
            await report(a, GOOD)
        outside.end_backoff()


@pytest.mark.parametrize("limit", [1000, None])
@in_asyncio
async def test_a_limit_that_nobody_comes_near_does_not_keep_a_site_from_being_forgiven(
    server: RedisServer, outside: Outside, limit: int | None
) -> None:
    a = await Caller.join(server, "a")
    await a.admin.configure("s", limit)
    for _ in range(5):
        assert (await one_more(a, REFUSED)).backoff == START
        outside.end_backoff()
        for _ in range(3):
            await one_more(a, GOOD)


@in_asyncio
async def test_failures_in_a_row_count_as_a_refusal(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    assert (await one_more(a, FAILED)).backoff is None
    assert (await one_more(a, FAILED)).backoff is None
    assert (await one_more(a, FAILED)).backoff == START
    outside.end_backoff()
    assert (await one_more(a, FAILED)).backoff == 2 * START, "still the same row"


@in_asyncio
async def test_an_answer_ends_a_row_of_failures(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    for outcome in (FAILED, FAILED, GOOD, FAILED, FAILED):
        assert (await one_more(a, outcome)).backoff is None


@in_asyncio
async def test_failures_of_many_nodes_are_one_row(server: RedisServer) -> None:
    callers = [await Caller.join(server, name) for name in "abc"]
    assert [(await one_more(c, FAILED)).backoff for c in callers] == [None, None, START]


@in_asyncio
async def test_feedback_that_is_heard_twice_counts_once(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await a.take("s", 2, limit=LIMIT)
    failed = a.statement("s", LIMIT, returned=1, feedback=FeedbackSummary.of([(FAILED, 0.0)]))
    for _ in range(4):
        replies = await a.send(failed)
        assert replies is not None
        assert replies[0].backoff is None
    assert outside.held() == {"a": 1}
    assert outside.look("s")[0].learned["failures"] == "1"


@in_asyncio
async def test_feedback_that_comes_after_a_later_statement_changes_nothing(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await a.take("s", 2, limit=LIMIT)
    failed = a.statement("s", LIMIT, returned=1, feedback=FeedbackSummary.of([(FAILED, 0.0)]))
    await a.renew("s", limit=LIMIT)
    await a.send(failed)
    assert outside.held() == {"a": 2}
    assert outside.look("s")[0].learned == {}


@in_asyncio
async def test_feedback_counts_only_with_the_permits_that_it_is_about(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await b.take("s", limit=LIMIT)
    for _ in range(4):
        await a.say("s", LIMIT, feedback=FeedbackSummary.of([(REFUSED, 0.0)]))
    assert (await b.inspect("s")).backoff_left == 0
    assert outside.told() == []


@in_asyncio
async def test_feedback_on_a_node_s_last_permit_counts(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await a.take("s", limit=LIMIT)
    assert (await report(a, REFUSED)).backoff == START
    assert outside.held() == {}


@in_asyncio
async def test_a_pause_outlives_the_idle_scope(server: RedisServer, outside: Outside) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await one_more(a, Feedback(refused=True, retry_after=30))
    assert (outside.held(), outside.queue()) == ({}, [])
    again = await wait_of_next(b)
    assert 29 < again <= 30
    assert (await b.inspect("s")).backoff_left == pytest.approx(again, abs=1)


@in_asyncio
async def test_a_pause_at_an_idle_site_goes_by_real_time_though_nobody_called(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await one_more(a, Feedback(refused=True, retry_after=60))
    outside.pass_idle(55)
    assert 4 < await wait_of_next(a) <= 5


@in_asyncio
async def test_an_idle_site_is_remembered_for_a_while_and_then_costs_nothing(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await one_more(a, REFUSED)
    assert outside.in_use() == {key("s")}
    assert 0 < outside.ttl(key("s")) <= 86_402_000


@pytest.mark.parametrize(("minutes", "backoff"), [(5, 2 * START), (11, START)])
@in_asyncio
async def test_after_ten_idle_minutes_the_next_pause_is_the_first_again(
    server: RedisServer, outside: Outside, minutes: float, backoff: float
) -> None:
    a = await Caller.join(server, "a")
    await one_more(a, REFUSED)
    outside.pass_idle(60 * minutes)
    assert (await one_more(a, REFUSED)).backoff == backoff
