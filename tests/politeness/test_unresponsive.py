"""A site that does not respond is tried one request at a time; after a long time others fail at
once.
"""

from functools import partial

import pytest

from semaphore_middleware import HostDownError
from semaphore_middleware.core import observer
from semaphore_middleware.core.failures import IN_A_ROW
from semaphore_middleware.core.protocol import Reply
from semaphore_middleware.model.feedback import Feedback, FeedbackSummary
from semaphore_middleware.politeness import NO_FINDINGS
from semaphore_middleware.politeness.unresponsive import HostDown, UnresponsiveFinding
from tests.core.lone_node import LoneNode
from tests.core.test_bounds import Fleet
from tests.core.test_failures import fail, pauses
from tests.core.test_refusals import (
    FAILED,
    GOOD,
    LIMIT,
    REFUSED,
    START,
    one_more,
    report,
)
from tests.core.test_session import Setup
from tests.support.crawls import Log
from tests.support.findings import findings, found_by
from tests.support.nodes import MACHINE, Caller, Outside
from tests.support.servers import RedisServer
from tests.support.simulated import in_simulated_time

found = partial(found_by, UnresponsiveFinding)


# On the server ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcomes", "pauses"),
    [
        ([FAILED] * 4, [None, None, 1, 2]),
        ([FAILED, FAILED, GOOD, FAILED, FAILED], [None] * 5),
    ],
)
async def test_failures_in_a_row_count_as_a_refusal_and_an_answer_ends_the_row(
    server: RedisServer, outside: Outside, outcomes: list[Feedback], pauses: list[float | None]
) -> None:
    nodes = [await Caller.join(server, name) for name in "ab"]  # what they report is one row
    seen = [(await one_more(nodes[n % 2], outside, each)) for n, each in enumerate(outcomes)]
    assert [reply.backoff for reply in seen] == pauses


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
    outside.notified()
    reply = await report(a, FAILED)
    assert (found(reply).down_for is not None) == is_down
    told = [
        (node, text.split()) for node, text in outside.notified() if text.startswith("unresponsive")
    ]
    assert [node for node, _ in told] == ["b"] * is_down, "others hear of it"
    for milliseconds in (float(words[2]) for _, words in told):
        assert 1000 * A_WHILE_S <= milliseconds < 1000 * (A_WHILE_S + 60)
    assert (found(await b.renew("s", limit=LIMIT)).down_for is not None) == is_down


async def test_failures_of_one_burst_do_not(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    await a.admin.configure("s", 50)
    await a.take("s", 50, limit=LIMIT)
    for _ in range(50):
        reply = await report(a, FAILED, age=600.0)
        assert found(reply).down_for is None
        if reply.backoff:
            fail_for(outside, A_WHILE_S)


async def test_it_is_tried_again_in_growing_pauses(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    await go_down(a, outside)
    nominal = [4, 8, 16, 32, 64, 128]
    replies = [await one_more(a, outside, FAILED) for _ in nominal]
    pauses = [reply.backoff or 0 for reply in replies]
    assert all(found(reply).down_for for reply in replies)
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
        assert found(await one_more(a, outside, outcome)).down_for is None
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


# Which nodes fail --------------------------------------------------------------------------------


async def test_failures_are_a_nodes_own_while_others_get_on(
    server: RedisServer, outside: Outside
) -> None:
    sick, healthy = [await Caller.join(server, name) for name in ("sick", "healthy")]
    await healthy.take("s", 2, limit=LIMIT)
    await one_more(sick, outside, FAILED, FAILED)
    assert not found(await one_more(sick, outside, FAILED, FAILED)).is_failing, (
        "another one may get on"
    )
    await report(healthy, GOOD)
    await one_more(sick, outside, FAILED, FAILED)
    reply = await one_more(sick, outside, FAILED)
    assert (found(reply).is_failing, reply.backoff, found(reply).down_for) == (False, None, None)
    assert (await healthy.take("s", limit=LIMIT)).granted == 3, "it does not suffer"
    assert (await report(healthy, FAILED, FAILED)).backoff == START, "all that have tried failed"


async def test_an_older_request_does_not_show_that_a_site_is_back(
    server: RedisServer, outside: Outside
) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    await a.take("s", 2, limit=LIMIT)
    await one_more(b, outside, FAILED, FAILED)
    assert not found(await one_more(b, outside, FAILED)).is_failing
    await report(a, GOOD, age=600.0)
    assert not found(await one_more(b, outside, FAILED)).is_failing, "it has answered another node"
    await report(a, FAILED)
    assert found(await one_more(b, outside, FAILED)).is_failing


async def test_who_comes_to_a_failing_site_tries_it_once(
    server: RedisServer, outside: Outside
) -> None:
    a, b, c, d = [await Caller.join(server, name) for name in "abcd"]
    await go_down(a, outside)
    for node in (b, c):
        reply = await node.take("s", 3, limit=LIMIT)
        assert (reply.granted, found(reply).down_for) == (int(node is b), None), (
            "one such try at a time"
        )
    reply = await report(b, FAILED)
    assert (found(reply).is_failing, b.held("s"), found(reply).down_for is None) == (True, 0, False)
    assert (await c.renew("s", limit=LIMIT)).granted == 1
    reply = await report(c, GOOD)
    assert (found(reply).down_for, found(reply).is_failing) == (None, False)
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


async def test_what_nodes_on_two_machines_find_counts(
    server: RedisServer, outside: Outside
) -> None:
    a, c = [await Caller.join(server, name) for name in "ac"]
    b = await Caller.join(server, "b", machine=MACHINE + 1)
    await go_down(a, outside)
    await b.take("s", limit=LIMIT)
    await report(b, FAILED)
    reply = await c.take("s", limit=LIMIT)
    assert (reply.granted, found(reply).down_for is None) == (0, False)


@pytest.mark.parametrize(("is_down", "state"), [(False, "failing"), (True, "down")])
async def test_who_waits_learns_why(
    server: RedisServer, outside: Outside, is_down: bool, state: str
) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    if is_down:
        await go_down(a, outside)
    else:
        await one_more(a, outside, *[FAILED] * 3)
        outside.end_backoff()
        await a.take("s", limit=LIMIT)
    held = a.held("s")
    reply = await a.take("s", limit=LIMIT)  # another one would try the site first
    assert reply.reason is not None
    assert (a.held("s"), reply.reason.name) == (held, state)
    seen = await b.inspect("s")
    assert (seen.state, seen.reason) == (state, reply.reason)
    assert (seen.wait is not None) == is_down
    assert seen.why.startswith(reply.reason.sentence)


async def test_sites_are_found_failing_one_after_the_other(server: RedisServer) -> None:
    failed = FeedbackSummary(failed=1)
    fleet = await Fleet.at(server, sites=3)
    await fleet.send(take=6)
    await fleet.send(give=1, feedback=failed)
    fleet.grow()
    await fleet.send(give=1, feedback=failed)
    failing = []
    for _ in range(3):
        replies = await fleet.send(give=1, feedback=failed)
        failing.append([any(f.explains_failures for f in reply.findings) for reply in replies])
    assert failing == [[True, False, False], [True, True, False], [True, True, True]]


# In a node ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_told", [False, True])
def test_requests_for_a_site_that_is_down_fail_but_one_tries_it(is_told: bool) -> None:
    node, down = LoneNode(), UnresponsiveFinding(True, 65.0)
    tries, waits = node.ask(), node.ask()
    node.exchange(granted=1, findings=NO_FINDINGS if is_told else findings(down))
    if is_told:
        node.at_once.clear()
        node.lease.on_finding(down)
    assert tries._granted.done()
    assert waits._granted.done()
    assert not tries._granted.exception()
    error = waits._granted.exception()
    assert type(error) is HostDownError
    assert str(error).startswith("s is down. It has not responded for 65 s; one request")
    assert node.at_once[-1] is True, "it wants no permit any more"
    waits.release()
    assert node.update().requested == 1
    assert [one.permit for one in node.events if isinstance(one, observer.FailedAtOnce)] == [waits]


def test_the_node_that_finds_a_site_down_logs_it_once(caplog: Log) -> None:
    caplog.set_level("INFO")
    node = LoneNode()
    for down_for in (60.0, 70.0, None):
        known = UnresponsiveFinding(True, None if down_for == 60.0 else 60.0)
        (tries,) = node.hold(findings=findings(known))
        if down_for is None:
            tries.answered(0.1)
        else:
            tries.failed()
        tries.release()
        is_down = down_for is not None
        pause = 4.0 if is_down else None
        now = findings(UnresponsiveFinding(is_down, down_for))
        node.exchange(granted=1, backoff=pause, findings=now)
    assert [one for one in node.events if isinstance(one, HostDown)] == [HostDown("s", 60.0)]
    assert sum("s is down" in message for message in caplog.messages) == 1
    assert sum("s did not respond: all nodes pause" in message for message in caplog.messages) == 2
    assert caplog.messages[-1] == "s is no longer down."


@in_simulated_time
async def test_the_channel_announces_that_a_site_is_down() -> None:
    async with Setup() as setup:
        held = await setup.hold()
        setup.server.granted = 1
        waiting = setup.ask()
        setup.server.tell(b"unresponsive 1 65000 s")
        with pytest.raises(HostDownError, match="65 s"):
            await waiting._granted
        held.release()
        waiting.release()


def test_where_no_node_gets_on_the_pauses_of_the_site_count() -> None:
    node = LoneNode()
    update = fail(node, IN_A_ROW)
    node.ask()
    node.apply(update, findings=findings(UnresponsiveFinding(is_failing=True)))
    asks = node.update()
    assert (pauses(node), asks.requested - asks.returned, asks.suspended) == ([], 1, 0)
