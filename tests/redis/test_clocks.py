"""No node's clock matters, and the server's may be set anew."""

from __future__ import annotations

import asyncio
import time

import pytest

from semaphore_middleware import FairSemaphore
from tests.support.nodes import KEYS, Caller, Outside, eventually, in_asyncio
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
