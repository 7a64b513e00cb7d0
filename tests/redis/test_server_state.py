"""What a server says of its life, and what a node makes of it."""

from __future__ import annotations

import pytest

from semaphore_middleware import FairSemaphore
from semaphore_middleware.redis.server_state import ServerState
from tests.support.nodes import ENDLESS_S, in_asyncio
from tests.support.servers import RedisServer

INFO = {"run_id": "one", "master_replid": "replication", "uptime_in_seconds": "90"}


def state(**info: str) -> ServerState:
    return ServerState.from_info({**INFO, **info}, started_empty=False)


@pytest.mark.parametrize(
    "change",
    [{"run_id": "two"}, {"master_replid": "another"}],
)
def test_whatever_may_lose_data_begins_another_life_of_the_server(change: dict[str, str]) -> None:
    assert state(**change).life != state().life
    assert state().life == state(uptime_in_seconds="91").life


def test_keys_that_were_evicted_begin_another_life_of_a_server_that_evicts() -> None:
    evicts = {"maxmemory_policy": "allkeys-lru", "maxmemory": "100"}
    assert state(**evicts, evicted_keys="1").life != state(**evicts, evicted_keys="0").life
    assert state(evicted_keys="1").life == state().life


@pytest.mark.parametrize(
    ("policy", "maxmemory", "evicted"),
    [("noeviction", "100", None), ("allkeys-lru", "0", None), ("allkeys-lru", "100", 7)],
)
def test_a_server_evicts_if_it_may_and_has_a_bound(
    policy: str, maxmemory: str, evicted: int | None
) -> None:
    found = state(maxmemory_policy=policy, maxmemory=maxmemory, evicted_keys="7")
    assert found.evicted == evicted


@in_asyncio
async def test_one_crawl_s_wait_on_a_flushed_server_is_enough_for_all(server: RedisServer) -> None:
    with server.client() as client:
        client.flushall()
    patient = FairSemaphore(server.url, recovery_wait=0)
    async with patient, patient.permit("a scope", 1):
        pass

    hasty = FairSemaphore(server.url, recovery_wait=ENDLESS_S)
    async with hasty, hasty.permit("another scope", 1) as permit:
        assert not permit.waited
