"""Blocked sites: after nothing but refusals, one request after each pause tries the site."""

import pytest

from semaphore_middleware import SiteBlockedError
from semaphore_middleware.core import observer
from semaphore_middleware.core.protocol import Reply
from semaphore_middleware.model.feedback import Feedback
from semaphore_middleware.politeness import NO_FINDINGS
from semaphore_middleware.politeness.blocked import BlockedFinding, SiteBlocked
from tests.core.lone_node import LoneNode
from tests.core.test_refusals import FAILED, GOOD, LIMIT, REFUSED, asked_for, one_more, report
from tests.support.crawls import Log
from tests.support.findings import findings, found_by
from tests.support.nodes import Caller, Outside
from tests.support.servers import RedisServer

# On the server ------------------------------------------------------------------------------------

LONG_S = 601.0  # longer than ten times `Backoff.down_after`
ROBOTS_OR_ERROR = Feedback()


def refuse_for(outside: Outside, seconds: float) -> None:
    """Let the refusals have begun so much earlier."""
    since = float(outside.look("s")[0].learned["refusing_since"])
    outside.edit("s", "learned", refusing_since=since - 1000 * seconds)


async def block(caller: Caller, outside: Outside) -> Reply:
    """Five incidents, the last one long after the first."""
    for _ in range(4):
        await one_more(caller, outside, REFUSED)
    refuse_for(outside, LONG_S)
    return await one_more(caller, outside, Feedback(refused=True, status=403))


@pytest.mark.parametrize(
    ("before", "seconds", "is_blocked"),
    [
        ([REFUSED] * 4, LONG_S, True),
        ([REFUSED] * 3, LONG_S, False),
        ([REFUSED] * 4, 590, False),
        ([*[REFUSED] * 2, GOOD, *[REFUSED] * 3], LONG_S, False),
        ([*[REFUSED] * 2, ROBOTS_OR_ERROR, FAILED, *[REFUSED] * 2], LONG_S, True),
        # A time that a site has named is neither duration nor incident, however long it is.
        ([*[REFUSED] * 3, asked_for(1)], LONG_S, False),
        ([*[REFUSED] * 2, asked_for(3600), *[REFUSED] * 5], LONG_S, False),
        ([asked_for(3600), *[REFUSED] * 4], 3600 + LONG_S, False),
    ],
)
async def test_a_site_is_blocked_after_nothing_but_refusals_for_long(
    server: RedisServer, outside: Outside, before: list[Feedback], seconds: float, is_blocked: bool
) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    for number, outcome in enumerate(before):
        await one_more((a, b)[number % 2], outside, outcome)
    refuse_for(outside, seconds)
    outside.end_backoff()
    await a.take("s", limit=LIMIT)
    await b.take("s", 9, limit=LIMIT)
    outside.notified()
    reply = await report(a, Feedback(refused=True, status=403))
    assert bool(found_by(BlockedFinding, reply).shut) == is_blocked
    told = [(node, text.split()) for node, text in outside.notified() if text.startswith("blocked")]
    assert [node for node, _ in told] == ["b"] * is_blocked, "others hear of it"
    for _, milliseconds, status, scope in (words for _, words in told):
        assert 1000 * LONG_S <= float(milliseconds) < 1000 * (LONG_S + 60)
        assert (status, scope) == ("403", "s")
    assert bool(found_by(BlockedFinding, await b.renew("s", limit=LIMIT)).shut) == is_blocked


@pytest.mark.parametrize(("named", "counts"), [(3600, 3600), (1e9, 86400)])
async def test_after_a_time_that_the_site_has_named_it_takes_as_long(
    server: RedisServer, outside: Outside, named: float, counts: float
) -> None:
    """Except beyond a day."""
    a = await Caller.join(server, "a")
    await one_more(a, outside, asked_for(named))
    refuse_for(outside, counts + LONG_S)
    for _ in range(4):
        assert not found_by(BlockedFinding, await one_more(a, outside, REFUSED)).shut
    assert found_by(BlockedFinding, await one_more(a, outside, REFUSED)).shut


async def test_one_request_a_pause_tries_a_blocked_site(
    server: RedisServer, outside: Outside
) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    await block(a, outside)
    for pause in (32, 64, 128):
        outside.end_backoff()
        await a.take("s", limit=LIMIT)
        assert found_by(BlockedFinding, await b.take("s", limit=LIMIT)).shut
        assert outside.held() == {"a": 1}
        await b.give_up("s", limit=LIMIT)
        reply = await report(a, asked_for(pause) if pause > 99 else REFUSED)
        assert reply.backoff == pause
        assert found_by(BlockedFinding, reply).shut
        assert ((await a.inspect("s")).blocked_for or 0) >= LONG_S


@pytest.mark.parametrize("end", ["good", "resume", "reset", "error", "failed"])
async def test_a_good_answer_ends_it_and_so_does_an_operator(
    server: RedisServer, outside: Outside, end: str
) -> None:
    a = await Caller.join(server, "a")
    await block(a, outside)
    seen = await a.inspect("s")
    assert "It has refused all requests for 10 min, the last one with status 403." in seen.why
    if end in ("resume", "reset"):
        await getattr(a.admin, end)("s")
    else:
        outcomes = {"good": GOOD, "error": ROBOTS_OR_ERROR, "failed": FAILED}
        await one_more(a, outside, outcomes[end])
        outside.end_backoff()
    is_over = end not in ("error", "failed")
    assert ((await a.inspect("s")).blocked_for is None) == is_over
    granted = (await a.take("s", 9, limit=LIMIT)).granted - a.book("s").returned
    assert granted == (LIMIT.concurrency if is_over else 1)


async def test_who_waits_learns_why(server: RedisServer, outside: Outside) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    await block(a, outside)
    reply = await b.take("s", limit=LIMIT)
    assert reply.reason is not None
    assert (b.held("s"), reply.reason.name) == (0, "blocked")
    for remains in (True, False):
        seen = await b.inspect("s")
        assert (seen.state, seen.reason) == ("blocked", reply.reason)
        assert (seen.wait is not None) == remains
        assert seen.why.startswith(reply.reason.sentence)
        outside.end_backoff()


# In a node ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_told", [False, True])
def test_requests_for_a_blocked_site_fail_but_one_tries_it(is_told: bool) -> None:
    node, found = LoneNode(), BlockedFinding(665.0, 403)
    tries, waits = node.ask(), node.ask()
    node.exchange(granted=1, findings=NO_FINDINGS if is_told else findings(found))
    if is_told:
        node.at_once.clear()
        node.lease.on_finding(found)
    assert tries._granted.done()
    assert not tries._granted.exception()
    error = waits._granted.exception()
    assert type(error) is SiteBlockedError
    assert str(error) == (
        "s is blocked. It has refused all requests for 11 min, the last one with status 403; one "
        "request after each pause tries it again"
    )
    assert node.at_once[-1] is True, "it wants no permit any more"
    waits.release()
    assert node.update().requested == 1
    assert [one.permit for one in node.events if isinstance(one, observer.FailedAtOnce)] == [waits]


def test_the_node_that_finds_a_site_blocked_logs_it_once(caplog: Log) -> None:
    caplog.set_level("INFO")
    node = LoneNode()
    for seconds in (600.0, 700.0, None):
        known = BlockedFinding(None if seconds == 600.0 else 600.0)
        (tries,) = node.hold(findings=findings(known))
        assert bool(tries.no_retry) == (seconds != 600.0)
        tries.refused() if seconds else tries.answered(0.1)
        tries.release()
        now = findings(BlockedFinding(seconds))
        node.exchange(granted=1, backoff=4.0 if seconds else None, findings=now)
    assert [one for one in node.events if isinstance(one, SiteBlocked)] == [SiteBlocked("s", 600.0)]
    assert sum("s is blocked. It has" in message for message in caplog.messages) == 1
    assert caplog.messages[-1] == "s is no longer blocked."
