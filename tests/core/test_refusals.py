"""A site that refuses requests gets none for a while."""

import pytest

from semaphore_middleware.core.protocol import Reply
from semaphore_middleware.model.feedback import Feedback, FeedbackSummary
from semaphore_middleware.model.limits import Limit
from tests.support.nodes import Caller, Outside, key
from tests.support.servers import RedisServer

LIMIT = Limit(4)
REFUSED = Feedback(refused=True)
BUSY = Feedback(refused=True, is_metered=False)
FAILED = Feedback(failed=True)
GOOD = Feedback(latency=0.1)
START, MOST = 1.0, 300.0  # seconds: the default of `Backoff`


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
        ([asked_for(1e9)], [MOST]),
        # A quarter of a limit's worth of answers halves the pause; enough of them forgive all.
        ([*[REFUSED] * 3, GOOD, REFUSED], [1, 2, 4, None, 4]),
        ([REFUSED, GOOD, GOOD, REFUSED], [1, None, None, 1]),
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


async def test_a_late_refusal_of_an_incident_begins_another_pause(
    server: RedisServer, outside: Outside
) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    await a.take("s", 3, limit=LIMIT)
    await b.take("s", limit=LIMIT)
    first = await report(a, asked_for(200), age=0.5)
    outside.end_backoff()
    began = first.paused_at - 1000
    outside.edit("s", "learned", paused_at=began)
    late = await report(a, REFUSED, age=10**10)
    assert (late.backoff, late.paused_at, late.pause_length) == (None, began, 200_000)
    outside.notified()
    second = await report(a, asked_for(100), age=10**10)
    assert (second.backoff, second.pause_length) == (100, 100_000)
    assert second.paused_at > began
    assert ("b", f"backoff {second.paused_at} 100000 s") in outside.notified()
    assert (await one_more(b, outside, REFUSED)).backoff == START, "it was one incident"


async def test_nobody_starts_before_the_time_that_the_site_named(
    server: RedisServer, outside: Outside
) -> None:
    a, b, c = [await Caller.join(server, name) for name in "abc"]
    assert not (await b.take("s", limit=LIMIT)).starts_count
    await a.take("s", 3, limit=LIMIT)
    await b.take("s", limit=LIMIT)
    await c.take("s", limit=LIMIT)  # it holds no permit
    reply = await report(a, asked_for(200))
    assert (reply.backoff, reply.starts_count, outside.held()) == (200, True, {"a": 2, "b": 1})
    told = outside.notified()  # a request that has not begun yet should not
    backoff = f"backoff {reply.paused_at} 200000 s"
    assert sorted(told) == [("a", backoff), ("b", backoff), ("c", "retry 200000 s")]
    await assert_pause(c, 200)
    assert (await b.inspect("s")).backoff_left == pytest.approx(200, abs=60)
    outside.end_backoff()
    reply = await c.renew("s", limit=LIMIT)
    assert (reply.granted, reply.starts_count) == (1, False)


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


async def test_all_nodes_learn_when_it_last_answered_well(
    server: RedisServer, outside: Outside
) -> None:
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
