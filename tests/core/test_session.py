"""When a session sends, and what it does without replies and at its deadlines. In simulated time:
its timers fire as if time passed, and no test waits for them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest

from lab.simulation.world import BEGIN_S
from semaphore_middleware.core.observer import Observers, ProcessStalled
from semaphore_middleware.core.permit import Permit, Stage
from semaphore_middleware.core.protocol import LeaseUpdate, Reply
from semaphore_middleware.core.session import Session
from semaphore_middleware.core.update_queue import (
    BUSY_SPACING_S,
    TIMER_LAG_S,
)
from semaphore_middleware.link.connection import CallTimeoutError
from semaphore_middleware.link.lease import RENEWAL
from semaphore_middleware.link.renewal_thread import Beat
from semaphore_middleware.model.limits import Limit
from tests.core.lone_node import GRACE_S, LEASE_S, WINDOW_S, reply_to
from tests.support import nodes
from tests.support.crawls import Log
from tests.support.simulated import in_simulated_time

LIMIT = Limit(9)
OPTIONS = replace(nodes.OPTIONS, lease=LEASE_S, reuse_window=WINDOW_S)
RENEWAL_S = RENEWAL * LEASE_S
CALL_TIMEOUT_S = LEASE_S / 6

NOBODY: Any = None  # a semaphore that no observer uses


@dataclass
class FakeConnection:
    listen: Callable[..., Any]
    incarnation: str = ""
    is_open: bool = True
    has_read_only_scripts: bool = True

    async def subscribe(self, _: object) -> None:
        pass

    async def check_server(self) -> None:
        pass

    async def call(self, commands: Sequence[object]) -> list[None]:
        return [None for _ in commands]

    def check(self, replies: list[None]) -> list[None]:
        return replies

    async def close(self) -> None:
        self.is_open = False


class FakeServer:
    """Grants all requests. It stands in for `Server`, `Store` and `Recovery`."""

    def __init__(self) -> None:
        self.channels = (b"node", b"changes")
        self.node = "n"
        self.call_timeout = CALL_TIMEOUT_S
        self.is_one_name = False
        self.recovery = self
        self.calls: list[tuple[float, Sequence[LeaseUpdate]]] = []  # when each was sent
        self.is_silent = False
        self.is_deaf = False
        self.is_in_another_epoch = False
        self.connections: list[FakeConnection] = []
        self.checks = 0  # of the server's incarnation
        self.epoch = b"one"
        self.left = 0.0
        self.wall = 0.0
        self.granted: int | None = None  # no more than this to a lease
        self.changes: dict[str, Any] = {}  # parts of the replies
        self.tell: Callable[[bytes | None], None] = lambda _: None

    async def connect(self) -> FakeConnection:
        self.connections.append(FakeConnection(self.listen))
        return self.connections[-1]

    async def check_rights(self, *_: object) -> None:
        pass

    async def join_epoch(self, _: object) -> None:
        self.checks += 1

    async def listen(self, _: object, __: float, tell: Callable[[bytes | None], None]) -> None:
        self.tell = tell
        if not self.is_deaf:
            tell(None)
            asyncio.get_running_loop().call_soon(tell, b"echo")
        await asyncio.Event().wait()

    async def sync(
        self, _: object, updates: Sequence[LeaseUpdate], check: bool
    ) -> list[Reply] | None:
        if self.is_in_another_epoch:
            self.is_in_another_epoch = False
            return None
        self.calls.append((asyncio.get_running_loop().time() - BEGIN_S, updates))
        self.checks += check
        if self.is_silent:
            await asyncio.sleep(CALL_TIMEOUT_S)
            raise CallTimeoutError("no answer")
        return [self._reply(one) for one in updates]

    async def repeat(
        self, _: object, __: bytes, updates: Sequence[LeaseUpdate]
    ) -> list[Reply] | None:
        return None if self.is_in_another_epoch else [self._reply(one) for one in updates]

    def _reply(self, update: LeaseUpdate) -> Reply:
        most = update.requested if self.granted is None else self.granted
        granted = max(update.granted_ack, min(update.requested, most))
        return reply_to(update, granted=granted, **self.changes)

    @property
    def times(self) -> list[float]:
        """When each of the `calls` was sent."""
        return [time for time, _ in self.calls]

    @property
    def sizes(self) -> list[int]:
        """How many updates each of them had."""
        return [len(update) for _, update in self.calls]


class Setup:
    """A session with a fake server. All messages so far have been received."""

    def __init__(self) -> None:
        self.server = FakeServer()
        self.recorder = nodes.Recorder()
        self._observers = Observers([self.recorder])
        fake: Any = self.server
        self.session = Session(fake, fake, OPTIONS, self._observers)
        self.loop: Any = asyncio.get_running_loop()

    @property
    def now(self) -> float:
        return float(self.loop.time()) - BEGIN_S

    async def __aenter__(self) -> Setup:
        await self._observers.open(NOBODY)
        await self.session.start()
        await asyncio.sleep(BUSY_SPACING_S)  # nothing waits for the next call's time
        self.server.calls.clear()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.stop(until=self.loop.time() + 2.0)

    def ask(self, scope: str = "s") -> Permit:
        return self.session.updates.request(scope, LIMIT)

    async def hold(self, scope: str = "s") -> Permit:
        permit = self.ask(scope)
        await permit._granted
        permit._begin()
        await settle()
        self.server.calls.clear()
        return permit


async def settle() -> None:
    """Let everything happen that needs no time."""
    for _ in range(50):
        await asyncio.sleep(0)


@in_simulated_time
async def test_what_is_held_is_renewed_every_third_of_a_lease() -> None:
    async with Setup() as setup:
        permit = await setup.hold()
        await asyncio.sleep(10 * LEASE_S)
        gaps = [later - time for time, later in pairwise(setup.server.times)]
        assert len(gaps) == 32
        assert max(gaps) <= RENEWAL_S + 0.001
        assert setup.server.checks >= len(gaps), "is it still the server that it knows?"
        permit.release()
        await asyncio.sleep(LEASE_S)
        setup.server.calls.clear()
        await asyncio.sleep(10 * LEASE_S)
        assert setup.server.times == []


@in_simulated_time
async def test_in_another_epoch_all_is_sent_again_and_the_subscription_renewed() -> None:
    """A proxy may have left it at a server that is no longer in use."""
    async with Setup() as setup:
        permit = await setup.hold()
        *_, subscription = setup.server.connections
        assert subscription.is_open
        setup.server.is_in_another_epoch = True
        waiting = setup.ask("other")
        await waiting._granted
        assert not subscription.is_open
        assert {update.scope for _, one in setup.server.calls for update in one} == {"s", "other"}
        assert not permit.lost
        permit.release()
        waiting.release()


@pytest.mark.parametrize(("reply", "channel"), [(4.0, None), (None, 4.0), (9.0, 4.0)])
@in_simulated_time
async def test_a_node_asks_again_when_notified(reply: float | None, channel: float | None) -> None:
    """The latest notification counts."""
    async with Setup() as setup:
        setup.server.granted, setup.server.changes = 0, {"retry_in": reply}
        permit = setup.ask()
        await settle()
        setup.server.granted, setup.server.changes = None, {}
        if channel:
            setup.server.tell(b"retry %d s" % (1000 * channel))
        now = setup.now
        await permit._granted
        assert setup.now == pytest.approx(now + 4.0 - TIMER_LAG_S)


@pytest.mark.parametrize("heard", [None, b"changed"])
@in_simulated_time
async def test_after_missed_messages_and_a_change_of_rules_all_is_sent_again(
    heard: bytes | None,
) -> None:
    async with Setup() as setup:
        held = await setup.hold()
        setup.server.granted = 1
        waiting = setup.ask()
        await asyncio.sleep(1.0)
        setup.server.calls.clear()
        setup.server.tell(heard)
        held.release()
        assert (waiting._stage is Stage.HELD) == (heard is None), "a new rule ends reuse"
        setup.server.granted = None
        await settle()
        assert setup.server.sizes == [1]


@in_simulated_time
async def test_notifications_of_a_site_reach_its_requests() -> None:
    async with Setup() as setup:
        held = await setup.hold()
        setup.server.tell(b"backoff 1 0 s")
        assert held.must_not_start
        held.release()


@in_simulated_time
async def test_a_node_that_was_stopped_logs_it(caplog: Log) -> None:
    async with Setup() as setup:
        permit = await setup.hold()
        setup.loop.world.now += LEASE_S
        setup.server.tell(b"granted 1 2 s")  # it lay in the socket
        assert permit.lost
        await settle()
        assert setup.recorder.count(ProcessStalled) == 1
        assert "This process stood still for 100.0 s" in caplog.text
        permit.release()


@in_simulated_time
async def test_the_renewal_thread_moves_a_deadline_only_for_what_is_still_there() -> None:
    async with Setup() as setup:
        permit = await setup.hold()
        session = setup.session
        lease = session.updates.leases["s"]
        before = lease.deadline
        session._heartbeat._clock = setup.loop.time
        session._heartbeat._beat = Beat(setup.loop.time(), setup.loop.time())

        async def repeat() -> tuple[bool, float]:
            setup.loop.world.now += 1.0  # as it blocks
            is_kept = await session._repeat(setup.server.connect)  # type: ignore[arg-type]
            lease.is_expired(math.inf)
            return is_kept, lease.deadline

        setup.server.is_in_another_epoch = True
        assert await repeat() == (False, before)
        setup.server.is_in_another_epoch = False
        kept, moved = await repeat()
        assert (kept, moved > before) == (True, True)
        for status in ("lost", "old", "refused", "unreadable"):
            lease.repeated = 0, -math.inf
            setup.server.changes = {"status": status}
            assert await repeat() == (False, moved)
        setup.server.changes = {}
        assert await repeat() == (False, moved), "never again under this lease"
        session.updates.leases["s"].lose_all("was lost")
        permit.release()
        await setup.hold()
        kept, _ = await repeat()
        assert kept, "until another has begun"


@in_simulated_time
async def test_deadlines_hold_without_a_subscription(caplog: Log) -> None:
    setup = Setup()
    setup.server.is_deaf = True
    async with setup:
        permit = await setup.hold()
        setup.server.is_silent = True
        await asyncio.sleep(GRACE_S + 0.01)
        assert permit.lost
        assert "no answer. No permit is granted until it can be used again" in caplog.text
        permit.release()


@in_simulated_time
async def test_what_was_not_answered_in_time_is_sent_again_in_smaller_parts() -> None:
    async with Setup() as setup:
        setup.server.is_silent = True
        permits = [setup.ask(f"s{i}") for i in range(20)]
        await asyncio.sleep(8 * CALL_TIMEOUT_S)
        assert setup.server.sizes[:6] == [20, 10, 5, 2, 1, 1], "never none"
        setup.server.is_silent = False
        setup.server.calls.clear()
        await asyncio.sleep(2 * CALL_TIMEOUT_S)
        assert all(permit._stage is Stage.HELD for permit in permits)
        assert setup.server.sizes[:6] == [1, 2, 3, 4, 5, 5], "each lease once"


@in_simulated_time
async def test_closing_waits_for_what_was_lost_to_end_and_no_longer() -> None:
    async with Setup() as setup:
        permit = await setup.hold()
        setup.server.is_silent = True
        is_lost = asyncio.Event()
        permit._watchers = (is_lost.set,)
        await is_lost.wait()
        setup.server.is_silent = False
        await asyncio.sleep(2 * CALL_TIMEOUT_S)
        setup.loop.call_later(0.5, permit.release)
        now = setup.now
        await setup.session.stop(until=setup.loop.time() + 2.0)
        assert setup.now == pytest.approx(now + 0.5)


@pytest.mark.parametrize("is_lost", [False, True])
@in_simulated_time
async def test_closing_says_that_requests_have_not_ended(is_lost: bool, caplog: Log) -> None:
    async with Setup() as setup:
        permit = await setup.hold()
        permit._is_of_thread = True
        if is_lost:
            lease: Any = permit._lease
            lease.lose_all("was lost")
        await setup.session.stop(until=setup.loop.time() + 2.0)
    assert "give all permits back (1 in use, by requests not ended" in caplog.text
