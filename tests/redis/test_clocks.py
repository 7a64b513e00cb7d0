"""No node's clock matters, and the server's may be set anew."""

from __future__ import annotations

import asyncio
import time

import pytest

from semaphore_middleware import FairSemaphore
from tests.support.nodes import Caller, Outside, epoch_key, eventually, in_asyncio
from tests.support.servers import RedisServer

HOUR = 3600.0
LEASE = 15.0  # seconds, of those that no test lives to see the end of
SHORT_LEASE_S = 0.3

jumps = pytest.mark.parametrize("seconds", [20.0, HOUR, -20.0, -HOUR])


def jump(outside: Outside, seconds: float) -> None:
    """Let the bucket's clock see the server's jump: the last time that it saw is that far away."""
    outside.client.hincrbyfloat(epoch_key("s"), "wall", -1000 * seconds)


@jumps
@in_asyncio
async def test_a_jump_of_the_server_s_clock_ends_no_living_lease(
    server: RedisServer, outside: Outside, seconds: float
) -> None:
    holder, waiter = [await Caller.join(server, name, lease=LEASE) for name in "ab"]
    assert (await holder.acquire("s", 1)).granted == (1,)
    await waiter.acquire("s", 1)
    jump(outside, seconds)
    assert (await waiter.acquire("s", 1)).granted == ()
    assert (await holder.renew("s", 1)).lost == ()
    assert (outside.held(), outside.line()) == (["a:1"], ["b:1"])


@jumps
@in_asyncio
async def test_a_jump_of_the_server_s_clock_keeps_no_dead_node_s_permit(
    server: RedisServer, outside: Outside, seconds: float
) -> None:
    dead, heir = [await Caller.join(server, name, lease=SHORT_LEASE_S) for name in ("dead", "heir")]
    await dead.acquire("s", 1)
    jump(outside, seconds)

    async def granted() -> bool:
        return (await heir.acquire("s", 1)).granted == (1,)

    await eventually(granted)
    assert outside.held() == ["heir:1"]


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
