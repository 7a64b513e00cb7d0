"""What an idle site waits for, when the server's clock is set anew."""

from __future__ import annotations

import pytest

from semaphore_middleware.model.feedback import Feedback, FeedbackSummary
from semaphore_middleware.model.limits import Limit
from tests.support.nodes import KEYS, Caller, Outside, key
from tests.support.servers import RedisServer

HOUR = 3600.0
LEASE = 15.0  # seconds, of those that no test lives to see the end of
RATED = Limit(9, rate="5/d")  # 4.8 hours
REFUSED = FeedbackSummary.of([(Feedback(refused=True, retry_after=300), 0.0)])


@pytest.mark.parametrize("feedback", [REFUSED, None], ids=["backoff", "rate"])
@pytest.mark.parametrize("what", ["jump", "reconnect", "others", "silence"])
async def test_what_an_idle_site_waits_for_goes_on_while_nobody_calls_but_not_in_a_jump(
    server: RedisServer, outside: Outside, feedback: FeedbackSummary | None, what: str
) -> None:
    a = await Caller.join(server, "a", lease=LEASE)
    limit = RATED if feedback is None else Limit(9)  # one reason at a time
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
        a.store._heard_at -= half
    if what == "others":
        a = await Caller.join(server, "b", lease=LEASE)
    left = half if what in ("others", "silence") else whole
    reply = await a.take("s", limit=limit)
    assert reply.granted == 0
    assert left - 60 < (reply.retry_in or 0) <= left + 10
