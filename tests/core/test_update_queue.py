"""Which leases send in the next call, and when that is. No server."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import uvloop

from semaphore_middleware.core.observer import Observers, ProcessStalled
from semaphore_middleware.core.permit import Permit, Stage
from semaphore_middleware.core.protocol import LeaseUpdate
from semaphore_middleware.core.update_queue import (
    BATCH_DELAY_S,
    BUSY_SPACING_S,
    LEASES_AT_ONCE,
    SPACING_S,
    TIMER_LAG_S,
    OutgoingCall,
    UpdateQueue,
)
from semaphore_middleware.errors import ClosedError
from semaphore_middleware.link.lease import RENEWAL
from semaphore_middleware.model.limits import Limit
from tests.core.lone_node import (
    FULL,
    GRACE_S,
    LEASE_S,
    START_S,
    WINDOW_S,
    Clock,
    reply_to,
)
from tests.support import nodes

LIMIT = Limit(9)
RENEWAL_S = RENEWAL * LEASE_S


class Timers(Clock):
    """An event loop that only has timers. They fire when a test moves the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.set: list[asyncio.TimerHandle] = []

    def call_at(self, when: float, do: Callable[..., object], *about: Any) -> asyncio.TimerHandle:
        loop: Any = self
        self.set.append(asyncio.TimerHandle(when, do, about, loop))
        return self.set[-1]

    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, timer: asyncio.TimerHandle) -> None:
        self.set.remove(timer)


class LoneQueue:
    """An update queue whose clock only the test moves, with a server that grants all requests."""

    def __init__(self, window: float = WINDOW_S) -> None:
        self.clock = Timers()
        loop: Any = self.clock
        self.recorder = nodes.Recorder()
        observers = Observers([])
        observers._of_kind[ProcessStalled] = [self.recorder.on_event]
        self.is_woken = False
        options = replace(nodes.OPTIONS, lease=LEASE_S, reuse_window=window)
        self.updates = UpdateQueue("n", options, observers, loop, self._wake)

    def _wake(self) -> None:
        self.is_woken = True

    def ask(self, scope: str = "s") -> Permit:
        return self.updates.request(scope, LIMIT)

    def call(self, **reply: Any) -> OutgoingCall:
        """Make the next call, and apply its replies."""
        self.is_woken = False
        call = self.updates.next_call()
        self.updates.on_replies(call, [reply_to(one, **reply) for one in call.updates])
        return call

    def repeated(self) -> list[LeaseUpdate]:
        """What the renewal thread would send."""
        leases = self.updates.leases.values()
        return [one for lease in leases for one in lease.to_repeat(self.updates.epoch)]

    def hold(self, scope: str = "s", **reply: Any) -> Permit:
        permit = self.ask(scope)
        self.call(**reply)
        permit._begin()
        return permit

    def keep_busy(self) -> None:
        """Let requests come fast."""
        for _ in range(200):
            self.ask("other").release()
        self.go_on(until=self.clock.now + BATCH_DELAY_S)
        self.call()

    def go_on(self, until: float) -> list[float]:
        """Do what is due up to a time; returns when something was."""
        times = []
        timers = self.clock.set
        while due := [timer for timer in timers if timer.when() <= until]:
            timer = min(due)
            timers.remove(timer)
            times.append(timer.when())
            self.clock.now = timer.when()
            timer._run()
        self.clock.now = until
        return times


def scopes(call: OutgoingCall) -> list[str]:
    return [update.scope for update in call.updates]


@pytest.mark.parametrize(("is_busy", "spacing"), [(False, SPACING_S), (True, BUSY_SPACING_S)])
def test_a_request_sends_at_once_but_calls_are_apart(is_busy: bool, spacing: float) -> None:
    node = LoneQueue()
    node.ask()
    assert node.is_woken
    node.call()
    if is_busy:
        node.keep_busy()
    now = node.clock.now
    for scope in "ab":
        node.ask(scope)
    assert not node.is_woken
    assert node.go_on(until=now + spacing) == [now + spacing], "one timer for both"
    assert node.is_woken
    assert scopes(node.call()) == ["a", "b"]
    node.go_on(until=now + 2 * spacing)
    node.is_woken = False
    node.ask("c")
    assert node.is_woken


def test_a_request_does_not_wait_for_the_batch_of_what_nobody_waits_for() -> None:
    node = LoneQueue(window=0.0)
    node.hold().release()
    now = node.clock.now
    node.ask("other")
    node.go_on(until=now + SPACING_S)
    assert scopes(node.call()) == ["s", "other"]
    node.is_woken = False
    node.go_on(until=now + BATCH_DELAY_S)
    assert not node.is_woken, "all was sent"


def test_a_full_site_s_updates_are_sent_at_once_by_a_busy_node_too() -> None:
    node = LoneQueue()
    node.hold(available=FULL)
    node.keep_busy()
    node.is_woken = False
    node.ask()
    assert node.is_woken


def test_all_windows_end_together_at_a_multiple_of_their_length() -> None:
    node = LoneQueue()
    node.clock.now += 0.3 * WINDOW_S
    for scope in "ab":
        node.hold(scope).release()
    end = START_S + WINDOW_S
    assert node.go_on(until=end) == [end]
    assert not node.is_woken, "both were used in it"
    assert node.go_on(until=end + WINDOW_S) == [end + WINDOW_S]
    assert [update.returned for update in node.call().updates] == [1, 1]
    assert node.updates.leases == {}, "nothing is held or wanted"


def test_without_reuse_a_permit_goes_back_with_the_next_batch() -> None:
    node = LoneQueue(window=0.0)
    node.hold().release()
    now = node.clock.now
    assert node.go_on(until=now + BATCH_DELAY_S) == [now + BATCH_DELAY_S]
    assert [update.returned for update in node.call().updates] == [1]


@pytest.mark.parametrize("waits", [(9.0, 4.0), (4.0, 9.0)])
def test_the_latest_wait_counts_while_the_request_waits(waits: tuple[float, float]) -> None:
    node = LoneQueue()
    permit = node.ask()
    for wait in waits:
        node.updates.send_all()
        node.call(granted=0, available=FULL, retry_in=wait)
    now = node.clock.now
    assert node.go_on(until=now + waits[-1]) == [now + waits[-1] - TIMER_LAG_S]
    assert node.is_woken
    assert scopes(node.call(granted=0, retry_in=1.0)) == ["s"]
    permit.release()
    node.is_woken = False
    node.go_on(until=node.clock.now + 1.0)
    assert scopes(node.call()) == ["s"], "it gave up"
    assert not node.updates.next_call().updates


def test_leases_are_renewed_every_third_of_a_lease_while_there_is_one_to_renew() -> None:
    node = LoneQueue(window=0.0)
    permit = node.hold()
    for time in (START_S + RENEWAL_S, START_S + 2 * RENEWAL_S):
        node.go_on(until=time)
        call = node.call()
        assert (scopes(call), call.checks_server, call.sent) == (["s"], True, time)
        assert not node.updates.next_call().checks_server, "once"
    assert node.recorder.count(ProcessStalled) == 0
    permit.release()
    node.call()
    node.go_on(until=START_S + 9 * RENEWAL_S)
    assert not node.updates.next_call().checks_server
    now = node.clock.now
    node.ask()
    node.call()
    assert node.go_on(until=now + RENEWAL_S) == [now + RENEWAL_S], "it begins anew"


def test_a_start_is_reported_in_the_middle_of_the_interval() -> None:
    node = LoneQueue(window=0.0)
    node.hold(interval=1.0, starts_count=True)
    now = node.clock.now
    assert node.go_on(until=now + 0.5) == [now + 0.5]
    (update,) = node.call(interval=1.0).updates
    assert (update.started, update.start_age) == (1, 0.5)
    assert node.go_on(until=now + 0.9) == [], "it is reported"


def test_after_a_stall_all_is_sent_again() -> None:
    """The renewal thread has cancelled the waiting requests."""
    node = LoneQueue()
    node.hold()
    node.call()
    node.is_woken = False
    node.updates.on_stall(LEASE_S)
    assert (node.recorder.count(ProcessStalled), node.is_woken) == (1, True)
    assert node.updates.next_call().checks_server


def test_a_lease_that_a_stall_has_ended_was_in_use_before_it() -> None:
    """Replies that came meanwhile are read before the stall is known."""
    node = LoneQueue(window=0.0)
    assert not node.updates.was_in_use_since(-LEASE_S)
    permit = node.hold()
    begun_at = node.clock.now
    assert node.updates.was_in_use_since(begun_at)
    permit.release()
    node.go_on(until=begun_at + RENEWAL_S)
    node.call()
    assert not node.updates.leases
    assert node.updates.was_in_use_since(begun_at)
    assert not node.updates.was_in_use_since(node.clock.now + 1.0)


def test_the_renewal_thread_repeats_what_was_sent_last_where_permits_are_held() -> None:
    node = LoneQueue(window=0.0)
    node.updates.epoch = b"one"
    node.ask("waits")
    node.updates.next_call()
    held = node.hold()
    waiting = [node.ask() for _ in range(2)]
    (latest,) = node.updates.next_call().updates
    (repeated,) = node.repeated()
    assert (latest.requested, latest.granted_ack) == (3, 1)
    assert repeated == replace(latest, requested=1)
    node.updates.leases["s"].on_granted(latest.lease_id, 2)
    (repeated,) = node.repeated()
    assert repeated == replace(latest, requested=2, granted_ack=2, unstarted=latest.unstarted + 1)
    for permit in (held, *waiting):
        permit.release()
    node.call()
    assert node.repeated() == []
    node.ask()
    node.call(granted=1)
    node.updates.epoch = b"two"
    assert node.repeated() == []


def test_the_renewal_thread_repeats_what_has_feedback_and_no_reply() -> None:
    node = LoneQueue(window=0.0)
    node.updates.epoch = b"one"
    node.hold()
    refused = node.hold()
    node.ask()
    refused.refused(1.0)
    refused.release()
    (first,) = node.updates.next_call().updates
    node.ask()
    again, latest = node.updates.next_call().updates
    assert (first, first.requested, latest.requested) == (again, 3, 4)
    repeated = node.repeated()
    assert repeated == [replace(one, requested=2, suspended=0) for one in (first, latest)]


def test_permits_are_lost_at_the_deadline_and_the_next_one_is_checked() -> None:
    node = LoneQueue(window=0.0)
    early = node.hold("a")
    node.clock.now += 1.0
    late = node.hold("b")
    end = START_S + GRACE_S
    node.go_on(until=end - 0.5)
    assert not early.lost
    node.go_on(until=end)
    assert (early.lost, late.lost) == (True, False)
    node.go_on(until=end + 1.0)
    assert late.lost
    early.release()
    late.release()
    assert not node.call().updates
    assert node.updates.leases == {}


def test_a_call_carries_no_more_leases_than_can_be_answered_soon() -> None:
    node = LoneQueue()
    names = [f"s{i}" for i in range(LEASES_AT_ONCE + 1)]
    for name in names:
        node.ask(name)
    call = node.call()
    assert scopes(call) == names[:-1]
    assert node.is_woken, "for the next call"
    assert scopes(node.call()) == names[-1:]
    assert not node.is_woken


def test_a_node_that_closes_gives_everything_back_and_takes_no_more() -> None:
    node = LoneQueue()
    idle, running, waiting = node.hold(), node.hold(), node.ask()
    ended: list[Permit] = []
    running._watchers = (lambda: ended.append(running),)
    node.updates.give_all_back()
    assert idle._stage is Stage.RELEASED
    assert (ended, running.lost) == ([running], True)
    assert isinstance(waiting._granted.exception(), ClosedError)
    with pytest.raises(ClosedError):
        node.ask()
    running.release()
    (update,) = node.call().updates
    assert (update.requested, update.returned) == (2, 2)
    assert node.updates.leases == {}


@pytest.mark.parametrize("loop_of", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_timer_that_is_nearly_due_can_be_set_again(
    loop_of: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    with closing(loop_of()) as loop:
        updates = UpdateQueue("n", nodes.OPTIONS, Observers([]), loop, lambda: None)
        updates.request("s", LIMIT)
        for _ in range(2):  # uvloop sets no timer for so short a time
            updates.send_by(updates.leases["s"], 0.0001)
        updates.cancel_timers()
