"""A site that does not respond: one request at a time tries it, and when it is down others fail."""

from __future__ import annotations

import pytest

from semaphore_middleware.model.feedback import Feedback
from semaphore_middleware.redis.protocol import Reply
from tests.redis.test_refusals import FAILED, GOOD, LIMIT, REFUSED, one_more, report
from tests.support.nodes import Caller, Outside
from tests.support.servers import RedisServer

A_WHILE_S = 90.0  # longer than `Backoff.down_after`


def fail_for(outside: Outside, seconds: float) -> None:
    """Let the row of failures have begun so much earlier."""
    since = float(outside.look("s")[0].learned["failing_since"])
    outside.edit("s", "learned", failing_since=since - 1000 * seconds)


async def go_down(caller: Caller, outside: Outside) -> Reply:
    """Five failures in a row, which took long."""
    await one_more(caller, outside, FAILED, FAILED, FAILED, FAILED)
    fail_for(outside, A_WHILE_S)
    return await one_more(caller, outside, FAILED)


async def test_one_at_a_time_tries_a_silent_site(server: RedisServer, outside: Outside) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    await one_more(a, outside, FAILED, FAILED, FAILED)
    outside.end_backoff()
    await a.take("s", 3, limit=LIMIT)
    await b.take("s", 3, limit=LIMIT)
    assert outside.held() == {"a": 1}
    await report(a, GOOD)
    assert sum(outside.held().values()) == LIMIT.concurrency


@pytest.mark.parametrize(
    ("failures", "seconds", "is_down"), [(4, A_WHILE_S, True), (3, A_WHILE_S, False), (4, 0, False)]
)
async def test_five_failures_in_a_row_that_took_long_mean_that_it_is_down(
    server: RedisServer, outside: Outside, failures: int, seconds: float, is_down: bool
) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    await one_more(a, outside, *[FAILED] * failures)
    fail_for(outside, seconds)
    outside.end_backoff()
    await a.take("s", limit=LIMIT)
    await b.take("s", 2, limit=LIMIT)
    outside.told()
    reply = await report(a, FAILED)
    assert (reply.down_for is not None) == is_down
    told = [(node, text.split()) for node, text in outside.told() if text.startswith("down")]
    assert [node for node, _ in told] == ["b"] * is_down, "others hear of it"
    for milliseconds in (float(words[1]) for _, words in told):
        assert 1000 * A_WHILE_S <= milliseconds < 1000 * (A_WHILE_S + 60)
    assert ((await b.renew("s", limit=LIMIT)).down_for is not None) == is_down


async def test_failures_of_one_burst_do_not(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    await a.admin.configure("s", 50)
    await a.take("s", 50, limit=LIMIT)
    for _ in range(50):
        reply = await report(a, FAILED, age=600.0)
        assert reply.down_for is None
        if reply.backoff:
            fail_for(outside, A_WHILE_S)


async def test_it_is_tried_again_in_growing_pauses(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    await go_down(a, outside)
    nominal = [4, 8, 16, 32, 64, 128]
    replies = [await one_more(a, outside, FAILED) for _ in nominal]
    pauses = [reply.backoff or 0 for reply in replies]
    assert all(reply.down_for for reply in replies)
    assert all(n / 2 <= pause <= n for pause, n in zip(pauses, nominal, strict=True))
    assert pauses != nominal


@pytest.mark.parametrize("outcome", [GOOD, Feedback(), REFUSED, None])
async def test_any_response_shows_that_it_is_up_again_and_so_does_an_operator(
    server: RedisServer, outside: Outside, outcome: Feedback | None
) -> None:
    a = await Caller.join(server, "a")
    await go_down(a, outside)
    assert ((await a.inspect("s")).down_for or 0) >= A_WHILE_S
    if outcome:
        assert (await one_more(a, outside, outcome)).down_for is None
        outside.end_backoff()
    else:
        await a.admin.resume("s")
    assert (await a.inspect("s")).down_for is None
    assert (await a.take("s", 9, limit=LIMIT)).granted - a.book("s").returned == LIMIT.concurrency


async def test_an_idle_site_stays_down_ten_minutes(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    await go_down(a, outside)
    assert outside.held() == {}
    for minutes, is_down in ((9, True), (11, False)):
        outside.pass_idle(60 * minutes)
        assert ((await a.inspect("s")).down_for is not None) == is_down


async def test_all_hear_when_it_last_answered_well(server: RedisServer, outside: Outside) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    await b.take("s", limit=LIMIT)
    await one_more(a, outside, REFUSED)
    assert (await b.renew("s", limit=LIMIT)).answered_ago is None
    outside.end_backoff()
    await a.take("s", 2, limit=LIMIT)
    for age in (200, 2000):
        await report(a, GOOD, age=age)
        ago = (await b.renew("s", limit=LIMIT)).answered_ago
        assert ago is not None
        assert 200 <= ago < 300
    await b.give_back("s", limit=LIMIT)
    assert outside.held() == {}
    assert (await a.take("s", limit=LIMIT)).answered_ago is not None, "though it was idle"


async def test_a_good_answer_is_wanted_after_a_pause(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    await a.take("s", 3, limit=LIMIT)
    assert (await report(a, Feedback(refused=True, retry_after=0.05))).wants_feedback
    assert (await report(a, GOOD, age=60)).wants_feedback, "it began before"
    ended = float(outside.look("s")[0].learned["backoff_end"]) - 60
    outside.edit("s", "learned", backoff_end=ended)
    assert not (await report(a, GOOD)).wants_feedback
