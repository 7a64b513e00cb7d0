"""Requests that need permits of several scopes: taken in order, begun and given back together."""

from __future__ import annotations

import asyncio
import itertools
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
    PermitSet,
)
from semaphore_middleware.core.observer import AcquireTimedOut
from semaphore_middleware.core.permit import Stage
from semaphore_middleware.model.hosts import order_of
from tests.support.nodes import Outside, Recorder, eventually, in_asyncio
from tests.support.servers import RedisServer

HOST, DOMAIN, ALL = "www.example.org", "domain:example.org", "all"


@asynccontextmanager
async def nodes(
    server: RedisServer, count: int, **options: Any
) -> AsyncIterator[list[FairSemaphore]]:
    """Nodes that hand nothing on, on an idle server."""
    opened = [FairSemaphore(server.url, turn=0, recovery_wait=0, **options) for _ in range(count)]
    for semaphore in opened:
        await semaphore.open()
    try:
        yield opened
    finally:
        for semaphore in opened:
            await semaphore.close()


def in_order(*names: str, limit: int | Limit = 1) -> list[tuple[str, int | Limit]]:
    return [(name, limit) for name in sorted(names, key=order_of)]


async def begun(
    semaphore: FairSemaphore, *wanted: tuple[str, int | Limit], **options: Any
) -> PermitSet:
    permits = await semaphore.acquire_all(wanted, **options)
    permits.begin()
    return permits


@in_asyncio
async def test_permits_that_wait_for_others_are_held(server: RedisServer, outside: Outside) -> None:
    async with nodes(server, 2) as (one, other):
        blocker = await other.acquire(ALL, 1)
        waiting = asyncio.ensure_future(one.acquire_all(in_order(ALL, DOMAIN, HOST)))
        await eventually(lambda: outside_has(outside, {HOST: 1, DOMAIN: 1, ALL: 1}))
        assert not waiting.done()
        blocker.release()
        permits = await waiting
        assert [permit.scope for permit in permits.permits] == [HOST, DOMAIN, ALL]
        permits.begin()
        permits.release()
        permits.release()
        await eventually(lambda: outside_has(outside, {}))


async def outside_has(outside: Outside, held: dict[str, int]) -> bool:
    return {
        name: sum(outside.held(name).values()) for name in (HOST, DOMAIN, ALL) if outside.held(name)
    } == held


@pytest.mark.parametrize("way", ["timeout", "cancelled", "drained"])
@in_asyncio
async def test_nothing_is_left_when_a_later_permit_does_not_come(
    server: RedisServer, outside: Outside, way: str
) -> None:
    seen = Recorder()
    async with nodes(server, 2, observers=[seen]) as (one, other):
        blocker = await other.acquire(ALL, 1)
        timeout = 0.05 if way == "timeout" else None
        waiting = asyncio.ensure_future(one.acquire_all(in_order(HOST, ALL), timeout))
        if way != "timeout":
            await eventually(lambda: outside_has(outside, {HOST: 1, ALL: 1}))
            waiting.cancel() if way == "cancelled" else one.drain()
        expected = {"timeout": AcquireTimeoutError, "drained": ClosedError}.get(
            way, asyncio.CancelledError
        )
        with pytest.raises(expected) as raised:
            await waiting
        assert list(one.permits()) == []
        assert timeout is None or str(raised.value).startswith("no permit for 'all' within")
        await eventually(lambda: outside_has(outside, {ALL: 1}))
        timed_out = [e.permit.scope for e in seen.events if isinstance(e, AcquireTimedOut)]
        assert timed_out == [ALL] * bool(timeout)
        blocker.release()


@in_asyncio
async def test_a_start_counts_from_when_the_request_begins(server: RedisServer) -> None:
    """Two requests have waited for `all`, for longer than their host's delay."""
    delay_s = 0.3
    wanted: list[tuple[str, int | Limit]] = [(HOST, Limit(5, delay=delay_s)), (ALL, 1)]
    begins: list[float] = []

    async def request(semaphore: FairSemaphore) -> None:
        permits = await begun(semaphore, *wanted)
        begins.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.01)
        permits.release()

    async with nodes(server, 3) as (one, two, other):
        blocker = await other.acquire(ALL, 1)
        requests = [asyncio.ensure_future(request(node)) for node in (one, two, one)]
        await asyncio.sleep(2.5 * delay_s)
        blocker.release()
        await asyncio.gather(*requests)
    assert min(later - one for one, later in itertools.pairwise(begins)) >= delay_s - 0.005


@in_asyncio
async def test_one_that_is_lost_while_it_waits_is_asked_for_again(
    server: RedisServer, outside: Outside
) -> None:
    async with nodes(server, 2) as (one, other):
        blocker = await other.acquire(ALL, 1)
        waiting = asyncio.ensure_future(one.acquire_all(in_order(HOST, ALL)))
        await eventually(lambda: outside_has(outside, {HOST: 1, ALL: 1}))
        await other.admin.evict(one.node)
        lost = next(permit for permit in one.permits() if permit.scope == HOST)
        lost._account.lose_all()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert lost.stage is Stage.RELEASED
        await eventually(lambda: outside_has(outside, {HOST: 1, ALL: 1}))
        blocker.release()
        permits = await waiting
        assert not [permit for permit in permits.permits if permit.lost]
        permits.release()


@in_asyncio
async def test_the_loss_of_any_ends_what_runs(server: RedisServer) -> None:
    async with nodes(server, 1) as (one,):
        for scope in (HOST, DOMAIN, ALL):
            permits = await begun(one, *in_order(HOST, DOMAIN, ALL))
            lost = next(permit for permit in permits.permits if permit.scope == scope)
            with pytest.raises(PermitLostError), permits.until_lost():
                asyncio.get_running_loop().call_soon(lost.lose, "it is gone")
                await asyncio.sleep(60)
            permits.release()


@in_asyncio
async def test_the_site_s_answer_is_noted_on_its_permit_and_its_latency_on_all(
    server: RedisServer,
) -> None:
    async with nodes(server, 1) as (one,):
        refused = await begun(one, *in_order("my own", HOST, ALL))
        assert refused.site_permit is refused.permits[1]
        refused.site_permit.refused()
        refused.release()
        assert [permit.outcome is None for permit in refused.permits] == [True, False, True]
        answered = await begun(one, *in_order(DOMAIN, ALL))
        assert answered.site_permit is answered.permits[0]
        answered.site_permit.answered(0.5)
        answered.release()
        assert [permit.outcome and permit.outcome.latency for permit in answered.permits] == [
            0.5,
            0.5,
        ]
        assert (await begun(one, *in_order("proxy:a:1", ALL))).site_permit is None
