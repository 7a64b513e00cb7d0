"""What a server says of its life, and what a node makes of it."""

from __future__ import annotations

import pytest

from semaphore_middleware import FairSemaphore
from semaphore_middleware.redis.server_state import ServerState
from tests.support.nodes import ENDLESS_S, in_asyncio
from tests.support.servers import RedisServer

INFO = {"run_id": "one", "uptime_in_seconds": "90", "second_repl_offset": "-1"}


def state(**info: str) -> ServerState:
    return ServerState.from_info({**INFO, **info}, started_empty=False)


def test_a_server_whose_clock_was_set_back_has_not_started_in_the_future() -> None:
    assert state(uptime_in_seconds="-3597").uptime == 0


def test_of_a_server_s_age_only_whole_seconds_that_surely_passed_are_counted() -> None:
    """It tells the difference of two truncated times: 1 may be a twentieth of a second."""
    assert state(uptime_in_seconds="1").uptime == 0
    assert state(uptime_in_seconds="90").uptime == 89


@pytest.mark.parametrize(
    "change",
    [
        {"run_id": "two"},
        {"evicted_keys": "1"},
        {"cmdstat_flushall": "calls=1,usec=5"},
        {"cmdstat_flushdb": "calls=1,usec=5"},
        {"second_repl_offset": "700"},
    ],
)
def test_whatever_may_lose_data_changes_a_server_s_condition(change: dict[str, str]) -> None:
    assert state(**change).condition != state().condition
    assert state().condition == state(uptime_in_seconds="91").condition


def test_a_server_may_have_lost_something_if_it_was_flushed_or_promoted() -> None:
    assert not state().may_have_lost
    assert state(cmdstat_flushall="calls=1,usec=5").may_have_lost
    assert state(second_repl_offset="700").may_have_lost


@pytest.mark.parametrize(
    ("policy", "maxmemory", "evicts"),
    [("noeviction", "100", False), ("allkeys-lru", "0", False), ("allkeys-lru", "100", True)],
)
def test_a_server_evicts_if_it_may_and_has_a_limit(
    policy: str, maxmemory: str, evicts: bool
) -> None:
    assert state(maxmemory_policy=policy, maxmemory=maxmemory).evicts is evicts


@in_asyncio
async def test_one_crawl_s_wait_on_a_flushed_server_is_enough_for_all(server: RedisServer) -> None:
    with server.client() as client:
        client.flushall()
    patient = FairSemaphore(server.url, recovery_wait=0)
    async with patient, patient.permit("a scope", 1):
        pass

    hasty = FairSemaphore(server.url, recovery_wait=ENDLESS_S)
    async with hasty, hasty.permit("another scope, of another bucket", 1) as permit:
        assert not permit.waited
