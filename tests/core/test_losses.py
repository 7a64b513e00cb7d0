"""Connections that are cut, servers that stop, nodes that vanish: what is lost, and what is not."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from redis.exceptions import ResponseError

from semaphore_middleware import (
    AcquireTimeoutError,
    Admin,
    FairSemaphore,
    Permit,
    PermitLostError,
)
from semaphore_middleware.core.observer import PermitLost, Reconnected, StoreLost
from semaphore_middleware.redis import recovery
from semaphore_middleware.redis.connection import Connection
from semaphore_middleware.redis.location import Server
from tests.chaos.machine import Clock, why_no_server_clock
from tests.support.nodes import ENDLESS_S, KEYS, Outside, Recorder, eventually, in_asyncio
from tests.support.servers import RedisServer, free_port

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


@pytest.mark.skipif(bool(why_no_server_clock()), reason=why_no_server_clock())
@in_asyncio
async def test_an_empty_server_whose_clock_is_set_ahead_after_its_start_grants_nothing() -> None:
    """As by NTP after a boot: by its own clock it has been up for an hour."""
    with TemporaryDirectory() as directory:
        clock = Clock(Path(directory) / "clock")
        server = RedisServer(environment=clock.environment).start()
        try:
            a, _ = watched(server, lease=LASTING, recovery_wait=ENDLESS_S)
            async with a, a.permit("s", 1):
                await asyncio.to_thread(server.restart)
                clock.jump(3600)
                with server.client() as client:
                    assert client.info("server")["uptime_in_seconds"] >= 3600
                b, by_b = watched(server, lease=LASTING, recovery_wait=ENDLESS_S)
                async with b:
                    waiting = asyncio.create_task(b.acquire("s", 1))
                    await at_the_site(b, 1, 1)
                    assert by_b.count(StoreLost) == 1
                    waiting.cancel()
        finally:
            server.remove()


@in_asyncio
async def test_where_the_address_moves_to_another_server_its_wait_outlasts_the_old_permits(
    server: RedisServer, mortal: RedisServer
) -> None:
    """The new one is empty and has run for long; the old holder cannot reach it."""
    inside = most = 0

    async def work(semaphore: FairSemaphore) -> None:
        nonlocal inside, most
        async with semaphore.permit("s", 1):
            inside += 1
            most = max(most, inside)
            try:
                if semaphore is cut_off:
                    await asyncio.sleep(ENDLESS_S)
            finally:
                inside -= 1

    with server.client() as client:
        client.delete(KEYS.epoch)
    cut_off, _ = watched(mortal, lease=SHORT_LEASE_S)
    moved, seen = watched(mortal, lease=SHORT_LEASE_S)
    async with cut_off, moved:
        old = asyncio.create_task(work(cut_off))
        await at_the_site(cut_off, 1, 0)
        new = asyncio.create_task(work(moved))
        await at_the_site(cut_off, 1, 1)
        moved._session._server = Server(server.url, SHORT_LEASE_S)  # type: ignore[union-attr]
        mortal.kill()
        await new
        assert seen.count(StoreLost) == 1
        with pytest.raises(PermitLostError):
            await old
    assert most == 1


@in_asyncio
async def test_a_failover_and_back_within_a_renewal_costs_a_wait_at_the_next_one() -> None:
    """The run id is the same, and no connection was cut; the replica had lagged behind."""
    quick = ("--repl-diskless-sync-delay", "0")
    replica = RedisServer(*quick, tcp_port=free_port(), started_empty=False).start()
    master = RedisServer(*quick, tcp_port=free_port()).start()
    try:
        a, by_a = watched(master, lease=LASTING, recovery_wait=ENDLESS_S)
        b, _ = watched(master, lease=LASTING, recovery_wait=ENDLESS_S)
        async with a, b:
            held = await a.acquire("s", 2)
            outside = Outside(master)
            run_id = outside.client.info("server")["run_id"]
            with replica.client() as other:
                before = {key: other.dump(key) for key in other.keys("{semaphore}:*")}
                assert not before, "it has seen nothing of the grant"
                outside.client.replicaof("127.0.0.1", replica.tcp_port)

                async def has_followed() -> bool:
                    return bool(outside.client.info("replication")["master_link_status"] == "up")

                await eventually(has_followed)
                outside.client.replicaof("NO", "ONE")
                other.replicaof("127.0.0.1", master.tcp_port)
            assert outside.client.info("server")["run_id"] == run_id

            async def lost() -> bool:
                return by_a.count(StoreLost) == 1

            await eventually(lost)
            waiting = asyncio.create_task(b.acquire("s", 1))
            await at_the_site(a, 1, 1)
            held.release()
            await at_the_site(a, 0, 1)
            assert not waiting.done()
            outside.end_recovery()
            await waiting
    finally:
        master.remove()
        replica.remove()


@in_asyncio
async def test_evicting_that_is_turned_on_live_is_noticed_at_the_next_renewal(
    server: RedisServer, outside: Outside
) -> None:
    a, by_a = watched(server, lease=LASTING / 2, recovery_wait=ENDLESS_S)
    b, _ = watched(server, lease=LASTING / 2, recovery_wait=ENDLESS_S)
    async with a, b:
        held = await a.acquire("s", 1)

        def term() -> float:
            return outside.look("s")[0].accounts[a.node]["term"]

        first_term = term()
        outside.client.config_set("maxmemory", 10**9)
        outside.client.config_set("maxmemory-policy", "allkeys-lru")

        async def has_claimed() -> bool:
            return term() > first_term

        await eventually(has_claimed)  # after the wait it could not
        assert by_a.count(StoreLost) == 1
        outside.end_recovery()
        outside.client.config_set("maxmemory", 1)
        with suppress(ResponseError):
            outside.client.set("x", 1)
        assert outside.client.dbsize() == 0
        outside.client.config_set("maxmemory", 10**9)
        with pytest.raises(AcquireTimeoutError):
            await b.acquire("s", 1, timeout=0.2)
        await at_the_site(a, 1, 0)
        assert not held.lost, "it has been registered again"
        held.release()


# The wait, and how it ends ----------------------------------------------------------------------


@in_asyncio
async def test_trust_lets_in_at_once_who_waits_on_any_node(
    server: RedisServer, outside: Outside
) -> None:
    outside.client.flushall()
    a, _ = watched(server, lease=ENDLESS_S, recovery_wait=ENDLESS_S)
    b, _ = watched(server, lease=ENDLESS_S, recovery_wait=ENDLESS_S)
    async with a, b:
        waiting = [asyncio.create_task(each.acquire("s", 2)) for each in (a, b)]
        await at_the_site(a, 0, 2)
        await a.admin.trust()
        for permit in await asyncio.gather(*waiting):
            permit.release()


@in_asyncio
async def test_what_the_living_hold_when_an_operator_vouches_for_the_opposite_is_ended(
    mortal: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node comes back when the operator has vouched."""
    may_connect = asyncio.Event()

    async def connect() -> Connection:
        await may_connect.wait()
        return await Server(mortal.url, ENDLESS_S).connect()

    semaphore, seen = watched(mortal, lease=ENDLESS_S, recovery_wait=ENDLESS_S)
    async with semaphore:
        assert semaphore._session is not None
        monkeypatch.setattr(semaphore._session._server, "connect", connect)
        with pytest.raises(PermitLostError):
            async with semaphore.permit("s", 1):
                await asyncio.to_thread(mortal.restart)
                async with Admin(mortal.url) as operator:
                    await operator.trust()
                may_connect.set()
                await semaphore.acquire("other", 1)
                await asyncio.sleep(ENDLESS_S)
    assert seen.count(PermitLost) == 1


def said_of_the_wait(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The log's lines about the recovery wait, without numbers and the server's name."""
    lines = [r.getMessage() for r in caplog.records if r.name.endswith(".recovery")]
    return [re.sub(r"[\d.]+ s\b", "N s", line).partition(" is new, ")[0][-40:] for line in lines]


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
    semaphore, _ = watched(server, lease=SHORT_LEASE_S, recovery_wait=wait)
    async with semaphore:
        waiting = asyncio.create_task(semaphore.acquire("s", 1))

        async def has_counted() -> bool:
            return len(said_of_the_wait(caplog)) >= 3

        await eventually(has_counted)
        if how == "by trust":
            await semaphore.admin.trust()
        elif how == "after a cut":
            outside.end_recovery()
            outside.client.client_kill_filter(_type="normal", skipme=True)
        (await waiting).release()

        async def is_over() -> bool:
            return (
                said_of_the_wait(caplog)[-1] == "The wait is over: permits are granted again."[-40:]
            )

        await eventually(is_over)
    first, *counted, _ = said_of_the_wait(caplog)
    assert first == server.url[-40:]
    assert set(counted) == {"No permit is granted for another N s."}


@in_asyncio
async def test_the_log_counts_nothing_down_where_there_is_no_wait(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    semaphore, _ = watched(server, lease=SHORT_LEASE_S)
    async with semaphore, semaphore.permit("s", 1):
        await asyncio.sleep(SHORT_LEASE_S / 2)  # a renewal
    assert said_of_the_wait(caplog) == []


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
