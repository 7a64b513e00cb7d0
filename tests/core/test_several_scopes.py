"""Requests that need permits of several scopes: taken in order, begun and given back together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from semaphore_middleware import (
    AcquireTimeoutError,
    ClosedError,
    FairSemaphore,
    Limit,
    PermitLostError,
)
from semaphore_middleware.core.observer import AcquireTimedOut
from semaphore_middleware.core.permit import Stage
from semaphore_middleware.model.hosts import order_of
from tests.support.nodes import Outside, Recorder, eventually, in_asyncio
from tests.support.servers import RedisServer

HOST, DOMAIN, ALL = "www.example.org", "domain:example.org", "all"


@asynccontextmanager
async def two_nodes(
    server: RedisServer, **options: Any
) -> AsyncIterator[tuple[FairSemaphore, FairSemaphore]]:
    """Nodes that hand nothing on."""
    async with (
        FairSemaphore(server.url, turn=0, **options) as one,
        FairSemaphore(server.url, turn=0, **options) as other,
    ):
        yield one, other


def in_order(*names: str) -> list[tuple[str, int | Limit]]:
    return [(name, 1) for name in sorted(names, key=order_of)]


async def until_held(outside: Outside, *scopes: str) -> None:
    """Until one permit of each of these scopes is held, and of no other."""

    async def is_so() -> bool:
        held = {name: sum(outside.held(name).values()) for name in (HOST, DOMAIN, ALL)}
        return held == {name: int(name in scopes) for name in held}

    await eventually(is_so)


@in_asyncio
async def test_permits_that_wait_for_others_are_held_and_taken_anew_if_they_are_lost(
    server: RedisServer, outside: Outside
) -> None:
    async with two_nodes(server) as (one, other):
        blocker = await other.acquire(ALL, 1)
        waiting = asyncio.ensure_future(one.acquire_all(in_order(ALL, DOMAIN, HOST)))
        await until_held(outside, HOST, DOMAIN, ALL)
        assert not waiting.done()
        await other.admin.evict(one.node)
        lost = next(permit for permit in one.permits() if permit.scope == HOST)
        lost._account.lose_all()
        for _ in range(2):
            await asyncio.sleep(0)
        assert lost.stage is Stage.RELEASED
        await until_held(outside, HOST, DOMAIN, ALL)
        blocker.release()
        permits = await waiting
        assert [permit.scope for permit in permits.permits] == [HOST, DOMAIN, ALL]
        assert not [permit for permit in permits.permits if permit.lost]
        permits.begin()
        for _ in range(2):
            permits.release()
        await until_held(outside)


@pytest.mark.parametrize("way", ["timeout", "cancelled", "drained"])
@in_asyncio
async def test_nothing_is_left_when_a_later_permit_does_not_come(
    server: RedisServer, outside: Outside, way: str
) -> None:
    seen = Recorder()
    async with two_nodes(server, observers=[seen]) as (one, other):
        blocker = await other.acquire(ALL, 1)
        timeout = 0.05 if way == "timeout" else None
        waiting = asyncio.ensure_future(one.acquire_all(in_order(HOST, ALL), timeout))
        if way != "timeout":
            await until_held(outside, HOST, ALL)
            waiting.cancel() if way == "cancelled" else one.drain()
        errors = {"timeout": AcquireTimeoutError, "drained": ClosedError}
        with pytest.raises(errors.get(way, asyncio.CancelledError)) as raised:
            await waiting
        assert list(one.permits()) == []
        assert timeout is None or str(raised.value).startswith("no permit for 'all' within")
        await until_held(outside, ALL)
        timed_out = [e.permit.scope for e in seen.events if isinstance(e, AcquireTimedOut)]
        assert timed_out == [ALL] * bool(timeout)
        blocker.release()


@pytest.mark.parametrize("scope", [HOST, DOMAIN, ALL])
@in_asyncio
async def test_the_loss_of_any_ends_what_runs(server: RedisServer, scope: str) -> None:
    async with FairSemaphore(server.url) as one:
        permits = await one.acquire_all(in_order(HOST, DOMAIN, ALL))
        permits.begin()
        lost = next(permit for permit in permits.permits if permit.scope == scope)
        with pytest.raises(PermitLostError), permits.until_lost():
            asyncio.get_running_loop().call_soon(lost.lose, "it is gone")
            await asyncio.sleep(60)
        permits.release()


@in_asyncio
async def test_the_site_s_answer_is_noted_on_its_permit_and_its_latency_on_all(
    server: RedisServer,
) -> None:
    async with FairSemaphore(server.url) as one:
        refused = await one.acquire_all(in_order("my own", HOST, ALL))
        assert refused.site_permit is refused.permits[1]
        refused.site_permit.refused()
        refused.release()
        assert [permit.outcome is None for permit in refused.permits] == [True, False, True]
        answered = await one.acquire_all(in_order(DOMAIN, ALL))
        assert answered.site_permit is answered.permits[0]
        answered.site_permit.answered(0.5)
        answered.release()
        latencies = [permit.outcome and permit.outcome.latency for permit in answered.permits]
        assert latencies == [0.5, 0.5]
        assert (await one.acquire_all(in_order("proxy:a:1", ALL))).site_permit is None
