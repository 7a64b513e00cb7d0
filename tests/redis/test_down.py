"""A site that does not respond: one request at a time tries it, and when it is down others fail."""

from __future__ import annotations

import pytest

from semaphore_middleware.model.feedback import Feedback, FeedbackSummary
from semaphore_middleware.model.limits import Limit
from semaphore_middleware.redis.protocol import Reply
from tests.support.nodes import Caller, Outside, in_asyncio
from tests.support.servers import RedisServer

LIMIT = Limit(4)
FAILED = Feedback(failed=True)
GOOD = Feedback(latency=0.1)
ERROR = Feedback()
REFUSED = Feedback(refused=True)
QUOTA_IS_OUT = Feedback(latency=0.1, retry_after=30)
A_WHILE_S = 90.0  # longer than `Backoff.down_after`


async def report(caller: Caller, *outcomes: Feedback, age: float = 0.0) -> Reply:
    """Give permits back, with how the site answered requests of that age."""
    feedback = FeedbackSummary.of((outcome, age) for outcome in outcomes)
    return await caller.give_back("s", len(outcomes), LIMIT, feedback=feedback)


async def one_more(caller: Caller, outside: Outside, *outcomes: Feedback) -> Reply:
    """Requests after the pause, which get their permits now, and their answers at once."""
    outside.end_backoff()
    held = caller.held("s")
    await caller.take("s", len(outcomes), limit=LIMIT)
    assert caller.held("s") == held + len(outcomes)
    return await report(caller, *outcomes)


async def go_down(caller: Caller, outside: Outside) -> Reply:
    """Five failures in a row, which took long."""
    await one_more(caller, outside, FAILED, FAILED, FAILED, FAILED)
    outside.edit("s", "learned", failing_since=float(since(outside)) - 1000 * A_WHILE_S)
    return await one_more(caller, outside, FAILED)


def since(outside: Outside) -> str:
    return outside.look("s")[0].learned["failing_since"]


@in_asyncio
async def test_a_site_that_does_not_respond_is_tried_by_one_request_at_a_time(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await one_more(a, outside, FAILED, FAILED, FAILED)
    outside.end_backoff()
    await a.take("s", 3, limit=LIMIT)
    await b.take("s", 3, limit=LIMIT)
    assert outside.held() == {"a": 1}
    await report(a, GOOD)
    assert sum(outside.held().values()) == LIMIT.concurrency


@in_asyncio
async def test_five_failures_in_a_row_that_took_long_mean_that_it_is_down(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    down = await go_down(a, outside)
    assert down.down_for is not None
    assert A_WHILE_S <= down.down_for < A_WHILE_S + 60
    assert (await (await Caller.join(server, "b")).take("s", limit=LIMIT)).down_for is not None


@pytest.mark.parametrize(("failures", "seconds"), [(3, A_WHILE_S), (4, 30.0)])
@in_asyncio
async def test_few_failures_or_a_short_time_do_not(
    server: RedisServer, outside: Outside, failures: int, seconds: float
) -> None:
    a = await Caller.join(server, "a")
    await one_more(a, outside, *[FAILED] * failures)
    outside.edit("s", "learned", failing_since=float(since(outside)) - 1000 * seconds)
    assert (await one_more(a, outside, FAILED)).down_for is None


@in_asyncio
async def test_failures_of_one_burst_do_not_however_many(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    many = Limit(50)
    await a.take("s", 50, limit=many)
    for _ in range(50):
        feedback = FeedbackSummary.of([(FAILED, 600.0)])
        reply = await a.give_back("s", 1, many, feedback=feedback)
        assert reply.down_for is None
        if reply.backoff:
            outside.edit("s", "learned", failing_since=float(since(outside)) - 1000 * A_WHILE_S)


@in_asyncio
async def test_nodes_that_wait_hear_that_a_site_is_down(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await one_more(a, outside, FAILED, FAILED, FAILED, FAILED)
    outside.edit("s", "learned", failing_since=float(since(outside)) - 1000 * A_WHILE_S)
    outside.end_backoff()
    await a.take("s", limit=LIMIT)
    await b.take("s", 2, limit=LIMIT)
    outside.told()
    await report(a, FAILED)
    told = [(node, text) for node, text in outside.told() if text.startswith("down")]
    assert [node for node, _ in told] == ["b"]
    kind, milliseconds, scope = told[0][1].split()
    assert (kind, scope) == ("down", "s")
    assert 1000 * A_WHILE_S <= int(milliseconds) < 1000 * (A_WHILE_S + 60)


@in_asyncio
async def test_a_site_that_is_down_is_tried_again_in_growing_pauses_that_vary(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await go_down(a, outside)
    pauses = []
    for _ in range(6):
        seen = await one_more(a, outside, FAILED)
        assert seen.down_for is not None
        assert seen.backoff is not None
        pauses.append(seen.backoff)
        waits = await b.take("s", limit=LIMIT)
        assert waits.retry_in == pytest.approx(seen.backoff, abs=0.5)
        await b.give_up("s", limit=LIMIT)
    for pause, nominal in zip(pauses, (4, 8, 16, 32, 64, 128), strict=True):
        assert nominal / 2 <= pause <= nominal
    assert pauses != [4, 8, 16, 32, 64, 128]


@pytest.mark.parametrize("outcome", [GOOD, ERROR, REFUSED])
@in_asyncio
async def test_any_response_shows_that_it_is_up_again(
    server: RedisServer, outside: Outside, outcome: Feedback
) -> None:
    a = await Caller.join(server, "a")
    await go_down(a, outside)
    assert (await one_more(a, outside, outcome)).down_for is None
    outside.end_backoff()
    assert (await a.take("s", 9, limit=LIMIT)).granted - a.book("s").returned == LIMIT.concurrency


@in_asyncio
async def test_resuming_a_site_that_is_down_lets_its_requests_begin(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await go_down(a, outside)
    seen = await a.inspect("s")
    assert seen.down_for is not None
    assert seen.down_for >= A_WHILE_S
    await a.admin.resume("s")
    assert (await a.inspect("s")).down_for is None
    assert (await a.take("s", 4, limit=LIMIT)).granted - a.book("s").returned == 4


@in_asyncio
async def test_an_idle_site_stays_down_for_ten_minutes_after_the_pause(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await go_down(a, outside)
    assert outside.held() == {}
    outside.pass_idle(60 * 9)
    assert (await a.inspect("s")).down_for is not None
    outside.pass_idle(60 * 11)
    assert (await a.inspect("s")).down_for is None


# What a site says though it answers -------------------------------------------------------------


@in_asyncio
async def test_a_site_that_allows_no_more_requests_gets_none_until_then(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s", 2, limit=LIMIT)
    await b.take("s", limit=LIMIT)
    outside.told()
    reply = await report(a, QUOTA_IS_OUT)
    assert (reply.backoff, reply.is_counted) == (30, True)
    assert ("b", "backoff s") in outside.told(), "a request that has not begun yet should not"
    again = await report(a, Feedback(latency=0.1, retry_after=29))
    assert again.backoff is None, "it is the same pause"
    waits = await b.take("s", limit=LIMIT)
    assert waits.retry_in is not None
    assert 29 < waits.retry_in <= 30


@in_asyncio
async def test_that_is_no_refusal(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    for _ in range(3):
        assert (await one_more(a, outside, QUOTA_IS_OUT)).backoff == 30
    assert (await one_more(a, outside, REFUSED)).backoff == 1, "the first pause"


# When it last answered well ---------------------------------------------------------------------


@in_asyncio
async def test_all_nodes_hear_when_the_youngest_request_began_that_was_answered_well(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await b.take("s", limit=LIMIT)
    await one_more(a, outside, REFUSED)
    assert (await b.renew("s", limit=LIMIT)).answered_ago is None
    outside.end_backoff()
    await a.take("s", 2, limit=LIMIT)
    await report(a, GOOD, age=5)
    ago = (await b.renew("s", limit=LIMIT)).answered_ago
    assert ago is not None
    assert 5 <= ago < 60
    await report(a, GOOD, age=50)
    assert (await b.renew("s", limit=LIMIT)).answered_ago == pytest.approx(ago, abs=1)


@in_asyncio
async def test_after_a_pause_the_first_good_answer_is_wanted(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    asked = Feedback(refused=True, retry_after=0.05)
    await a.take("s", 3, limit=LIMIT)
    assert (await report(a, asked)).wants_feedback
    assert (await report(a, GOOD, age=60)).wants_feedback, "it began before"
    outside.edit(
        "s", "learned", backoff_end=float(outside.look("s")[0].learned["backoff_end"]) - 60
    )
    assert not (await report(a, GOOD)).wants_feedback


@in_asyncio
async def test_when_it_last_answered_is_known_for_ten_minutes_though_it_is_idle(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await one_more(a, outside, REFUSED)
    for _ in range(3):
        await one_more(a, outside, GOOD)
    assert outside.held() == {}
    assert (await a.take("s", limit=LIMIT)).answered_ago is not None
