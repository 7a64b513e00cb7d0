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
RATED = Limit(9, rate="5/d")  # 4.8 hours
REFUSED = FeedbackSummary.of([(Feedback(refused=True, retry_after=300), 0.0)])


def jump(outside: Outside, seconds: float) -> None:
    """Let the epoch's clock see the server's jump: the last time that it saw is that far away."""
    outside.client.hincrbyfloat(KEYS.epoch, "wall", -1000 * seconds)


@pytest.mark.parametrize("feedback", [REFUSED, None], ids=["backoff", "rate"])
@pytest.mark.parametrize("what", ["jump", "reconnect", "others", "silence"])
@in_asyncio
async def test_what_an_idle_site_waits_for_goes_on_while_nobody_calls_but_not_in_a_jump(
    server: RedisServer, outside: Outside, feedback: FeedbackSummary | None, what: str
) -> None:
    a = await Caller.join(server, "a", lease=LEASE)
    limit = RATED if feedback is None else Limit(9)  # one reason at a time
    whole = 4.8 * HOUR if feedback is None else 300
    await a.take("s", limit=limit)
    await a.give_back("s", limit=limit, feedback=feedback)
    assert outside.ttl(key("s")) > 1000 * 20 * HOUR, "nor does its key expire in a jump"
    half = whole / 2
    jump(outside, 1.5 * whole if what in ("jump", "reconnect") else half)
    if what == "reconnect":
        await a.begin_epoch()
    if what == "silence":
        a.store._heard_at -= half
    if what == "others":
        a = await Caller.join(server, "b", lease=LEASE)
    left = half if what in ("others", "silence") else whole
    reply = await a.take("s", limit=limit)
    assert reply.granted == 0
    assert left - 60 < (reply.retry_in or 0) <= left + 10


@in_asyncio
async def test_a_jump_of_a_node_s_clock_changes_nothing(
    server: RedisServer, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_time = time.time
    a, b = [FairSemaphore(server.url, node=name, lease=1.5) for name in "ab"]

    def calls() -> int:
        return int(outside.client.info("commandstats")["cmdstat_evalsha"]["calls"])

    async def have_renewed() -> bool:
        return calls() >= enough

    async with a, b:
        async with a.permit("s", 1):
            waiter = asyncio.ensure_future(b.acquire("s", 1))
            for seconds in (HOUR, -HOUR):
                monkeypatch.setattr(time, "time", lambda jump=seconds: true_time() + jump)
                enough = calls() + 4
                await eventually(have_renewed)
            assert not waiter.done()
        await waiter
