"""When a session speaks, what it does when its server does not, and when time is up."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from semaphore_middleware.core.observer import ProcessStalled
from semaphore_middleware.core.permit import Permit, Stage
from semaphore_middleware.core.session import (
    ACCOUNTS_AT_ONCE,
    BATCH_DELAY_S,
    SHUTDOWN_TIMEOUT_S,
    TIMER_LAG_S,
)
from semaphore_middleware.model.lease import RENEWAL
from semaphore_middleware.model.limits import Limit
from tests.core.lone_node import FULL, LEASE_S, TURN_S
from tests.core.virtual_time import CALL_TIMEOUT_S, Setup, in_virtual_time, settle

LIMIT = Limit(9)
RENEWAL_S = RENEWAL * LEASE_S


async def keep_busy(setup: Setup) -> None:
    """Let requests come fast."""
    for _ in range(200):
        setup.session.request("other", LIMIT).release()
    await settle()
    setup.server.calls.clear()


async def hold(setup: Setup, scope: str = "s") -> Permit:
    permit = setup.session.request(scope, LIMIT)
    await permit.granted()
    await settle()
    return permit


async def lost(permit: Permit) -> None:
    is_lost = asyncio.Event()
    permit.end_with_loss(is_lost.set)
    await is_lost.wait()


# What is said at once, and what waits for more to be said in the same call ------------------------


@in_virtual_time
async def test_who_asks_for_little_asks_at_once_and_a_busy_node_gathers() -> None:
    async with Setup() as setup:
        await asyncio.sleep(1)
        setup.server.calls.clear()
        now = setup.loop.time()
        await setup.session.request("s", LIMIT).granted()
        assert setup.server.times == [now]
        await keep_busy(setup)
        permits = [setup.session.request(scope, LIMIT) for scope in "ab"]
        await settle()
        assert setup.server.times == []
        for permit in permits:
            await permit.granted()
        assert setup.server.times == [pytest.approx(now + BATCH_DELAY_S)]


@in_virtual_time
async def test_of_a_full_site_all_is_said_at_once_but_one_call_at_a_time() -> None:
    async with Setup() as setup:
        setup.server.changes = {"available": FULL}
        first = await hold(setup)
        await keep_busy(setup)
        setup.server.round_trip = 1.0
        now = setup.loop.time()
        permits = [setup.session.request("s", LIMIT)]
        await settle()
        permits += [setup.session.request("s", LIMIT) for _ in range(3)]
        for permit in permits:
            await permit.granted()
        first.release()
        await settle()
        assert setup.server.times == [now, now + 1.0, now + 2.0]
        said = [one[-1] for _, one in setup.server.calls]
        assert [(one.asked, one.returned) for one in said] == [(2, 0), (5, 0), (5, 1)]


@in_virtual_time
async def test_what_nobody_has_used_is_returned_when_the_turn_of_all_accounts_ends() -> None:
    async with Setup() as setup:
        await asyncio.sleep(1.5 * TURN_S)
        permits = [await hold(setup, scope) for scope in "ab"]
        setup.server.calls.clear()
        for permit in permits:
            permit.release()
        await asyncio.sleep(TURN_S)
        assert setup.server.times == [], "others may use them"
        await asyncio.sleep(TURN_S)
        assert setup.server.times == [3 * TURN_S], "in one call"
        assert [said.returned for said in setup.server.calls[0][1]] == [1, 1]
        assert setup.session.accounts == {}


@in_virtual_time
async def test_what_is_held_is_renewed_every_third_of_a_lease_and_nothing_is_said_of_nothing() -> (
    None
):
    async with Setup() as setup:
        permit = await hold(setup)
        setup.server.calls.clear()
        await asyncio.sleep(10 * LEASE_S)
        gaps = [later - time for time, later in pairwise(setup.server.times)]
        assert len(gaps) == 32
        assert max(gaps) <= RENEWAL_S + 0.001
        assert setup.server.looks >= len(gaps), "is it still the server that it knows?"
        permit.release()
        await asyncio.sleep(LEASE_S)
        setup.server.calls.clear()
        await asyncio.sleep(10 * LEASE_S)
        assert setup.server.times == []


@pytest.mark.parametrize("way", ["reply", "channel", "both"])
@in_virtual_time
async def test_a_node_asks_again_when_the_server_said(way: str) -> None:
    async with Setup() as setup:
        setup.server.granted = 0
        setup.server.changes = {"retry_in": {"reply": 4.0, "channel": None, "both": 9.0}[way]}
        permit = setup.session.request("s", LIMIT)
        await settle()
        setup.server.granted, setup.server.changes = None, {}
        if way != "reply":
            setup.server.tell(b"retry 4000 s")  # the latest word counts
        now = setup.loop.time()
        await permit.granted()
        assert setup.loop.time() == now + 4.0 - TIMER_LAG_S


@in_virtual_time
async def test_one_round_trip_carries_no_more_than_can_be_answered_soon() -> None:
    async with Setup() as setup:
        scopes = [f"s{i}" for i in range(2 * ACCOUNTS_AT_ONCE + 1)]
        for scope in scopes:
            setup.session.request(scope, LIMIT)
        await settle()
        assert setup.server.sizes == [ACCOUNTS_AT_ONCE, ACCOUNTS_AT_ONCE, 1]
        assert [one.scope for _, said in setup.server.calls for one in said] == scopes


# Leases -------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_node_that_was_stopped_says_so_and_ends_what_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Setup() as setup:
        permit = await hold(setup)
        setup.loop.clock += LEASE_S
        setup.server.tell(b"granted 1 2 s")  # it lay in the socket
        assert permit.lost
        await settle()
        assert [type(one) for one in setup.events].count(ProcessStalled) == 1
        assert "This process stood still for 70.0 s" in caplog.text
        permit.release()


# Faults -------------------------------------------------------------------------------------------


@in_virtual_time
async def test_what_has_run_into_a_time_out_is_sent_again_in_smaller_parts_that_grow_again() -> (
    None
):
    async with Setup() as setup:
        setup.server.is_silent = True
        permits = [setup.session.request(f"s{i}", LIMIT) for i in range(20)]
        await asyncio.sleep(8 * CALL_TIMEOUT_S)
        assert setup.server.sizes[:6] == [20, 10, 5, 2, 1, 1], "never none"
        setup.server.is_silent = False
        setup.server.calls.clear()
        await asyncio.sleep(2 * CALL_TIMEOUT_S)
        assert all(permit.stage is Stage.HELD for permit in permits)
        assert setup.server.sizes[:6] == [1, 2, 3, 4, 5, 5], "each account once"


# Closing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_silent", [False, True])
@in_virtual_time
async def test_closing_takes_no_longer_than_the_server_does_if_it_answers_soon(
    is_silent: bool,
) -> None:
    setup = Setup()
    async with setup:
        held, in_hand = [await hold(setup) for _ in range(2)]
        in_hand.release()
        setup.server.granted, setup.server.is_silent = 2, is_silent
        setup.session.request("s", LIMIT).release()
        now = setup.loop.time()
    assert setup.loop.time() == now + is_silent * SHUTDOWN_TIMEOUT_S
    assert held.stage is Stage.RELEASED
    assert bool(setup.session.accounts) == is_silent


@in_virtual_time
async def test_closing_waits_for_what_was_lost_to_end_and_no_longer() -> None:
    async with Setup() as setup:
        permit = await hold(setup)
        setup.server.is_silent = True
        await lost(permit)
        setup.server.is_silent = False
        await asyncio.sleep(2 * CALL_TIMEOUT_S)
        setup.loop.call_later(0.5, permit.release)
        now = setup.loop.time()
        await setup.session.stop()
        assert setup.loop.time() == now + 0.5
