"""No node's clock matters, and the server's may be set anew."""

from __future__ import annotations

import asyncio
import time

import pytest

from semaphore_middleware import FairSemaphore
from semaphore_middleware.model.feedback import Feedback, FeedbackSummary
from semaphore_middleware.model.limits import Limit
from tests.support.nodes import KEYS, Caller, Outside, eventually, in_asyncio, key
from tests.support.servers import RedisServer

HOUR = 3600.0
LEASE = 15.0  # seconds, of those that no test lives to see the end of
SHORT_LEASE_S = 0.3

jumps = pytest.mark.parametrize("seconds", [20.0, HOUR, -20.0, -HOUR])


def jump(outside: Outside, seconds: float) -> None:
    """Let the epoch's clock see the server's jump: the last time that it saw is that far away."""
    outside.client.hincrbyfloat(KEYS.epoch, "wall", -1000 * seconds)


@jumps
@in_asyncio
async def test_a_jump_of_the_server_s_clock_ends_no_living_lease(
    server: RedisServer, outside: Outside, seconds: float
) -> None:
    holder, waiter = [await Caller.join(server, name, lease=LEASE) for name in "ab"]
    await holder.take("s")
    await waiter.take("s")
    jump(outside, seconds)
    assert (await waiter.renew("s")).granted == 0
    assert (await holder.renew("s")).status == "ok"
    assert (outside.held(), outside.queue()) == ({"a": 1}, ["b"])


@jumps
@in_asyncio
async def test_a_jump_of_the_server_s_clock_keeps_no_dead_node_s_permit(
    server: RedisServer, outside: Outside, seconds: float
) -> None:
    dead, heir = [await Caller.join(server, name, lease=SHORT_LEASE_S) for name in ("dead", "heir")]
    await dead.take("s")
    await heir.take("s")
    jump(outside, seconds)

    async def granted() -> bool:
        return (await heir.renew("s")).granted == 1

    await eventually(granted)
    assert outside.held() == {"heir": 1}


@in_asyncio
async def test_the_clock_does_not_go_back_when_the_server_s_does(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a", lease=LEASE)
    clocks = []
    for seconds in (0.0, -HOUR, HOUR, -20.0):
        jump(outside, seconds)
        await a.take("s")
        clocks.append(float(outside.client.hget(KEYS.epoch, "clock")))
    assert clocks == sorted(clocks)
    assert clocks[-1] - clocks[0] < 1000 * LEASE, "nor does it follow a jump ahead"


# Idle sites -----------------------------------------------------------------------------------


RATED = Limit(9, rate="1/m")
REFUSED = FeedbackSummary.of([(Feedback(refused=True, retry_after=60), 0.0)])


async def leave_idle(a: Caller, feedback: FeedbackSummary | None) -> None:
    """Leave the site idle, for the next start at which a minute has to pass."""
    limit = RATED if feedback is None else Limit(9)  # one reason at a time
    await a.take("s", limit=limit)
    await a.give_back("s", limit=limit, feedback=feedback)


async def left(node: Caller) -> float:
    """Of the minute, in seconds."""
    reply = await node.take("s", limit=RATED)
    assert reply.granted == 0
    assert reply.retry_in is not None
    return reply.retry_in


idle_sites = pytest.mark.parametrize("feedback", [REFUSED, None], ids=["backoff", "rate"])


@idle_sites
@pytest.mark.parametrize("reconnects", [False, True])
@in_asyncio
async def test_a_jump_ahead_does_not_end_what_an_idle_site_waits_for(
    server: RedisServer, outside: Outside, feedback: FeedbackSummary | None, reconnects: bool
) -> None:
    a = await Caller.join(server, "a", lease=LEASE)
    await leave_idle(a, feedback)
    jump(outside, HOUR)
    if reconnects:
        await a.begin_epoch()
    assert 50 < await left(a) <= 60


@idle_sites
@in_asyncio
async def test_nor_does_its_key_expire_in_a_jump(
    server: RedisServer, outside: Outside, feedback: FeedbackSummary | None
) -> None:
    a = await Caller.join(server, "a", lease=LEASE)
    await leave_idle(a, feedback)
    assert outside.ttl(key("s")) > 1000 * 20 * HOUR


@idle_sites
@in_asyncio
async def test_what_an_idle_site_waits_for_goes_on_while_nobody_calls(
    server: RedisServer, outside: Outside, feedback: FeedbackSummary | None
) -> None:
    a = await Caller.join(server, "a", lease=LEASE)
    await leave_idle(a, feedback)
    jump(outside, 30)  # seconds that pass
    assert 20 < await left(await Caller.join(server, "b", lease=LEASE)) < 31


@idle_sites
@in_asyncio
async def test_what_an_idle_site_waits_for_goes_on_while_its_node_is_silent(
    server: RedisServer, outside: Outside, feedback: FeedbackSummary | None
) -> None:
    a = await Caller.join(server, "a", lease=LEASE)
    await leave_idle(a, feedback)
    jump(outside, 30)
    a.store._heard_at -= 30
    assert 20 < await left(a) < 31


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
@in_asyncio
async def test_a_jump_of_a_node_s_clock_changes_nothing(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    true_time = time.time
    async with (
        FairSemaphore(server.url, node="a", lease=SHORT_LEASE_S) as a,
        FairSemaphore(server.url, node="b", lease=SHORT_LEASE_S) as b,
    ):
        async with a.permit("s", 1):
            monkeypatch.setattr(time, "time", lambda: true_time() + seconds)
            waiter = asyncio.ensure_future(b.acquire("s", 1))
            assert not (await asyncio.wait([waiter], timeout=3 * SHORT_LEASE_S))[0]
        await waiter
