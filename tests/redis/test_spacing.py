"""Delays and rates: who may start next, and who is told when to come back.

Both are the generic cell rate algorithm (ITU-T I.371); a delay is a rate with a burst of 1.
"""

from __future__ import annotations

import pytest

from semaphore_middleware.model.limits import Limit
from semaphore_middleware.redis.protocol import Notification, Reply
from tests.support.nodes import Caller, Outside, eventually, in_asyncio, key
from tests.support.servers import RedisServer

SLOW = Limit(5, delay=60)
DAY_MS = 86_400_000
RATED = Limit(50, rate="1/m", burst=3)


def told_to_retry(outside: Outside) -> list[str]:
    """The nodes that were told to come back; they were told nothing else."""
    told = []
    for node, text in outside.told():
        word, wait, scope = text.split()
        assert (word, scope) == ("retry", "s")
        assert 0 < int(wait) <= 60_000
        told.append(node)
    return told


def wait_of(reply: Reply) -> float:
    assert reply.retry_in is not None
    return reply.retry_in


# A delay --------------------------------------------------------------------------------------


@in_asyncio
async def test_with_a_delay_one_starts_at_a_time(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    assert (await a.take("s", 3, limit=SLOW)).granted == 1
    assert (await a.renew("s", limit=SLOW)).granted == 1
    outside.start_is_due()
    assert (await a.renew("s", limit=SLOW)).granted == 2
    assert outside.held() == {"a": 2}
    assert outside.waiting() == {"a": 1}


@in_asyncio
async def test_the_delay_of_an_idle_scope_goes_by_real_time_though_nobody_called(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await a.take("s", limit=SLOW)
    await a.give_back("s")
    outside.pass_idle(55)
    assert wait_of(await a.take("s", limit=SLOW)) <= 5


@in_asyncio
async def test_starts_that_are_due_come_by_asking_when_told(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    limit = Limit(5, delay=0.02)
    await a.take("s", 3, limit=limit)

    async def all_started() -> bool:
        await a.renew("s", limit=limit)
        return not outside.waiting()

    await eventually(all_started)
    assert outside.held() == {"a": 3}


@in_asyncio
async def test_the_first_in_the_queue_is_told_in_the_reply_when_to_come_back(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    first = wait_of(await a.take("s", 2, limit=SLOW))
    assert 0 < wait_of(await a.renew("s", limit=SLOW)) <= first <= 60
    assert outside.told() == []


@in_asyncio
async def test_the_first_in_the_queue_is_told_once_over_its_channel_when_to_come_back(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await b.take("s", limit=Limit(1, delay=60))
    await a.take("s", 2, limit=SLOW)
    await b.give_back("s", limit=SLOW)
    await b.take("s", 2, limit=SLOW)
    for _ in range(3):
        await b.give_up("s", 1, limit=SLOW)
        await b.take("s", 1, limit=SLOW)
    told = outside.told()
    assert len(told) == 1
    node, text = told[0]
    message = Notification.read(text.encode())
    assert message is not None
    assert (node, message.kind, message.scope) == ("a", "retry", "s")
    assert 0 < message.retry_in <= 60


@in_asyncio
async def test_the_next_one_is_told_when_the_first_one_leaves(
    server: RedisServer, outside: Outside
) -> None:
    a, b, c = [await Caller.join(server, name) for name in "abc"]
    for caller in (a, b, c):
        await caller.take("s", limit=SLOW)
    await b.give_up("s", limit=SLOW)
    assert told_to_retry(outside) == ["c"]


@in_asyncio
async def test_the_next_one_is_told_when_the_first_one_starts(
    server: RedisServer, outside: Outside
) -> None:
    a, b, c = [await Caller.join(server, name) for name in "abc"]
    for caller in (a, b, c):
        await caller.take("s", limit=SLOW)
    outside.start_is_due()
    assert (await b.renew("s", limit=SLOW)).granted == 1
    assert told_to_retry(outside) == ["c"]


@pytest.mark.parametrize("action", ["configure", "pause"])
@in_asyncio
async def test_who_came_back_in_vain_is_told_again_when_time_is_in_its_way(
    server: RedisServer, outside: Outside, action: str
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s", limit=SLOW)
    await b.take("s", limit=SLOW)
    await (a.admin.pause("s") if action == "pause" else a.admin.configure("s", 1))
    assert (await b.renew("s", limit=SLOW)).retry_in is None
    await a.admin.resume("s")
    await a.give_back("s", limit=SLOW)
    assert told_to_retry(outside) == ["b"]


@in_asyncio
async def test_who_waits_for_a_permit_and_not_for_time_is_not_told_to_come_back(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s", limit=Limit(1, delay=60))
    assert (await b.take("s", limit=Limit(1, delay=60))).retry_in is None
    assert outside.told() == []


@in_asyncio
async def test_the_longest_delay_in_use_wins(server: RedisServer, outside: Outside) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await b.take("s", limit=SLOW)
    await a.take("s", limit=Limit(5, delay=0))
    outside.start_is_due()
    reply = await a.take("s", limit=Limit(5, delay=0.001))
    assert reply.granted == 1
    assert wait_of(reply) > 1


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (Limit(5, delay=60, jitter=1), Limit(5, delay=60)),
        (Limit(5, delay=60), Limit(5, delay=60, jitter=1)),
        (Limit(5, delay=60, jitter=1), Limit(5, delay=50)),
        (Limit(5, delay=50), Limit(5, delay=60, jitter=1)),
    ],
)
@in_asyncio
async def test_the_longest_of_the_least_gaps_in_use_wins(
    server: RedisServer, outside: Outside, first: Limit, then: Limit
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s", limit=first)
    least = max(limit.delay * (1 - limit.jitter) for limit in (first, then))
    await b.take("s", limit=then)
    for _ in range(20):
        outside.start_is_due()
        assert (await b.renew("s", limit=then)).granted == 1
        await b.give_back("s", limit=then)
        assert least - 0.1 < wait_of(await b.take("s", limit=then)) <= 70


@in_asyncio
async def test_a_delay_outlives_the_idle_scope(server: RedisServer, outside: Outside) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s", limit=SLOW)
    await a.give_back("s", limit=SLOW)
    assert (await b.take("s", limit=SLOW)).granted == 0
    outside.start_is_due()
    assert (await b.renew("s", limit=SLOW)).granted == 1


@in_asyncio
async def test_a_scope_that_wakes_outlives_its_delay(server: RedisServer, outside: Outside) -> None:
    """The key of an idle scope ends with its delay; that of a scope in use does not."""
    limit = Limit(1, delay=0.2)
    a = await Caller.join(server, "a")
    await a.take("s", limit=limit)
    await a.give_back("s", limit=limit)
    assert 0 < outside.ttl(key("s")) <= 200
    await a.take("s", limit=limit)
    assert outside.ttl(key("s")) > 1000 * 3600


@pytest.mark.parametrize(("jitter", "least", "most"), [(0, 60, 60), (0.5, 30, 90), (1, 0, 120)])
@in_asyncio
async def test_jitter_varies_the_delay_by_its_share_either_way(
    server: RedisServer, jitter: float, least: float, most: float
) -> None:
    a = await Caller.join(server, "a")
    waits = [wait_of(await a.take(f"s{n}", 2, limit=Limit(5, 60, jitter))) for n in range(50)]
    assert least <= min(waits) <= max(waits) <= most
    spread = max(waits) - min(waits)
    assert spread > (most - least) / 2 if jitter else spread == 0


@in_asyncio
async def test_without_a_delay_all_that_are_free_start_at_once(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    reply = await a.take("s", 4, limit=3)
    assert (reply.granted, reply.retry_in) == (3, None)


# A rate ---------------------------------------------------------------------------------------


def move(outside: Outside, seconds: float) -> None:
    """What so much time does to a rate."""
    arrival = float(outside.state()["next_at_rate"])
    outside.edit("s", "state", next_at_rate=arrival - 1000 * seconds)


@in_asyncio
async def test_a_rate_lets_a_burst_start_at_once_and_then_one_after_another(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    reply = await a.take("s", 10, limit=RATED)
    assert reply.granted == 3
    assert 59 < wait_of(reply) <= 60
    for granted in (4, 5):
        move(outside, 60)
        reply = await a.renew("s", limit=RATED)
        assert reply.granted == granted
        assert 59 < wait_of(reply) <= 60


@in_asyncio
async def test_after_a_pause_as_many_start_at_once_as_fit_and_never_more_than_the_burst(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await a.take("s", 3, limit=RATED)
    move(outside, 125)
    assert (await a.take("s", 20, limit=RATED)).granted == 5
    move(outside, 10**6)
    assert (await a.renew("s", limit=RATED)).granted == 8


@in_asyncio
async def test_a_rate_without_a_burst_is_a_delay(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    rated, delayed = Limit(5, rate="1/m"), Limit(5, delay=60)
    waits = []
    for scope, limit in (("s", rated), ("t", delayed)):
        reply = await a.take(scope, 3, limit=limit)
        assert reply.granted == 1
        waits.append(wait_of(reply))
    assert waits == pytest.approx([60, 60], abs=0.5)
    for scope in ("s", "t"):
        outside.start_is_due(scope)
        assert (await a.renew(scope, limit=rated)).granted == 2


@in_asyncio
async def test_a_burst_is_of_all_nodes_together(server: RedisServer, outside: Outside) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    assert (await a.take("s", 2, limit=RATED)).granted == 2
    assert (await b.take("s", 2, limit=RATED)).granted == 1
    assert outside.held() == {"a": 2, "b": 1}


@in_asyncio
async def test_a_rate_counts_starts_and_not_permits_that_are_free(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    for _ in range(3):
        assert (await a.take("s", limit=RATED)).granted == 1
        await a.give_back("s", limit=RATED)
    assert (await a.take("s", limit=RATED)).granted == 0


@in_asyncio
async def test_a_rate_outlives_the_idle_scope(server: RedisServer, outside: Outside) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s", 3, limit=RATED)
    await a.give_back("s", 3, limit=RATED)
    assert outside.in_use() == {key("s")}
    assert DAY_MS + 175_000 < outside.ttl(key("s")) <= DAY_MS + 180_000
    assert (await b.take("s", limit=RATED)).granted == 0
    await b.give_up("s", limit=RATED)
    outside.pass_idle(65)
    reply = await b.take("s", 2, limit=RATED)
    assert reply.granted == 1
    assert 50 < wait_of(reply) <= 55.1


@in_asyncio
async def test_a_delay_and_a_rate_hold_together(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    both = Limit(9, delay=5, rate="2/m", burst=2)
    reply = await a.take("s", 5, limit=both)
    assert reply.granted == 1
    assert wait_of(reply) == pytest.approx(5, abs=0.1), "the delay"
    outside.edit("s", "state", next_start=0)
    reply = await a.renew("s", limit=both)
    assert reply.granted == 2
    assert wait_of(reply) == pytest.approx(30, abs=0.5), "the rate"
    outside.edit("s", "state", next_start=0)
    assert (await a.renew("s", limit=both)).granted == 2


@in_asyncio
async def test_the_lowest_rate_and_the_smallest_burst_in_use_win(server: RedisServer) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s", 1, limit=Limit(9, rate="60/m", burst=5))
    await b.take("s", 1, limit=Limit(9, rate="2/m", burst=9))
    seen = await a.inspect("s")
    assert (seen.rate, seen.burst) == ("2/m", 5)
    await a.take("s", 1, limit=9)
    seen = await a.inspect("s")
    assert (seen.rate, seen.burst) == ("2/m", 5), "who names none asks for none"


@in_asyncio
async def test_the_first_rate_brings_its_own_burst(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    await a.take("s", 1, limit=9)
    assert (await a.take("s", 5, limit=RATED)).granted == 4
    assert (await a.inspect("s")).burst == 3


@in_asyncio
async def test_the_limit_holds_beside_a_rate(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    reply = await a.take("s", 9, limit=Limit(2, rate="1000/s", burst=1000))
    assert (reply.granted, reply.retry_in) == (2, None)


@in_asyncio
async def test_with_a_delay_or_a_rate_each_start_counts(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    assert (await a.take("s", limit=SLOW)).is_counted
    assert (await a.take("t", limit=RATED)).is_counted
    assert not (await a.take("u", limit=5)).is_counted


# Starts that did not begin --------------------------------------------------------------------


@pytest.mark.parametrize("limit", [SLOW, Limit(5, delay=60, jitter=0.5), Limit(5, rate="1/m")])
@in_asyncio
async def test_a_start_that_did_not_begin_is_the_next_one_s(
    server: RedisServer, outside: Outside, limit: Limit
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s", limit=limit)
    await b.take("s", limit=limit)
    assert outside.held() == {"a": 1}
    await a.return_unused("s", limit=limit)
    assert outside.held() == {"b": 1}
    assert wait_of(await a.take("s", limit=limit)) >= 30


@in_asyncio
async def test_of_a_burst_as_many_may_start_as_did_not_begin(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    assert (await a.take("s", 3, limit=RATED)).granted == 3
    await a.return_unused("s", 2, limit=RATED)
    assert (await a.take("s", 3, limit=RATED)).granted == 5
    assert outside.waiting() == {"a": 1}


@in_asyncio
async def test_a_start_that_did_not_begin_is_taken_back_once(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await a.take("s", 2, limit=SLOW)
    said = a.statement("s", SLOW, returned=1, unused=1)
    for _ in range(3):
        await a.send(said)
    assert outside.waiting() == {}
    assert (await a.renew("s", limit=SLOW)).granted == 2
    reply = await a.say("s", SLOW, asked=5, returned=1, unused=1)
    assert reply.granted == 2
    assert wait_of(reply) >= 50


@in_asyncio
async def test_a_start_that_did_not_begin_is_gone_once_another_was_granted(
    server: RedisServer, outside: Outside
) -> None:
    """Or that one would be followed too soon."""
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s", limit=SLOW)
    await b.take("s", limit=SLOW)
    outside.start_is_due()
    assert (await b.renew("s", limit=SLOW)).granted == 1
    await a.return_unused("s", limit=SLOW)
    assert wait_of(await a.take("s", limit=SLOW)) >= 50


@in_asyncio
async def test_a_start_that_did_not_begin_is_gone_once_its_node_was_granted_another(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await a.take("s", 3, limit=SLOW)
    outside.start_is_due()
    b = await Caller.join(server, "b")
    await b.poke("s")  # a hears nothing of its second grant
    assert outside.held() == {"a": 2}
    reply = await a.return_unused("s", limit=SLOW)
    assert reply.granted == 2
    assert wait_of(reply) >= 50


@in_asyncio
async def test_a_start_that_did_not_begin_is_not_taken_back_by_a_late_statement(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s", limit=SLOW)
    late = a.statement("s", SLOW, returned=1, unused=1)
    await a.return_unused("s", limit=SLOW)  # the account is empty, so the next one has another term
    assert (await a.take("s", limit=SLOW)).granted == 1
    await b.take("s", limit=SLOW)
    await a.send(late)
    assert outside.held() == {"a": 1}, "b would start beside a"


@in_asyncio
async def test_a_quota_of_a_day_outlives_idle_times_and_all_nodes(
    server: RedisServer, outside: Outside
) -> None:
    quota = Limit(5, rate="4/d", burst=4)  # a further one each six hours
    a = await Caller.join(server, "a")
    assert (await a.take("s", 5, limit=quota)).granted == 4
    await a.give_up("s", limit=quota)
    await a.give_back("s", 4, limit=quota)
    await a.connection.close()
    assert outside.ttl(key("s")) > DAY_MS
    outside.pass_idle(5 * 3600)
    b = await Caller.join(server, "b")
    reply = await b.take("s", 5, limit=quota)
    assert reply.granted == 0
    assert 3500 < wait_of(reply) <= 3600
    await b.give_up("s", 5, limit=quota)
    outside.pass_idle(2 * 3600)
    assert (await b.take("s", 5, limit=quota)).granted == 1
