"""Connections that are cut lose nothing; a server that has lost its data keeps nodes waiting."""

import asyncio
import re

import pytest

from semaphore_middleware import FairSemaphore
from semaphore_middleware.core import calls
from semaphore_middleware.core.observer import PermitLost, Reconnected, StoreLost
from tests.support.crawls import Log
from tests.support.nodes import Outside, Recorder, eventually
from tests.support.servers import RedisServer
from tests.support.simulated import SimulatedServer, in_simulated_time
from tests.support.times import ENDLESS_S


def lines_about_the_wait(caplog: Log) -> list[str]:
    """The log's lines about the recovery wait, without numbers and the server's name."""
    lines = [r.getMessage() for r in caplog.records if r.name.endswith(".calls")]
    return [re.sub(r"[\d.]+ s\b", "N s", line).partition(" is new, ")[0][-40:] for line in lines]


@pytest.mark.parametrize("kinds", [["normal"], ["pubsub"], ["normal", "pubsub"]])
async def test_a_cut_connection_loses_nothing(
    server: RedisServer, outside: Outside, kinds: list[str], caplog: Log
) -> None:
    caplog.set_level("INFO")
    seen = Recorder()
    async with (
        FairSemaphore(server.url, observers=[seen]) as a,
        FairSemaphore(server.url) as b,
    ):
        permit = await a.acquire("s", 1)
        for taker in (b, a, b):
            waiting = asyncio.create_task(taker.acquire("s", 1))
            await eventually(outside.waiting)
            for kind in kinds:
                outside.client.client_kill_filter(_type=kind, skipme=True)
            permit.release()
            permit = await waiting
        permit.release()
    assert seen.count(PermitLost) == 0
    assert ("normal" in kinds) == (seen.count(Reconnected) > 0)
    assert lines_about_the_wait(caplog) == [], "there is none"


@pytest.mark.parametrize("how", ["by itself", "by trust", "after a cut"])
@in_simulated_time
async def test_the_log_counts_the_wait_down_and_has_its_end(caplog: Log, how: str) -> None:
    caplog.set_level("INFO")
    wait = 3.5 * calls.LOG_INTERVAL_S if how == "by itself" else ENDLESS_S
    server, seen = SimulatedServer(lease=15.0, recovery_wait=wait), Recorder()
    server.itself.flush()
    async with server.node(observers=[seen]) as node:
        waiting = asyncio.create_task(node.acquire("s", 1))
        await eventually(lambda: len(lines_about_the_wait(caplog)) == 4)
        if how == "by trust":
            await node.admin.trust()
        elif how == "after a cut":
            server.end_recovery()
            server.network.break_all()
        (await waiting).release()
        over = "permits are granted again."
        await eventually(lambda: lines_about_the_wait(caplog)[-1].endswith(over))
    first, *counted, _ = lines_about_the_wait(caplog)
    assert first == "redis://simulated:6379/0"
    assert counted == 3 * ["No permit is granted for another N s."]
    assert seen.count(StoreLost) == 0, "it may have been new"


@in_simulated_time
async def test_permits_that_cannot_be_given_back_are_logged(caplog: Log) -> None:
    server = SimulatedServer(lease=15.0)
    async with server.node() as semaphore:
        await semaphore.acquire("s", 1)
        server.network.freeze_server(ENDLESS_S)
    said = "they are free when their leases end, in 15 s at most."
    assert [line.endswith(said) for line in caplog.messages].count(True) == 1


async def test_a_log_warns_of_eviction(server: RedisServer, outside: Outside, caplog: Log) -> None:
    outside.client.config_set("maxmemory", 10**9)
    outside.client.config_set("maxmemory-policy", "allkeys-lru")
    async with FairSemaphore(server.url, recovery_wait=0):
        assert "set its maxmemory-policy to noeviction" in caplog.text
