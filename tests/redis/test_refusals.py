"""A site that says "not now" is left alone by all nodes: how long, and what counts as once."""

from __future__ import annotations

import pytest

from semaphore_middleware.model.feedback import Feedback, FeedbackSummary
from semaphore_middleware.model.limits import Limit
from semaphore_middleware.redis.protocol import Ask, Reply
from tests.support.nodes import Caller, Outside, in_asyncio, key
from tests.support.servers import RedisServer

LIMIT = Limit(4)
REFUSED = Feedback(refused=True)
FAILED = Feedback()
GOOD = Feedback(latency=0.1)
START, MOST = 1.0, 300.0  # seconds: what `Backoff` says by default


async def report(caller: Caller, number: int, outcome: Feedback, age: float = 0.0) -> Reply:
    """Give a permit back, with what the site answered to a request of that age."""
    ask = Ask("report", "s", LIMIT, (number,), FeedbackSummary.of([(outcome, age)]))
    (answer,) = await caller.store.run(caller.connection, [ask])
    return answer


async def one_more(caller: Caller, number: int, outcome: Feedback) -> Reply:
    """A request that gets its permit now, and its answer at once."""
    assert (await caller.acquire("s", number, limit=LIMIT)).granted == (number,)
    return await report(caller, number, outcome)


@in_asyncio
async def test_after_a_refusal_nobody_starts_for_as_long_as_the_site_said(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.acquire("s", 1, limit=LIMIT)
    await b.acquire("s", 1, limit=LIMIT)
    assert (await report(a, 1, Feedback(refused=True, retry_after=30))).backoff == 30
    answer = await b.acquire("s", 2, limit=LIMIT)
    assert answer.granted == ()
    assert answer.retry_in is not None
    assert 29 < answer.retry_in <= 30
    outside.end_quiet()
    assert (await b.acquire("s", 2, limit=LIMIT)).granted == (2,)


@in_asyncio
async def test_a_refusal_does_not_hand_the_permit_to_the_next_in_line(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.acquire("s", 1, 2, 3, 4, limit=LIMIT)
    await b.acquire("s", 1, limit=LIMIT)
    await report(a, 1, REFUSED)
    assert outside.line() == ["b:1"]
    told = dict(outside.told())
    assert told["b"].split()[:2] == ["again", "1"]
    assert told["a"] == "quiet 2 quiet 3 quiet 4", "what has not begun should not"


@in_asyncio
async def test_each_incident_without_a_word_of_the_site_doubles_the_pause(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    pauses = []
    for number in range(1, 12):
        pauses.append((await one_more(a, number, REFUSED)).backoff)
        outside.end_quiet()
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


@in_asyncio
async def test_many_refusals_of_one_incident_are_one_step(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.acquire("s", 1, 2, limit=LIMIT)
    await b.acquire("s", 1, 2, limit=LIMIT)
    assert (await report(a, 1, REFUSED, age=0.5)).backoff == START
    assert (await report(a, 2, REFUSED, age=0.5)).backoff is None
    assert (await report(b, 1, REFUSED, age=0.1)).backoff is None
    outside.end_quiet()
    assert (await report(b, 2, REFUSED, age=10**10)).backoff is None, "it began long before"
    assert (await one_more(a, 3, REFUSED)).backoff == 2 * START


@in_asyncio
async def test_of_one_incident_the_longest_wait_that_the_site_asks_for_counts(
    server: RedisServer,
) -> None:
    a = await Caller.join(server, "a")
    await a.acquire("s", 1, 2, 3, limit=LIMIT)
    await report(a, 1, Feedback(refused=True, retry_after=5))
    await report(a, 2, Feedback(refused=True, retry_after=60))
    again = (await a.acquire("s", 4, limit=LIMIT)).retry_in
    assert again is not None
    assert 59 < again <= 60
    await report(a, 3, Feedback(refused=True, retry_after=5))
    again = (await a.acquire("s", 4, limit=LIMIT)).retry_in
    assert again is not None
    assert 59 < again <= 60


@in_asyncio
async def test_no_site_is_left_alone_for_longer_than_the_cap(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    assert (await one_more(a, 1, Feedback(refused=True, retry_after=1e12))).backoff == MOST


@in_asyncio
async def test_a_quarter_of_a_limit_s_worth_of_answers_halves_the_pause(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    for number in (1, 2, 3):
        await one_more(a, number, REFUSED)
        outside.end_quiet()
    assert (await one_more(a, 4, GOOD)).wants_feedback
    assert (await one_more(a, 20, REFUSED)).backoff == 4, "half of 4, doubled"


@in_asyncio
async def test_enough_answers_forgive_all(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    await one_more(a, 1, REFUSED)
    outside.end_quiet()
    assert (await one_more(a, 2, GOOD)).wants_feedback
    assert not (await one_more(a, 3, GOOD)).wants_feedback
    assert (await one_more(a, 20, REFUSED)).backoff == START


@in_asyncio
async def test_a_site_that_refuses_only_what_is_too_much_is_not_left_alone_for_longer_each_time(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    for start in (0, 10, 20):
        await a.acquire("s", *range(start, start + 4), limit=LIMIT)
        assert (await report(a, start, REFUSED)).backoff == START
        for number in range(start + 1, start + 4):
            await report(a, number, GOOD)
        outside.end_quiet()


@pytest.mark.parametrize("limit", [1000, None])
@in_asyncio
async def test_a_limit_that_nobody_comes_near_does_not_keep_a_site_from_being_forgiven(
    server: RedisServer, outside: Outside, limit: int | None
) -> None:
    a = await Caller.join(server, "a")
    await a.admin.configure("s", limit)
    for number in range(0, 20, 4):
        assert (await one_more(a, number, REFUSED)).backoff == START
        outside.end_quiet()
        for good in (1, 2, 3):
            await one_more(a, number + good, GOOD)


@in_asyncio
async def test_failures_in_a_row_count_as_a_refusal(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    assert (await one_more(a, 1, FAILED)).backoff is None
    assert (await one_more(a, 2, FAILED)).backoff is None
    assert (await one_more(a, 3, FAILED)).backoff == START
    outside.end_quiet()
    assert (await one_more(a, 4, FAILED)).backoff == 2 * START, "still the same row"


@in_asyncio
async def test_an_answer_ends_a_row_of_failures(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    for number, outcome in enumerate([FAILED, FAILED, GOOD, FAILED, FAILED], 1):
        assert (await one_more(a, number, outcome)).backoff is None


@in_asyncio
async def test_failures_of_many_nodes_are_one_row(server: RedisServer) -> None:
    callers = [await Caller.join(server, name) for name in "abc"]
    assert [(await one_more(c, 1, FAILED)).backoff for c in callers] == [None, None, START]


@in_asyncio
async def test_a_report_that_is_sent_twice_counts_once(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await a.acquire("s", 1, 2, limit=LIMIT)
    await report(a, 1, FAILED)
    await report(a, 1, FAILED)
    assert (await report(a, 1, FAILED)).backoff is None
    assert outside.held() == ["a:2"]


@in_asyncio
async def test_a_pause_outlives_the_idle_scope(server: RedisServer, outside: Outside) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await one_more(a, 1, Feedback(refused=True, retry_after=30))
    assert outside.held() == outside.line() == []
    again = (await b.acquire("s", 1, limit=LIMIT)).retry_in
    assert again is not None
    assert 29 < again <= 30
    assert (await b.inspect("s")).backoff_left == pytest.approx(again, abs=1)


@in_asyncio
async def test_a_pause_at_an_idle_site_goes_by_real_time_though_nobody_called(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await one_more(a, 1, Feedback(refused=True, retry_after=60))
    outside.client.hincrbyfloat(key("s", "state"), "idle", -55_000)
    again = (await a.acquire("s", 2, limit=LIMIT)).retry_in
    assert again is not None
    assert 4 < again <= 5


@in_asyncio
async def test_an_idle_site_is_remembered_for_a_while_and_then_costs_nothing(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await one_more(a, 1, REFUSED)
    (state,) = outside.in_use()
    assert state == key("s", "state")
    assert 0 < outside.ttl(state) <= 602_000
