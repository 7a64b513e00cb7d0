"""Connections that are cut, servers that stop, nodes that vanish: what is lost, and what is not."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import pytest

from semaphore_middleware import Admin, FairSemaphore, PermitLostError
from semaphore_middleware.core.observer import PermitLost, Reconnected, StoreLost
from semaphore_middleware.redis import recovery
from tests.support.nodes import ENDLESS_S, Outside, Recorder, eventually, in_asyncio
from tests.support.servers import RedisServer

SHORT_LEASE_S = 1.0  # seconds: a lease that a test waits to see the end of
LASTING_S = 6.0  # seconds: a lease that outlives a cut or two


@pytest.fixture
def mortal() -> Iterator[RedisServer]:
    """A server that is going to be restarted: what it granted before is of another life."""
    server = RedisServer().start()
    try:
        yield server
    finally:
        server.remove()


def watched(
    server: RedisServer, lease: float, recovery_wait: float | None = None
) -> tuple[FairSemaphore, Recorder]:
    recorder = Recorder()
    return FairSemaphore(
        server.url, lease=lease, recovery_wait=recovery_wait, observers=[recorder]
    ), recorder


async def at_the_site(semaphore: FairSemaphore, held: int, waiting: int) -> None:
    """Until the server knows of so many permits held and requests waiting."""

    async def so() -> bool:
        async with Admin(semaphore.url) as admin:  # a new one: connections are cut here
            seen = await admin.inspect("s")
        return (seen.held, seen.waiting) == (held, waiting)

    await eventually(so)


def said_of_the_wait(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The log's lines about the recovery wait, without numbers and the server's name."""
    lines = [r.getMessage() for r in caplog.records if r.name.endswith(".recovery")]
    return [re.sub(r"[\d.]+ s\b", "N s", line).partition(" is new, ")[0][-40:] for line in lines]


# The connection, and a server that stands still -------------------------------------------------


@pytest.mark.parametrize("kinds", [["normal"], ["pubsub"], ["normal", "pubsub"]])
@in_asyncio
async def test_a_cut_connection_loses_nothing(
    server: RedisServer, kinds: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    (a, seen), (b, _) = watched(server, lease=LASTING_S), watched(server, lease=LASTING_S)
    client = server.client()
    async with a, b:
        permit = await a.acquire("s", 1)
        for giver, taker in ((a, b), (b, a), (a, b)):
            waiting = asyncio.create_task(taker.acquire("s", 1))
            await at_the_site(giver, 1, 1)
            for kind in kinds:
                client.client_kill_filter(_type=kind, skipme=True)
            permit.release()
            permit = await waiting
        permit.release()
        await at_the_site(b, 0, 0)
    assert seen.count(PermitLost) == 0
    assert ("normal" in kinds) == (seen.count(Reconnected) > 0)
    assert said_of_the_wait(caplog) == [], "there is none"


@pytest.mark.parametrize(
    ("lease", "lost"), [(LASTING_S, 0), (SHORT_LEASE_S, 1)], ids=["less than a lease", "longer"]
)
@in_asyncio
async def test_a_server_that_stands_still_for_longer_than_a_lease_ends_what_runs(
    server: RedisServer, lease: float, lost: int, caplog: pytest.LogCaptureFixture
) -> None:
    semaphore, seen = watched(server, lease)
    async with semaphore:
        permit = await semaphore.acquire("s", 2)
        server.freeze()
        waiting = asyncio.create_task(semaphore.acquire("s", 2))
        if lost:
            with pytest.raises(PermitLostError), permit.until_lost():
                await asyncio.sleep(ENDLESS_S)
            permit.release()
            assert "No permit is granted until it can be used again" in caplog.text
        server.thaw()
        (await waiting).release()
    assert seen.count(PermitLost) == lost
    assert server.members() == {}


# The server forgets -----------------------------------------------------------------------------


async def restart(server: RedisServer) -> Outside:
    await asyncio.to_thread(server.restart)
    return Outside(server)


@in_asyncio
async def test_an_empty_server_is_told_what_is_held_and_grants_nothing_for_the_recovery_wait(
    mortal: RedisServer,
) -> None:
    a, by_a = watched(mortal, lease=LASTING_S, recovery_wait=ENDLESS_S)
    b, by_b = watched(mortal, lease=LASTING_S, recovery_wait=ENDLESS_S)
    async with a, b:
        held = [await each.acquire("s", 2) for each in (a, b)]
        waiting = [asyncio.create_task(each.acquire("s", 2)) for each in (b, a)]
        await at_the_site(a, 2, 2)
        outside = await restart(mortal)
        await at_the_site(a, 2, 2)
        held[0].release()
        await at_the_site(a, 1, 2)
        assert by_a.count(StoreLost) + by_b.count(StoreLost) >= 1, "of those who say hello first"
        assert not [task for task in waiting if task.done()]
        outside.end_recovery()
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        held[1].release()
        for permit in await asyncio.gather(*waiting):
            permit.release()
    assert not held[1].lost
    assert mortal.members() == {}


# The wait, and how it ends ----------------------------------------------------------------------


@pytest.mark.parametrize("how", ["by itself", "by trust", "after a cut"])
@in_asyncio
async def test_the_log_counts_the_wait_down_and_says_when_it_is_over(
    server: RedisServer,
    outside: Outside,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(recovery, "LOG_INTERVAL_S", 0.1)
    wait = 0.9 if how == "by itself" else ENDLESS_S
    outside.client.flushall()
    semaphore, seen = watched(server, lease=SHORT_LEASE_S, recovery_wait=wait)
    async with semaphore:
        waiting = asyncio.create_task(semaphore.acquire("s", 1))

        async def has_counted() -> bool:
            return how == "by itself" or len(said_of_the_wait(caplog)) >= 3

        await eventually(has_counted)
        if how == "by trust":
            await semaphore.admin.trust()
        elif how == "after a cut":
            outside.end_recovery()
            outside.client.client_kill_filter(_type="normal", skipme=True)
        (await waiting).release()
        over = "The wait is over: permits are granted again."[-40:]

        async def is_over() -> bool:
            return said_of_the_wait(caplog)[-1] == over

        await eventually(is_over)
    first, *counted, _ = said_of_the_wait(caplog)
    assert first == server.url[-40:]
    if counted or how != "by itself":  # a busy process may find that it is over by then
        assert set(counted) == {"No permit is granted for another N s."}
    assert seen.count(StoreLost) == 1


@in_asyncio
async def test_the_log_warns_of_a_server_that_may_evict_keys(
    server: RedisServer, outside: Outside, caplog: pytest.LogCaptureFixture
) -> None:
    outside.client.config_set("maxmemory", 10**9)
    outside.client.config_set("maxmemory-policy", "allkeys-lru")
    async with FairSemaphore(server.url, recovery_wait=0):
        assert "set its maxmemory-policy to noeviction" in caplog.text
