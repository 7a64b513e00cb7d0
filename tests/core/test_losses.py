"""Connections that are cut, servers that stop, nodes that vanish: what is lost, and what is not."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from semaphore_middleware import Admin, FairSemaphore, Permit, PermitLostError
from semaphore_middleware.core.observer import PermitLost, Reconnected, StoreLost
from tests.support.nodes import ENDLESS_S, Outside, Recorder, eventually, in_asyncio
from tests.support.servers import RedisServer

SHORT_LEASE_S = 1.0  # seconds: a lease that a test waits to see the end of
LASTING = 6.0  # seconds: a lease that outlives a cut or two


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
    semaphore = FairSemaphore(
        server.url,
        lease=lease,
        recovery_wait=recovery_wait,
        observers=[recorder],
    )
    return semaphore, recorder


async def at_the_site(semaphore: FairSemaphore, held: int, waiting: int) -> None:
    """Until the server knows of so many permits held and requests waiting."""

    async def so() -> bool:
        async with Admin(semaphore.url) as admin:  # a new one: connections are cut here
            seen = await admin.inspect("s")
        return (seen.held, seen.waiting) == (held, waiting)

    await eventually(so)


# The connection ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kinds", [["normal"], ["pubsub"], ["normal", "pubsub"]])
@in_asyncio
async def test_a_cut_connection_loses_nothing(server: RedisServer, kinds: list[str]) -> None:
    a, seen = watched(server, lease=LASTING)
    b, _ = watched(server, lease=LASTING)
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
    assert server.members() == {}


@in_asyncio
async def test_connections_cut_all_the_time_only_slow_a_race_down(server: RedisServer) -> None:
    inside = most = 0

    async def work(semaphore: FairSemaphore) -> None:
        nonlocal inside, most
        async with semaphore.permit("s", 2):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.005)
            inside -= 1

    async def cut() -> None:
        client = server.client()
        for kind in ("normal", "pubsub") * 10:
            await asyncio.sleep(0.02)
            client.client_kill_filter(_type=kind, skipme=True)

    (a, _), (b, _) = watched(server, lease=LASTING), watched(server, lease=LASTING)
    async with a, b:
        await asyncio.gather(cut(), *(work(each) for each in (a, b) * 100))
    assert most == 2
    assert server.members() == {}


# The server stands still ------------------------------------------------------------------------


@in_asyncio
async def test_a_server_that_stops_for_less_than_a_lease_loses_nothing(server: RedisServer) -> None:
    semaphore, seen = watched(server, lease=LASTING)
    async with semaphore, semaphore.permit("s", 2):
        server.freeze()
        waiting = asyncio.create_task(semaphore.acquire("s", 2))
        await asyncio.sleep(0.2)  # long enough to be heard of, far less than the lease
        server.thaw()
        (await waiting).release()
    assert seen.count(PermitLost) == 0


@in_asyncio
async def test_a_server_that_stops_for_longer_ends_what_runs(server: RedisServer) -> None:
    semaphore, seen = watched(server, lease=SHORT_LEASE_S)
    async with semaphore:
        with pytest.raises(PermitLostError):
            async with semaphore.permit("s", 1):
                server.freeze()
                await asyncio.sleep(ENDLESS_S)
        waiting = asyncio.create_task(semaphore.acquire("s", 1))
        server.thaw()
        (await waiting).release()
    assert seen.count(PermitLost) == 1
    assert server.members() == {}


@in_asyncio
async def test_the_permit_whose_lease_ends_first_is_ended_first(server: RedisServer) -> None:
    """Though it was granted last: it has waited since before the other one was asked for."""
    (a, _), (b, _) = watched(server, lease=LASTING / 2), watched(server, lease=LASTING)
    async with a, b:
        blocker = await b.acquire("s", 1)
        waiting = asyncio.create_task(a.acquire("s", 1))
        await at_the_site(b, 1, 1)
        await asyncio.sleep(LASTING / 10)
        late = await a.acquire("other", 1)
        blocker.release()
        early = await waiting
        server.freeze()

        async def ended() -> bool:
            return early.lost

        assert early.deadline < late.deadline
        await eventually(ended)
        assert not late.lost
        server.thaw()


# The server forgets -----------------------------------------------------------------------------


async def restart(server: RedisServer) -> Outside:
    await asyncio.to_thread(server.restart)
    return Outside(server)


@in_asyncio
async def test_an_empty_server_is_told_what_is_held_and_grants_nothing_for_the_recovery_wait(
    mortal: RedisServer,
) -> None:
    a, by_a = watched(mortal, lease=LASTING, recovery_wait=ENDLESS_S)
    b, by_b = watched(mortal, lease=LASTING, recovery_wait=ENDLESS_S)
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


@in_asyncio
async def test_the_recovery_wait_ends_and_the_crawl_goes_on(mortal: RedisServer) -> None:
    semaphore, seen = watched(mortal, lease=ENDLESS_S, recovery_wait=2 * SHORT_LEASE_S)
    async with semaphore:
        async with semaphore.permit("s", 1):
            await restart(mortal)
            waiting = asyncio.create_task(semaphore.acquire("s", 1))
            await at_the_site(semaphore, 1, 1)
        await waiting
    assert seen.count(StoreLost) == 1
    assert seen.count(PermitLost) == 0


@in_asyncio
async def test_an_old_snapshot_deceives_nobody(mortal: RedisServer) -> None:
    """It shows a permit that has been given back since, and not the one that is held now."""
    a, _ = watched(mortal, lease=SHORT_LEASE_S, recovery_wait=ENDLESS_S)
    b, _ = watched(mortal, lease=LASTING, recovery_wait=ENDLESS_S)
    async with a, b:
        old = await a.acquire("s", 1)
        mortal.client().save()
        old.release()
        now = await b.acquire("s", 1)
        waiting = asyncio.create_task(a.acquire("s", 1))
        outside = await restart(mortal)

        async def old_one_is_over() -> bool:
            return outside.held() == {b.node: 1}

        await eventually(old_one_is_over)
        await at_the_site(a, 1, 1)
        now.release()
        await at_the_site(a, 0, 1)
        assert not waiting.done()
        outside.end_recovery()
        await waiting
    assert mortal.members() == {}


# The node vanishes ------------------------------------------------------------------------------

HOLD = """
import asyncio, sys
from semaphore_middleware import FairSemaphore

async def main():
    async with FairSemaphore(sys.argv[1], lease=1.0) as semaphore:
        await semaphore.acquire("s", 1)
        print("held", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@in_asyncio
async def test_a_killed_node_s_permit_is_handed_on(server: RedisServer) -> None:
    node = await asyncio.to_thread(
        subprocess.Popen, [sys.executable, "-c", HOLD, server.url], stdout=subprocess.PIPE
    )
    assert node.stdout is not None
    with node, node.stdout as output:
        assert await asyncio.to_thread(output.readline) == b"held\n"
        semaphore, _ = watched(server, lease=SHORT_LEASE_S)
        async with semaphore:
            waiting = asyncio.create_task(semaphore.acquire("s", 1))
            await at_the_site(semaphore, 1, 1)
            node.send_signal(signal.SIGKILL)
            (await waiting).release()
    assert server.members() == {}


@in_asyncio
async def test_a_node_that_falls_silent_keeps_nothing(server: RedisServer) -> None:
    """Its tasks have ended and its sockets are closed, and nobody has said goodbye."""
    silent, _ = watched(server, lease=SHORT_LEASE_S)
    semaphore, _ = watched(server, lease=SHORT_LEASE_S)
    before = asyncio.all_tasks()
    await silent.open()
    its_tasks = asyncio.all_tasks() - before
    await silent.acquire("s", 1)
    its_tasks.add(asyncio.create_task(silent.acquire("s", 1)))
    async with semaphore:
        await at_the_site(semaphore, 1, 1)
        waiting: asyncio.Task[Permit] = asyncio.create_task(semaphore.acquire("s", 1))
        await at_the_site(semaphore, 1, 2)
        for task in its_tasks:
            task.cancel()
        (await waiting).release()
    assert server.members() == {}


@in_asyncio
async def test_nothing_begins_under_a_permit_that_is_over(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a process that was stopped between the grant and the start, and has just woken."""
    semaphore, _ = watched(server, lease=LASTING)
    async with semaphore:
        permit = await semaphore.acquire("s", 1)
        with monkeypatch.context() as patch:
            patch.setattr(Permit, "deadline", asyncio.get_running_loop().time())
            with pytest.raises(PermitLostError, match="before its work began"), permit.until_lost():
                pytest.fail("it has begun")
        permit.release()
    assert server.members() == {}
