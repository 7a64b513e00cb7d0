"""Delays and rates: how many start, when, and which node is notified of when to ask again.

Both are the generic cell rate algorithm (ITU-T I.371); a delay is a rate with a burst of 1. Their
steps are hours, so that no machine is too slow.
"""

import pytest

from semaphore_middleware.core.protocol import Reply
from semaphore_middleware.model.feedback import Feedback, FeedbackSummary
from semaphore_middleware.model.limits import Limit
from tests.support.nodes import KEYS, Caller, Outside, key
from tests.support.servers import RedisServer

HOUR = 3600.0
SLOW = Limit(5, delay=HOUR)
RATED = Limit(50, rate="1/h", burst=3)


def notified_to_retry(outside: Outside) -> list[str]:
    """The nodes that were notified of when to ask again; they were notified of nothing else."""
    told = []
    for node, text in outside.notified():
        word, wait, scope = text.split()
        assert (word, scope) == ("retry", "s")
        assert 0 < int(wait) <= 1000 * HOUR
        told.append(node)
    return told


def assert_waits(reply: Reply, granted: int, seconds: float) -> None:
    """Whether that many are granted now, and the next one in as much time."""
    assert reply.granted == granted
    assert reply.retry_in is not None
    assert seconds - 120 < reply.retry_in <= seconds


def move(outside: Outside, seconds: float) -> None:
    """The effect of so much time on a delay and a rate."""
    arrivals = {name: float(outside.state()[name]) for name in ("last_start", "next_at_rate")}
    moved = {name: each - 1000 * seconds for name, each in arrivals.items()}
    outside.edit("s", "state", **moved)


@pytest.mark.parametrize(
    ("limit", "steps"),
    [  # how many start now, and for how long the next one waits; then after so many hours...
        (SLOW, [(0, 1, 1), (0.5, 0, 0.5), (0.5, 1, 1), (7, 1, 1)]),
        (Limit(5, rate="1/h"), [(0, 1, 1), (0.5, 0, 0.5), (0.5, 1, 1), (7, 1, 1)]),
        (RATED, [(0, 3, 1), (1, 1, 1), (1, 1, 1), (2.25, 2, 0.75), (0.75, 1, 1), (99, 3, 1)]),
        (Limit(9, delay=HOUR, rate="2/d", burst=2), [(0, 1, 1), (1, 1, 11), (11, 1, 12)]),
    ],
    ids=["delay", "rate", "burst", "both"],
)
async def test_so_many_start_and_the_next_one_is_notified_when(
    server: RedisServer, outside: Outside, limit: Limit, steps: list[tuple[float, int, float]]
) -> None:
    a = await Caller.join(server, "a")
    a.book("s").requested = 30
    granted = 0
    for hours, starts, wait in steps:
        move(outside, hours * HOUR) if hours else None
        granted += starts
        reply = await a.renew("s", limit=limit)
        assert reply.starts_count
        assert_waits(reply, granted, wait * HOUR)
        await a.give_back("s", starts, limit=limit)
    assert outside.notified() == []


@pytest.mark.parametrize(("jitter", "least", "most"), [(0, 1, 1), (0.5, 0.5, 1.5), (1, 0, 2)])
async def test_jitter_varies(server: RedisServer, jitter: float, least: float, most: float) -> None:
    a = await Caller.join(server, "a")
    limit = Limit(5, 1e9, jitter)
    waits = []
    for n in range(50):
        reply = await a.take(f"s{n}", 2, limit=limit)
        waits.append((reply.retry_in or 0) / 1e9)
    assert least - 1e-6 <= min(waits) <= max(waits) <= most
    assert max(waits) - min(waits) >= 0.5 * (most - least)  # 50 draws: one run in 10^13 is closer


async def test_the_first_is_notified_once_when_to_return(
    server: RedisServer, outside: Outside
) -> None:
    a, b, c, d = [await Caller.join(server, name) for name in "abcd"]
    for caller in (a, b, c, d):
        assert ((await caller.take("s", limit=SLOW)).retry_in is None) == (caller is not b)
    for _ in range(3):
        await d.give_up("s", limit=SLOW)
        await d.take("s", limit=SLOW)
    assert notified_to_retry(outside) == []
    await b.give_up("s", limit=SLOW)
    assert notified_to_retry(outside) == ["c"]
    await b.take("s", limit=SLOW)
    await c.give_up("s", limit=SLOW)
    await d.give_up("s", limit=SLOW)
    assert notified_to_retry(outside) == ["d", "b"], "who was notified before, too"
    outside.start_is_due()
    assert (await b.renew("s", limit=SLOW)).granted == 1
    await b.renew("s", limit=Limit(1))  # full: c waits for a permit, and not for time
    assert (await c.take("s", limit=SLOW)).retry_in is None
    for caller in (a, b):
        assert notified_to_retry(outside) == []
        await caller.give_back("s", limit=SLOW)
    assert notified_to_retry(outside) == ["c"]


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (Limit(5, delay=HOUR, jitter=1), Limit(5, delay=0.9 * HOUR)),
        (Limit(5, delay=0.9 * HOUR), Limit(5, delay=HOUR, jitter=1)),
    ],
)
async def test_the_longest_delay_and_the_longest_least_interval_in_use_win(
    server: RedisServer, outside: Outside, first: Limit, then: Limit
) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    await a.take("s", limit=first)
    await b.take("s", limit=then)
    for _ in range(20):
        outside.start_is_due()
        assert (await b.renew("s", limit=then)).granted == 1
        await b.give_back("s", limit=then)
        wait = (await b.take("s", limit=then)).retry_in or 0
        assert 0.9 * HOUR - 120 < wait <= 1.1 * HOUR


async def test_the_lowest_rate_and_the_smallest_burst_in_use_win(server: RedisServer) -> None:
    a, b, c = [await Caller.join(server, name) for name in "abc"]
    for caller, limit, effective in (
        (a, Limit(9), (None, None)),  # who names none asks for none
        (a, Limit(9, rate="60/m", burst=5), ("1/s", 5)),
        (b, Limit(9, rate="2/m", burst=9), ("2/m", 5)),
        (c, Limit(9, rate="60/m", burst=7), ("2/m", 5)),
        (a, Limit(9), ("2/m", 5)),
    ):
        await caller.take("s", limit=limit)
        seen = await a.inspect("s")
        assert (
            seen.effective.rate,
            seen.effective.burst if seen.effective.rate else None,
        ) == effective


async def take_pending(caller: Caller, n: int, limit: Limit) -> None:
    """Starts that begin later: their requests wait for permits of other scopes."""
    caller.book("s").requested += n
    assert (await caller.update("s", limit, unstarted=0, started=0)).granted == n


@pytest.mark.parametrize(("limit", "starts"), [(SLOW, 1), (RATED, 3)])
async def test_an_unused_start_is_given_on(server: RedisServer, limit: Limit, starts: int) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    await take_pending(a, starts, limit)
    await b.take("s", 2, limit=limit)
    a.book("s").returned = 1
    await a.update("s", limit, started=starts - 1)
    assert_waits(await b.renew("s", limit=limit), 1, HOUR)


async def test_nothing_starts_before_an_unstarted_request(
    server: RedisServer, outside: Outside
) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    await take_pending(a, 1, SLOW)
    reply = await b.take("s", limit=SLOW)
    assert (reply.granted, reply.retry_in) == (0, None), "no time is known"
    for _ in range(2):  # it begins; that is reported twice, and counts once
        await a.update("s", SLOW, unstarted=0, started=1)
    assert outside.notified() == [("b", "retry 3600000 s")]
    outside.start_is_due()
    assert (await b.renew("s", limit=SLOW)).granted == 1


@pytest.mark.parametrize(
    ("age", "left"), [(600, HOUR - 600), (9000, HOUR - 1800)], ids=["known", "before its permit"]
)
async def test_a_start_that_is_reported_late_counts_from_when_it_began(
    server: RedisServer, outside: Outside, age: float, left: float
) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    await take_pending(a, 1, SLOW)
    granted_at = float(outside.state()["granted_at"])
    outside.edit("s", "state", granted_at=granted_at - 1000 * 1800)
    await a.update("s", SLOW, unstarted=0, started=1, start_age=age)
    assert_waits(await b.take("s", limit=SLOW), 0, left)


async def test_unstarted_requests_count_in_a_burst(server: RedisServer) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    await take_pending(a, 2, RATED)
    b.book("s").requested = 2
    for have_begun in (False, True):
        if have_begun:
            await a.update("s", RATED, unstarted=0, started=2)
        assert_waits(await b.renew("s", limit=RATED), 1, HOUR)


@pytest.mark.parametrize("end", ["lease", "lease id", "evicted"])
async def test_who_is_gone_may_have_begun(server: RedisServer, outside: Outside, end: str) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    await take_pending(a, 1, SLOW)
    await b.take("s", limit=SLOW)
    if end == "lease":
        outside.end_leases("a", "s")
    elif end == "lease id":
        a.lose("s")
        await a.renew("s", limit=SLOW)
    else:
        await b.admin.evict("a")
    assert_waits(await b.renew("s", limit=SLOW), 0, HOUR)


# While nobody calls -------------------------------------------------------------------------------

LEASE = 15.0  # seconds, of those that no test lives to see the end of
FIVE_A_DAY = Limit(9, rate="5/d")  # 4.8 hours
REFUSED = FeedbackSummary.of([(Feedback(refused=True, retry_after=300), 0.0)])


@pytest.mark.parametrize("feedback", [REFUSED, None], ids=["backoff", "rate"])
@pytest.mark.parametrize("what", ["jump", "reconnect", "others", "silence"])
async def test_what_an_idle_site_waits_for_goes_on_while_nobody_calls_but_not_in_a_jump(
    server: RedisServer, outside: Outside, feedback: FeedbackSummary | None, what: str
) -> None:
    a = await Caller.join(server, "a", lease=LEASE)
    limit = FIVE_A_DAY if feedback is None else Limit(9)  # one reason at a time
    whole = 4.8 * HOUR if feedback is None else 300
    await a.take("s", limit=limit)
    await a.give_back("s", limit=limit, feedback=feedback)
    kept = outside.ttl(key("s")) / 1000 - whole
    assert 0.95 * HOUR < kept <= HOUR, "nor does its key expire in one"
    half = whole / 2
    seconds = 1.5 * whole if what in ("jump", "reconnect") else half
    outside.client.hincrbyfloat(KEYS.epoch, "wall", -1000 * seconds)  # when it was last seen
    if what == "reconnect":
        await a.begin_epoch()
    if what == "silence":
        a.store._answered_at -= half
    if what == "others":
        a = await Caller.join(server, "b", lease=LEASE)
    left = half if what in ("others", "silence") else whole
    reply = await a.take("s", limit=limit)
    assert reply.granted == 0
    assert left - 60 < (reply.retry_in or 0) <= left + 10
