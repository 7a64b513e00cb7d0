"""A site that refuses is left alone; one that does not respond is tried one request at a time."""

import pytest

from semaphore_middleware.core.protocol import Reply
from semaphore_middleware.model.feedback import Feedback, FeedbackSummary
from semaphore_middleware.model.limits import Limit
from tests.support.nodes import MACHINE, Caller, Outside, key
from tests.support.servers import RedisServer

LIMIT = Limit(4)
REFUSED = Feedback(refused=True)
BUSY = Feedback(refused=True, is_metered=False)
FAILED = Feedback(failed=True)
GOOD = Feedback(latency=0.1)
START, MOST = 1.0, 300.0  # seconds: what `Backoff` says by default


def asked_for(seconds: float) -> Feedback:
    return Feedback(refused=True, retry_after=seconds)


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


async def assert_pause(caller: Caller, seconds: float) -> None:
    """For how long one more request has to wait, as of now."""
    reply = await caller.take("s", limit=LIMIT)
    assert reply.retry_in is not None
    assert seconds - 60 < reply.retry_in <= seconds


@pytest.mark.parametrize(
    ("outcomes", "pauses"),
    [
        ([REFUSED] * 11, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]),
        ([asked_for(1e12)], [MOST]),
        # A quarter of a limit's worth of answers halves the pause; enough of them forgive all.
        ([*[REFUSED] * 3, GOOD, REFUSED], [1, 2, 4, None, 4]),
        ([REFUSED, GOOD, GOOD, REFUSED], [1, None, None, 1]),
        # Failures in a row count as a refusal, and an answer ends the row.
        ([FAILED] * 4, [None, None, 1, 2]),
        ([FAILED, FAILED, GOOD, FAILED, FAILED], [None] * 5),
        # A site that allows no further request for a while has refused none.
        ([*[Feedback(latency=0.1, retry_after=30)] * 3, REFUSED], [30, 30, 30, 1]),
    ],
)
async def test_each_incident_lengthens_the_pause_and_answers_shorten_it(
    server: RedisServer, outside: Outside, outcomes: list[Feedback], pauses: list[float | None]
) -> None:
    nodes = [await Caller.join(server, name) for name in "ab"]  # what they report is one row
    seen = [(await one_more(nodes[n % 2], outside, each)) for n, each in enumerate(outcomes)]
    assert [reply.backoff for reply in seen] == pauses


@pytest.mark.parametrize("limit", [4, None])
async def test_a_site_that_refuses_only_what_is_too_much_is_forgiven_each_time(
    server: RedisServer, outside: Outside, limit: int | None
) -> None:
    a = await Caller.join(server, "a")
    await a.admin.configure("s", limit)
    for _ in range(4):
        outcomes = (BUSY, GOOD, GOOD, GOOD)
        replies = [await one_more(a, outside, each) for each in outcomes]
        assert replies[0].backoff == START
        assert [reply.wants_feedback for reply in replies[1:]] == [True, False, False]


async def test_refusals_of_one_incident_are_one_step(server: RedisServer, outside: Outside) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    await a.take("s", 2, limit=LIMIT)
    await b.take("s", 2, limit=LIMIT)
    assert (await report(a, REFUSED, age=0.5)).backoff == START
    assert (await report(b, REFUSED, age=0.5)).backoff is None
    outside.end_backoff()
    assert (await report(b, REFUSED, age=10**10)).backoff is None, "it began long before"
    assert (await one_more(a, outside, REFUSED)).backoff == 2 * START
    await report(a, asked_for(250))
    await assert_pause(a, 250)
    outside.end_backoff()
    await a.take("s", 2, limit=LIMIT)
    for seconds, longest in ((100, 100), (250, 250), (5, 250)):
        await report(a, asked_for(seconds))
        await assert_pause(b, longest)


async def test_nobody_starts_before_the_site_said(server: RedisServer, outside: Outside) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    assert not (await b.take("s", limit=LIMIT)).is_counted
    await a.take("s", 3, limit=LIMIT)
    await b.take("s", limit=LIMIT)
    reply = await report(a, asked_for(200))
    assert (reply.backoff, reply.is_counted, outside.held()) == (200, True, {"a": 2, "b": 1})
    told = outside.told()  # a request that has not begun yet should not
    backoff = f"backoff {reply.paused_at} 200000 s"
    assert sorted(told) == [("a", backoff), ("b", backoff), ("b", "retry 200000 s")]
    await assert_pause(b, 200)
    assert (await b.inspect("s")).backoff_left == pytest.approx(200, abs=60)
    outside.end_backoff()
    reply = await b.renew("s", limit=LIMIT)
    assert (reply.granted, reply.is_counted) == (2, False)


async def test_resuming_ends_a_pause_at_once(server: RedisServer) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    await a.take("s", 2, limit=LIMIT)
    await report(a, asked_for(200))
    await a.admin.resume("s")
    assert not (await a.inspect("s")).backoff_left
    assert (await a.take("s", limit=LIMIT)).granted == 3
    assert (await b.take("s", 9, limit=9)).granted == 2, "the limit that is in use"


async def test_a_pause_outlives_the_idle_scope(server: RedisServer, outside: Outside) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    await one_more(a, outside, asked_for(300))
    assert outside.in_use() == {key("s")}
    assert 0 < outside.ttl(key("s")) <= 87_300_000
    await assert_pause(b, 300)
    await b.give_up("s", limit=LIMIT)
    outside.pass_idle(200)
    await assert_pause(b, 100)


@pytest.mark.parametrize(("minutes", "backoff"), [(5, 2 * START), (11, START)])
async def test_after_ten_idle_minutes_the_next_pause_is_the_first_again(
    server: RedisServer, outside: Outside, minutes: float, backoff: float
) -> None:
    a = await Caller.join(server, "a")
    await one_more(a, outside, REFUSED)
    outside.pass_idle(60 * minutes)
    assert (await one_more(a, outside, REFUSED)).backoff == backoff


# A site that does not respond ---------------------------------------------------------------------

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
    await one_more(b, outside, FAILED)
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
    await one_more(a, outside, *[FAILED] * (failures - 1))
    await one_more(b, outside, FAILED)
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


# Whose fault it is -------------------------------------------------------------------------------


async def test_failures_are_a_nodes_own_while_others_get_on(
    server: RedisServer, outside: Outside
) -> None:
    sick, healthy = [await Caller.join(server, name) for name in ("sick", "healthy")]
    await healthy.take("s", 2, limit=LIMIT)
    await one_more(sick, outside, FAILED, FAILED)
    assert not (await one_more(sick, outside, FAILED, FAILED)).is_failing, "another one may get on"
    await report(healthy, GOOD)
    await one_more(sick, outside, FAILED, FAILED)
    reply = await one_more(sick, outside, FAILED)
    assert (reply.is_failing, reply.backoff, reply.down_for) == (False, None, None)
    assert (await healthy.take("s", limit=LIMIT)).granted == 3, "it does not suffer"
    assert (await report(healthy, FAILED, FAILED)).backoff == START, "all that have tried failed"


async def test_an_older_request_does_not_show_that_a_site_is_back(
    server: RedisServer, outside: Outside
) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    await a.take("s", 2, limit=LIMIT)
    await one_more(b, outside, FAILED, FAILED)
    assert not (await one_more(b, outside, FAILED)).is_failing
    await report(a, GOOD, age=600.0)
    assert not (await one_more(b, outside, FAILED)).is_failing, "it has answered another node"
    await report(a, FAILED)
    assert (await one_more(b, outside, FAILED)).is_failing


async def test_who_comes_to_a_failing_site_tries_it_once(
    server: RedisServer, outside: Outside
) -> None:
    a, b, c, d = [await Caller.join(server, name) for name in "abcd"]
    await go_down(a, outside)
    for node in (b, c):
        reply = await node.take("s", 3, limit=LIMIT)
        assert (reply.granted, reply.down_for) == (int(node is b), None), "one such try at a time"
    reply = await report(b, FAILED)
    assert (reply.is_failing, b.held("s"), reply.down_for is None) == (True, 0, False)
    assert (await c.renew("s", limit=LIMIT)).granted == 1
    reply = await report(c, GOOD)
    assert (reply.down_for, reply.is_failing) == (None, False)
    assert (await d.inspect("s")).backoff_left == 0, "an answer ends all of it"
    assert sum(outside.held().values()) == LIMIT.concurrency


@pytest.mark.parametrize("gate", ["paused", "refused", "full"])
async def test_a_first_try_is_made_as_any_request_but_for_failures(
    server: RedisServer, outside: Outside, gate: str
) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    await go_down(a, outside)
    if gate == "paused":
        await a.admin.pause("s")
    elif gate == "refused":
        outside.edit("s", "learned", backoff_end=2**52)
    else:
        await a.admin.configure("s", 1)
        outside.end_backoff()
        await a.take("s", limit=LIMIT)
    assert (await b.take("s", limit=LIMIT)).granted == 0


async def test_nodes_on_two_machines_are_believed(server: RedisServer, outside: Outside) -> None:
    a, c = [await Caller.join(server, name) for name in "ac"]
    b = await Caller.join(server, "b", machine=MACHINE + 1)
    await go_down(a, outside)
    await b.take("s", limit=LIMIT)
    await report(b, FAILED)
    reply = await c.take("s", limit=LIMIT)
    assert (reply.granted, reply.down_for is None) == (0, False)
