"""An event loop that a callback stalls keeps its leases: a thread renews them, and does nothing
else.
"""

from __future__ import annotations

import asyncio
import re
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from types import CodeType
from typing import Any, Self, TypeVar

import pytest
import uvloop

from semaphore_middleware import FairSemaphore, SyncSemaphore
from semaphore_middleware.core import semaphore
from semaphore_middleware.core.observer import ProcessStalled, RoundTrip, StoreLost
from semaphore_middleware.link import renewal_thread
from semaphore_middleware.link.link import Link
from semaphore_middleware.link.renewal_thread import Heartbeat
from tests.core.test_forks import FORK, forked
from tests.support.crawls import Log, Patch
from tests.support.nodes import Loop, Outside, calls_of, eventually, until_waiting
from tests.support.servers import RedisServer
from tests.support.simulated import BusyNode, SimulatedServer, in_simulated_time
from tests.support.times import ENDLESS_S, TIMEOUT_S

T = TypeVar("T")

# In simulated time, where the renewal thread is a host beside the one that is stalled -----------

LEASE_S = 15.0


def connects(patch: Patch) -> list[Any]:
    """The renewal thread's attempts to connect, from now on."""
    return calls_of(patch, Link, "connect_again")


@pytest.mark.parametrize("is_promoted", [False, True], ids=["flushall", "replica"])
@in_simulated_time
async def test_what_is_held_in_a_later_epoch_stays_held(is_promoted: bool) -> None:
    server = SimulatedServer(lease=LEASE_S)
    async with BusyNode(server) as busy:
        permit = await busy.hold()
        if is_promoted:
            server.itself.begin_incarnation(server.itself.snapshot())
        else:
            server.itself.flush()

        def is_claimed() -> bool:
            kinds = [type(event) for event in busy.recorder.events]
            return StoreLost in kinds and RoundTrip in kinds[kinds.index(StoreLost) :]

        await eventually(is_claimed)
        with busy.stalled():
            await asyncio.sleep(1.75 * LEASE_S)
        await asyncio.sleep(0.2 * LEASE_S)
        assert permit.held


@in_simulated_time
async def test_while_the_loop_runs_a_mute_server_is_not_its_fault(
    monkeypatch: Patch, caplog: Log
) -> None:
    opened = connects(monkeypatch)
    server = SimulatedServer(lease=LEASE_S)
    async with BusyNode(server) as busy:
        permit = await busy.hold()
        server.network.freeze_server(LEASE_S)
        await asyncio.sleep(LEASE_S)
        assert permit.lost
        permit.release()
    assert not opened
    assert "has stalled" not in caplog.text
    assert busy.recorder.count(ProcessStalled) == 0


@in_simulated_time
async def test_one_that_holds_nothing_calls_nobody(monkeypatch: Patch) -> None:
    opened = connects(monkeypatch)
    server = SimulatedServer(lease=LEASE_S)
    async with BusyNode(server) as busy, server.node() as other:
        (await busy.hold()).release()
        async with other.permit("s", 1):
            waiting = asyncio.ensure_future(busy.hold())
            await until_waiting(other, 1)
            with busy.stalled():
                await asyncio.sleep(0.7 * LEASE_S)
        (await waiting).release()
    assert not opened


@in_simulated_time
async def test_one_that_hangs_is_not_helped_for_ever() -> None:
    server = SimulatedServer(lease=LEASE_S)
    async with BusyNode(server) as busy, server.node() as other:
        permit = await busy.hold()
        with busy.stalled():
            began = server.world.now
            (await other.acquire("s", 1)).release()
            leases = (server.world.now - began) / LEASE_S
            assert renewal_thread.MOST_LEASES < leases < renewal_thread.MOST_LEASES + 1.1
        await eventually(lambda: permit.lost)
        permit.release()


# In a thread --------------------------------------------------------------------------------------


@pytest.fixture
def quick_beats(monkeypatch: Patch) -> None:
    """A loop counts as stalled after a second, though no lease ends while a test runs."""
    monkeypatch.setattr(renewal_thread, "BEAT", 0.2 / ENDLESS_S)
    monkeypatch.setattr(renewal_thread, "LATE", 1.0 / ENDLESS_S)


class ThreadedNode:
    """A node whose event loop runs in another thread, where tests stall it."""

    def __init__(self, server: RedisServer, **options: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.semaphore = FairSemaphore(server.url, **options)
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

    @asynccontextmanager
    async def stalled(self) -> AsyncIterator[None]:
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


def parse_pdf(is_done: threading.Event) -> None:
    is_done.wait()


async def is_renewed(outside: Outside, node: str) -> None:
    """Wait until the lease of a stalled node would be over."""

    def lease_end() -> float:
        return outside.look("s")[0].entries[node]["lease_end"]

    before = lease_end()
    await eventually(lambda: lease_end() > before)


@pytest.mark.usefixtures("quick_beats")
async def test_it_renews_what_all_sessions_hold_and_the_log_names_what_blocks_once(
    server: RedisServer, outside: Outside, caplog: Log
) -> None:
    async with ThreadedNode(server) as busy:
        other = FairSemaphore(server.url)
        await busy.run(other.open())
        both = busy.semaphore, other
        held = [await busy.run(one.acquire("s", 2)) for one in both]
        async with busy.stalled():
            await asyncio.gather(*(is_renewed(outside, one.node) for one in both))
        assert all(permit.held for permit in held)
        await busy.run(other.close())
    (line,) = [text for text in caplog.messages if "parse_pdf" in text]
    assert re.match(
        r"parse_pdf \(core/test_renewal_thread.py:\d+\) has stalled the event loop for", line
    )


@pytest.mark.usefixtures("quick_beats")
async def test_a_starved_machine_is_no_callback_s_fault(
    server: RedisServer, outside: Outside, monkeypatch: Patch, caplog: Log
) -> None:
    monkeypatch.setattr(renewal_thread, "starved_for", lambda _: 0.9 * time.monotonic())
    async with ThreadedNode(server) as busy:
        await busy.run(busy.semaphore.acquire("s", 1))
        async with busy.stalled():
            await is_renewed(outside, busy.semaphore.node)
    (line,) = [text for text in caplog.messages if "leases are renewed" in text]
    assert line.startswith("The event loop could not run for ")
    assert line.endswith("Is this machine overloaded?")


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
async def test_what_runs_a_loop_is_named_as_no_culprit(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    loop, may_end, began = make_loop(), threading.Event(), threading.Event()
    found: list[frozenset[CodeType]] = []

    def run_in_thread() -> None:
        loop.run_forever()

    def look() -> None:
        found.append(renewal_thread.functions_below(sys._getframe()))

    def block() -> None:
        began.set()
        parse_pdf(may_end)

    thread = threading.Thread(target=run_in_thread, daemon=True)
    thread.start()

    def named() -> str:
        return renewal_thread.name_of(sys._current_frames().get(thread.ident or 0), runner)

    for callback in (look, block):
        loop.call_soon_threadsafe(callback)
    await asyncio.to_thread(began.wait)
    runner = renewal_thread.RUNNER | found[0]
    blocked = named()
    may_end.set()
    assert blocked.startswith(("parse_pdf (", "block ("))
    await eventually(lambda: not named())
    loop.call_soon_threadsafe(loop.stop)
    await asyncio.to_thread(thread.join)
    loop.close()


async def test_there_is_one_thread_and_none_after_the_last_close(
    server: RedisServer, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(semaphore, "RENEWAL_THREAD", renewal_thread.RenewalThread())
    before = threading.enumerate()  # another test may have left a node

    def threads() -> int:
        there = [one for one in threading.enumerate() if one.name == renewal_thread.THREAD]
        return sum(one.is_alive() and one not in before for one in there)

    with SyncSemaphore(server.url) as of_threads, of_threads.permit("s", 1):
        assert threads() == 0, "nobody's callback blocks that loop"
    async with FairSemaphore(server.url), FairSemaphore(server.url):
        assert threads() == 1
    await eventually(lambda: threads() == 0)


@pytest.mark.usefixtures("quick_beats")
def test_a_loop_that_has_ended_is_not_stalled(server: RedisServer, monkeypatch: Patch) -> None:
    warned = calls_of(monkeypatch, renewal_thread.RenewalThread, "warn")
    own = renewal_thread.RenewalThread()
    monkeypatch.setattr(semaphore, "RENEWAL_THREAD", own)

    async def hold() -> None:
        semaphore = FairSemaphore(server.url)
        await semaphore.open()
        await semaphore.acquire("s", 1)

    with Loop() as loop:
        loop.run(hold())
    [(heartbeat, keeping)] = own._kept.items()
    keeping.result(TIMEOUT_S)
    assert warned == []
    with Loop() as loop:
        loop.run(own.remove(heartbeat))


def hold_and_block(server: RedisServer, may_end: Event, results: Connection) -> None:
    """In a forked child, whose parent has the renewal thread."""

    async def run() -> None:
        async with FairSemaphore(server.url) as semaphore:
            async with semaphore.permit("s", 1) as permit:
                results.send(semaphore.node)
                may_end.wait(TIMEOUT_S)  # blocks
            results.send(permit.lost)

    asyncio.run(run())


@pytest.mark.usefixtures("quick_beats")
async def test_a_forked_child_has_a_thread_of_its_own(
    server: RedisServer, outside: Outside
) -> None:
    may_end = FORK.Event()
    async with FairSemaphore(server.url):
        with forked(hold_and_block, server, may_end) as heard:
            await is_renewed(outside, await asyncio.to_thread(heard))
            may_end.set()
            assert not await asyncio.to_thread(heard)


@pytest.fixture
def app(server: RedisServer) -> Iterator[Callable[[str], None]]:
    """A user of the server; gives it a password in place of the last one."""

    def set_password(password: str) -> None:
        rights = ("reset", "on", f">{password}", "~*", "&*", "+@all")
        client.execute_command("ACL", "SETUSER", "app", *rights)

    with server.client() as client:
        yield set_password
        client.execute_command("ACL", "DELUSER", "app")


@pytest.mark.usefixtures("quick_beats")
async def test_it_comes_with_the_credentials_that_were_used_last(
    server: RedisServer, outside: Outside, app: Callable[[str], None]
) -> None:
    """Without calling a function for them."""
    asked: list[int] = []

    def credentials() -> tuple[str, str]:
        asked.append(threading.get_ident())
        return "app", "any"

    app("any")
    # Without a history, whose connection may be made at any time.
    async with ThreadedNode(server, credentials=credentials, history=0) as busy:
        permit = await busy.run(busy.semaphore.acquire("s", 1))
        await eventually(outside.client.pubsub_channels)  # all connections are there
        before = len(asked)
        async with busy.stalled():
            await is_renewed(outside, busy.semaphore.node)
            assert len(asked) == before
        assert permit.held


@pytest.mark.parametrize("is_of_loop", [False, True])
@pytest.mark.usefixtures("quick_beats")
async def test_credentials_that_have_expired_are_asked_for_again(
    server: RedisServer,
    outside: Outside,
    app: Callable[[str], None],
    monkeypatch: Patch,
    caplog: Log,
    is_of_loop: bool,
) -> None:
    """Unless only the stalled loop can: then that is logged, once."""
    passwords = ["old"]

    def credentials() -> tuple[str, str]:
        return "app", passwords[-1]

    async def awaited() -> tuple[str, str]:
        return credentials()

    app("old")
    opened, stalls = connects(monkeypatch), calls_of(monkeypatch, Heartbeat, "_keep_through")
    given = awaited if is_of_loop else credentials
    # Without a history, whose connection may be made at any time.
    async with ThreadedNode(server, credentials=given, history=0) as busy:
        await busy.run(busy.semaphore.acquire("s", 1))
        await eventually(outside.client.pubsub_channels)  # all connections are there
        passwords.append("new")
        app("new")
        async with busy.stalled():
            if is_of_loop:
                await eventually(lambda: len(opened) > 3)
            else:
                await is_renewed(outside, busy.semaphore.node)
    refused = re.compile("Leases .* cannot be renewed: .* does not accept this user name and pass")
    said = sum(bool(refused.match(line)) for line in caplog.messages)
    assert is_of_loop <= said <= is_of_loop * len(stalls)


async def test_a_removal_that_is_cancelled_lets_the_thread_end() -> None:
    """An error in a thread fails the test."""

    class Beating:
        async def keep(self) -> None:
            await asyncio.sleep(TIMEOUT_S)

    kept, beating = renewal_thread.RenewalThread(), Beating()
    kept.add(beating)  # type: ignore[arg-type]
    ended = kept._ended
    removal = asyncio.create_task(kept.remove(beating))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    removal.cancel()
    with pytest.raises(asyncio.CancelledError):
        await removal
    await asyncio.wrap_future(ended)
