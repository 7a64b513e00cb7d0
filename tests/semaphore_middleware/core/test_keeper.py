"""An event loop that a callback blocks keeps its leases: a thread renews them, and nothing else."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from typing import Any, Self, TypeVar

import pytest

from semaphore_middleware import AcquireTimeoutError, FairSemaphore, SyncSemaphore
from semaphore_middleware.core import semaphore
from semaphore_middleware.core.observer import ProcessStalled, RoundTrip, StoreLost
from semaphore_middleware.core.permit import Permit
from semaphore_middleware.redis import keeper
from semaphore_middleware.redis.link import Link
from tests.semaphore_middleware.core.test_forks import forked
from tests.semaphore_middleware.redis.test_epoch import be_a_replica_for_a_while
from tests.support.crawls import Log, Patch
from tests.support.nodes import (
    Loop,
    Outside,
    Recorder,
    calls_of,
    eventually,
    in_asyncio,
    until_waiting,
)
from tests.support.servers import RedisServer
from tests.support.times import TIMEOUT_S

T = TypeVar("T")

LEASE_S = 1.0  # these tests wait for the ends of some


def parse_pdf(is_done: threading.Event) -> None:
    is_done.wait()


class BusyNode:
    """A node whose event loop runs in another thread, where tests block it."""

    def __init__(self, server: RedisServer, **options: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.recorder = Recorder()
        observers = [self.recorder]
        self.semaphore = FairSemaphore(server.url, lease=LEASE_S, observers=observers, **options)
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    async def __aenter__(self) -> Self:
        self._thread.start()
        await self.run(self.semaphore.open())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.run(self.semaphore.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        await asyncio.to_thread(self._thread.join)
        self.loop.close()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """On its loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    async def hold(self, limit: int = 1) -> Permit:
        return await self.run(self.semaphore.acquire("s", limit))

    @asynccontextmanager
    async def blocked(self) -> AsyncIterator[None]:
        """A callback blocks its loop."""
        is_done, began = threading.Event(), asyncio.Event()
        here = asyncio.get_running_loop()

        async def block() -> None:
            here.call_soon_threadsafe(began.set)
            parse_pdf(is_done)

        blocking = asyncio.ensure_future(self.run(block()))
        await began.wait()
        try:
            yield
        finally:
            is_done.set()
            await blocking


def connects(patch: Patch) -> list[Any]:
    """The keeper's attempts to connect, from now on."""
    return calls_of(patch, Link, "connect_again")


@pytest.mark.parametrize(
    "leases", [1.75, *(pytest.param(n, marks=pytest.mark.slow) for n in (4, 6))]
)
@in_asyncio
async def test_what_is_held_stays_held(server: RedisServer, leases: float) -> None:
    async with BusyNode(server) as busy:
        permit = await busy.hold()
        async with FairSemaphore(server.url, lease=LEASE_S) as other:
            waiting = asyncio.ensure_future(other.acquire("s", 1))
            async with busy.blocked():
                await asyncio.sleep(leases * LEASE_S)
                assert not waiting.done(), "two at once"
            await busy.run(asyncio.sleep(0.2 * LEASE_S))
            assert (permit.held, waiting.done()) == (True, False)
            permit.release()
            (await waiting).release()
        assert busy.recorder.count(ProcessStalled) == 1


@pytest.mark.parametrize(
    "lose",
    [lambda outside: outside.client.flushall(), be_a_replica_for_a_while],
    ids=["flushall", "replica"],
)
@in_asyncio
async def test_what_is_held_in_a_later_epoch_stays_held(
    server: RedisServer, outside: Outside, lose: Callable[[Outside], object]
) -> None:
    async with BusyNode(server) as busy:
        permit = await busy.hold()
        lose(outside)

        def is_claimed() -> bool:
            kinds = [type(event) for event in busy.recorder.events]
            return StoreLost in kinds and RoundTrip in kinds[kinds.index(StoreLost) :]

        await eventually(is_claimed)
        async with busy.blocked():
            await asyncio.sleep(1.75 * LEASE_S)
        await busy.run(asyncio.sleep(0.2 * LEASE_S))
        assert permit.held


@in_asyncio
async def test_a_blocked_node_is_granted_nothing_and_served_when_it_runs(
    server: RedisServer, outside: Outside
) -> None:
    async with BusyNode(server) as busy:
        await busy.hold(2)
        async with FairSemaphore(server.url, lease=LEASE_S) as other:
            permit = await other.acquire("s", 2)
            waiting = asyncio.ensure_future(busy.hold(2))
            await until_waiting(other, 1)
            async with busy.blocked():
                await until_waiting(other, 0)
                permit.release()
                await asyncio.sleep(1.5 * LEASE_S)
                assert await asyncio.to_thread(outside.held) == {busy.semaphore.node: 1}
                (await other.acquire("s", 2)).release()
            await waiting


@in_asyncio
async def test_while_the_loop_runs_a_mute_server_is_not_its_fault(
    server: RedisServer, monkeypatch: Patch, caplog: Log
) -> None:
    opened = connects(monkeypatch)
    async with BusyNode(server) as busy:
        permit = await busy.hold()
        with server.frozen():
            await asyncio.sleep(LEASE_S)
        assert permit.lost
        permit.release()
    assert not opened
    assert "has blocked" not in caplog.text
    assert busy.recorder.count(ProcessStalled) == 0


@in_asyncio
async def test_one_that_holds_nothing_calls_nobody(server: RedisServer, monkeypatch: Patch) -> None:
    opened = connects(monkeypatch)
    async with BusyNode(server) as busy, FairSemaphore(server.url, lease=LEASE_S) as other:
        (await busy.hold()).release()
        async with other.permit("s", 1):
            waiting = asyncio.ensure_future(busy.hold())
            await until_waiting(other, 1)
            async with busy.blocked():
                await asyncio.sleep(0.7 * LEASE_S)
        (await waiting).release()
    assert not opened


@in_asyncio
async def test_what_an_operator_takes_away_is_not_kept(server: RedisServer) -> None:
    async with BusyNode(server) as busy, FairSemaphore(server.url, lease=LEASE_S) as other:
        permit = await busy.hold()
        waiting = asyncio.ensure_future(other.acquire("s", 1))
        await until_waiting(other, 1)
        async with busy.blocked():
            await asyncio.sleep(0.7 * LEASE_S)
            await other.admin.evict(busy.semaphore.node)
            (await waiting).release()
            await asyncio.sleep(LEASE_S)
        await eventually(lambda: permit.lost)
        permit.release()


@in_asyncio
async def test_one_that_hangs_is_not_helped_for_ever(
    server: RedisServer, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(keeper, "MOST_LEASES", 2)
    async with BusyNode(server) as busy, FairSemaphore(server.url, lease=LEASE_S) as other:
        permit = await busy.hold()
        async with busy.blocked():
            began = time.monotonic()
            (await other.acquire("s", 1)).release()
            assert 2 * LEASE_S < time.monotonic() - began < 4 * LEASE_S
        await eventually(lambda: permit.lost)
        permit.release()


@in_asyncio
async def test_the_log_names_what_blocks_once_for_all_sessions(
    server: RedisServer, caplog: Log
) -> None:
    async with BusyNode(server) as busy:
        other = FairSemaphore(server.url, lease=LEASE_S)
        await busy.run(other.open())
        permits = [await busy.hold(), await busy.run(other.acquire("other", 1))]
        async with busy.blocked():
            await asyncio.sleep(0.8 * LEASE_S)
        for permit in permits:
            permit.release()
        await busy.run(other.close())
    (line,) = [text for text in caplog.messages if "blocked" in text or "stood still" in text]
    assert re.match(r"parse_pdf \(core/test_keeper.py:\d+\) has blocked the event loop for", line)
    assert busy.recorder.count(ProcessStalled) == 1


@in_asyncio
async def test_there_is_one_thread_and_none_after_the_last_close(
    server: RedisServer, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(semaphore, "KEEPER", keeper.Keeper())
    before = threading.enumerate()  # another test may have left a node

    def threads() -> int:
        there = [one for one in threading.enumerate() if one.name == keeper.THREAD]
        return sum(one.is_alive() and one not in before for one in there)

    with SyncSemaphore(server.url) as of_threads, of_threads.permit("s", 1):
        assert threads() == 0, "nobody's callback blocks that loop"
    async with FairSemaphore(server.url), FairSemaphore(server.url):
        assert threads() == 1
    await eventually(lambda: threads() == 0)


def test_a_loop_that_has_ended_is_not_blocked(server: RedisServer, caplog: Log) -> None:
    async def hold() -> None:
        semaphore = FairSemaphore(server.url, lease=LEASE_S)
        await semaphore.open()
        await semaphore.acquire("s", 1)

    with Loop() as loop:
        loop.run(hold())
    time.sleep(0.6 * LEASE_S)
    assert not [text for text in caplog.messages if "blocked" in text]


def hold_and_block(server: RedisServer, results: Connection) -> None:
    """In a forked child, whose parent has a keeper."""

    async def run() -> None:
        async with FairSemaphore(server.url, lease=LEASE_S) as semaphore:
            async with semaphore.permit("child", 1):
                results.send("holds")
                threading.Event().wait(2 * LEASE_S)  # blocks
            results.send(semaphore.node)

    asyncio.run(run())


@in_asyncio
async def test_a_forked_child_has_a_thread_of_its_own(server: RedisServer) -> None:
    async with FairSemaphore(server.url, lease=LEASE_S) as parent:
        with forked(hold_and_block, server) as heard:
            assert heard() == "holds"
            with pytest.raises(AcquireTimeoutError):
                await parent.acquire("child", 1, timeout=1.5 * LEASE_S)
            assert await asyncio.to_thread(heard)


@in_asyncio
async def test_it_comes_with_the_credentials_that_were_used_last(server: RedisServer) -> None:
    """And calls no function for them."""
    asked = []

    def credentials() -> str:
        asked.append(threading.get_ident())
        return "any"

    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "app", "reset", "on", ">any", "~*", "&*", "+@all")
    # Without a history, whose connection may be made at any time.
    busy = BusyNode(server, credentials=lambda: ("app", credentials()), history=0)
    async with busy:
        permit = await busy.hold()
        with server.client() as client:
            await eventually(client.pubsub_channels)  # all connections are there
        before = len(asked)
        async with busy.blocked():
            await asyncio.sleep(1.5 * LEASE_S)
            assert len(asked) == before
        await busy.run(asyncio.sleep(0.2 * LEASE_S))
        assert permit.held
        permit.release()
    with server.client() as client:
        client.execute_command("ACL", "DELUSER", "app")


@pytest.mark.parametrize("is_of_loop", [False, True])
@in_asyncio
async def test_credentials_that_have_expired_are_asked_for_again(
    server: RedisServer, caplog: Log, is_of_loop: bool
) -> None:
    """Unless only the blocked loop can: then the log says it, once."""
    passwords = ["old"]

    def credentials() -> tuple[str, str]:
        return "app", passwords[-1]

    async def awaited() -> tuple[str, str]:
        return credentials()

    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "app", "reset", "on", ">old", "~*", "&*", "+@all")
    given = awaited if is_of_loop else credentials
    # Without a history, whose connection may be made at any time.
    async with BusyNode(server, credentials=given, history=0) as busy:
        permit = await busy.hold()
        with server.client() as client:
            await eventually(client.pubsub_channels)  # all connections are there
            passwords.append("new")
            client.execute_command("ACL", "SETUSER", "app", "resetpass", ">new")
        async with busy.blocked():
            await asyncio.sleep(1.5 * LEASE_S)
        await busy.run(asyncio.sleep(0.2 * LEASE_S))
        assert (permit.held, permit.lost) == (not is_of_loop, is_of_loop)
        permit.release()
    refused = re.compile("Leases .* cannot be renewed: .* does not accept this user name and pass")
    assert sum(bool(refused.match(line)) for line in caplog.messages) == is_of_loop
    with server.client() as client:
        client.execute_command("ACL", "DELUSER", "app")


async def test_a_removal_that_is_cancelled_lets_the_thread_end() -> None:
    """An error in a thread fails the test."""

    class Beating:
        async def keep(self) -> None:
            await asyncio.sleep(TIMEOUT_S)

    kept, beating = keeper.Keeper(), Beating()
    kept.add(beating)  # type: ignore[arg-type]
    ended = kept._ended
    removal = asyncio.create_task(kept.remove(beating))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    removal.cancel()
    with pytest.raises(asyncio.CancelledError):
        await removal
    await asyncio.wrap_future(ended)
