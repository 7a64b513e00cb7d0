"""A site that meters starts teaches an interval between them. The simulation judges how well."""

import pytest

from semaphore_middleware.model.feedback import Backoff, Feedback, FeedbackSummary
from semaphore_middleware.model.limits import LimitDict
from semaphore_middleware.model.validation import LONGEST_S
from semaphore_middleware.politeness.learned_interval import IntervalFinding
from tests.core.test_refusals import (
    BUSY,
    GOOD,
    LIMIT,
    REFUSED,
    one_more,
    report,
)
from tests.support.nodes import Caller, Outside
from tests.support.servers import RedisServer

ANSWERED = 12
MEASURED_S = 60.0
INTERVAL_S = 1.02 * MEASURED_S / ANSWERED
DAY_S = 86400.0


async def meter(caller: Caller, outside: Outside, refused: Feedback = REFUSED) -> None:
    """Two incidents, some time apart, with answers between them."""
    await one_more(caller, outside, refused)
    for _ in range(ANSWERED // 3):
        await one_more(caller, outside, GOOD, GOOD, GOOD)
    await one_more(caller, outside, refused, refused)
    since = float(outside.look("s")[0].learned["incident_at"]) - 1000 * MEASURED_S
    outside.edit("s", "learned", window_since=since, window_rest=0)
    outside.end_backoff()


async def learned_interval(caller: Caller, scope: str = "s") -> float:
    """As an operator sees it; 0: none."""
    return (await caller.inspect(scope)).learned_interval or 0.0


async def taught(caller: Caller) -> float:
    """The interval, after one more start."""
    await caller.take("s", limit=LIMIT)
    await caller.update("s", LIMIT, started=caller.book("s").requested)
    return await learned_interval(caller)


async def test_it_is_the_mean_interval_of_the_answered_starts(
    server: RedisServer, outside: Outside
) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    await meter(a, outside)
    assert await taught(a) == pytest.approx(INTERVAL_S, rel=0.01)
    reply = await b.take("s", limit=LIMIT)
    assert (reply.granted, (reply.interval or 0) > 0) == (0, True)
    assert reply.reason is not None
    assert reply.reason.name == "paced"
    assert reply.retry_in == pytest.approx(INTERVAL_S, abs=1.0)
    seen = await b.inspect("s")
    assert (seen.state, seen.reason) == ("paced", reply.reason)
    assert seen.wait == pytest.approx(INTERVAL_S, abs=1.0)
    assert seen.next_start == pytest.approx(INTERVAL_S, abs=1.0)
    assert seen.why.startswith(reply.reason.sentence)
    assert (await b.take("other", limit=LIMIT)).granted == 1


async def test_it_is_never_longer_than_the_longest_pause(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a", backoff=Backoff(most=2.0))
    await meter(a, outside)
    assert await taught(a) == 2.0


@pytest.mark.parametrize(
    ("refused", "rule"),
    [(BUSY, None), (REFUSED, {"delay": 0}), (REFUSED, {"rate": "100/s"})],
    ids=["an error", "a delay that is set", "a rate that is set"],
)
async def test_an_error_teaches_none_and_an_operator_s_interval_is_kept(
    server: RedisServer, outside: Outside, refused: Feedback, rule: LimitDict | None
) -> None:
    a = await Caller.join(server, "a")
    await meter(a, outside, refused)
    if rule is not None:
        await a.admin.configure("s", rule)
    assert await taught(a) == 0


async def test_one_incident_teaches_none(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    for _ in range(9):
        await one_more(a, outside, GOOD)
    await a.take("s", 3, limit=LIMIT)
    await one_more(a, outside, REFUSED)
    outside.end_backoff()
    assert await taught(a) == 0


async def test_a_quota_that_the_site_names_is_where_it_begins_and_its_most(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await one_more(a, outside, Feedback(latency=0.1, quota_interval=0.5))
    assert await learned_interval(a) == 0, "it has refused nothing"
    await one_more(a, outside, Feedback(refused=True, quota_interval=0.5))
    assert await learned_interval(a) == 0.5
    endless = FeedbackSummary.of([(Feedback(refused=True, quota_interval=LONGEST_S), 0.0)])
    await a.take("other", limit=LIMIT)
    assert (await a.give_back("other", limit=LIMIT, feedback=endless)).status == "ok"
    assert await learned_interval(a, "other") == Backoff().most
    since = float(outside.look("s")[0].learned["incident_at"]) - 1000 * MEASURED_S
    outside.edit("s", "learned", window_since=since, window_started=-ANSWERED, window_refused=2)
    outside.end_backoff()
    assert await taught(a) == 0.5


async def test_good_answers_narrow_it_until_it_is_gone(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await meter(a, outside)
    intervals = [await taught(a)]
    while intervals[-1]:
        await a.take("s", limit=LIMIT)  # waits, though there is room
        outside.edit("s", "learned", clean=9, calm_until=0, next_by_interval=0)
        await report(a, GOOD)
        intervals.append(await learned_interval(a))
    assert intervals[:3] == pytest.approx(
        [INTERVAL_S, 0.92 * INTERVAL_S, 0.92**3 * INTERVAL_S], rel=0.01
    )
    assert len(intervals) < 20


@pytest.mark.parametrize("end", ["resume", "reset"])
async def test_an_operator_lets_it_be_forgotten(
    server: RedisServer, outside: Outside, end: str
) -> None:
    a = await Caller.join(server, "a")
    await meter(a, outside)
    assert await taught(a) > 0
    await getattr(a.admin, end)("s")
    assert await learned_interval(a) == 0


async def test_the_next_crawl_begins_with_it(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    await meter(a, outside)
    assert await taught(a) > 0
    await a.give_back("s", limit=LIMIT)
    assert outside.held() == {}
    outside.pass_idle(6 * DAY_S)
    b = await Caller.join(server, "b")
    assert (await b.take("s", 2, limit=LIMIT)).granted == 1
    seen = await b.inspect("s")
    assert seen.learned_interval == pytest.approx(INTERVAL_S, rel=0.01)
    assert seen.backoff_last == 0


def test_tables_show_how_many_start_in_what_time() -> None:
    intervals = (None, 0.005, 0.0083, 0.2, 1.9, 4.8, 600.0)
    assert [IntervalFinding(interval).lesson for interval in intervals] == [
        *("", "200/s", "120/s", "5/s", "0.526/s", "12.5/m", "0.1/m")
    ]
