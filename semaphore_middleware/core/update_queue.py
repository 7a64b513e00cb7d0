"""The order of a node's updates: which leases send theirs, and when. No I/O.

All due updates go in one round trip, and those that become due meanwhile go in the next. Calls are
some milliseconds apart, and an update that no request waits for is held back as long, so that
others can go with it: a call costs more than its updates.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from semaphore_middleware.core.observer import Observers, ProcessStalled, ScopeLeft
from semaphore_middleware.core.permit import Permit
from semaphore_middleware.core.protocol import LeaseUpdate, Reply
from semaphore_middleware.core.reuse import common_window_end
from semaphore_middleware.core.scope_lease import ScopeLease
from semaphore_middleware.errors import ClosedError
from semaphore_middleware.link.lease import GRACE, RENEWAL
from semaphore_middleware.model.feedback import Backoff
from semaphore_middleware.model.limits import Limit
from semaphore_middleware.model.options import NodeOptions

LEASES_AT_ONCE = 1000  # in one round trip, so that neither side is busy for long
BATCH_DELAY_S = 0.010  # how long an update that no request waits for is held back
SPACING_S = 0.004  # between two calls for requests that the site may have room for
BUSY_INTERVAL_S = 1 / 250  # between requests: if it is shorter, the node needs its processor
BUSY_SPACING_S = 0.010  # of such a node's calls: each costs as much as several requests
INTERVAL_SAMPLES = 16  # about how many requests the mean interval covers
TIMER_LAG_S = 0.001  # timers may be so late: event loops poll in milliseconds


class Spacing:
    """Spaces the calls for requests that may get a permit at once."""

    def __init__(self) -> None:
        self._called_at = -math.inf
        self._requested_at = -math.inf
        self._interval = 1.0  # seconds between two requests, on average

    def note_request(self, time: float) -> None:
        """Note the time of a request."""
        interval = min(1.0, time - self._requested_at)
        self._interval += (interval - self._interval) / INTERVAL_SAMPLES
        self._requested_at = time

    def note_call(self, time: float) -> None:
        """Note the time of a call."""
        self._called_at = time

    @property
    def next_time(self) -> float:
        """The earliest time for the next call."""
        is_busy = self._interval < BUSY_INTERVAL_S
        return self._called_at + (BUSY_SPACING_S if is_busy else SPACING_S)


@dataclass(frozen=True, slots=True)
class OutgoingCall:
    """The contents of one call to the server."""

    leases: Sequence[ScopeLease]
    updates: Sequence[LeaseUpdate]
    checks_server: bool
    """Whether the call checks that the server is still in the incarnation known to this node."""
    sent: float
    """On the loop's clock."""


class UpdateQueue:
    """This node's leases, and the times at which they send their updates.

    A lease sends at once (`send_now`), or a little later with others (`send_soon`); when the common
    reuse window ends (`send_at_window_end`); or after some time (`send_later`, `send_by`). All
    leases send together after missed messages, and to be renewed (`send_all`). A call may check the
    server, too (`check_server`).

    The queue calls `wake` when `next_call` has something to send.
    """

    def __init__(
        self,
        node: str,
        options: NodeOptions,
        observers: Observers,
        loop: asyncio.AbstractEventLoop,
        wake: Callable[[], object],
    ) -> None:
        self.node = node
        """This node's name."""
        self._options = options
        self.reuse_window = options.reuse_window
        """Seconds for which a granted permit may be reused; 0: it serves one request."""
        self.emit = observers.emit
        self.now = loop.time
        self._loop = loop  # that of the permits and timers
        self._wake = wake
        self.leases: dict[str, ScopeLease] = {}
        """By scope, until they are empty and forgotten."""
        self.emptied = asyncio.Event()
        """Set when the last of them is forgotten."""
        self._own_limits: dict[str, dict[object, Limit]] = {}  # by scope, then by what names them
        self._forgotten_at = -math.inf  # when the last lease was
        self._last_lease_id = 0
        self._due: dict[ScopeLease, None] = {}
        self._leases_at_once = LEASES_AT_ONCE  # fewer after a time-out
        self._is_check_due = False
        self._in_windows: dict[ScopeLease, None] = {}  # those waiting for `on_window_end`
        self._timers: dict[Callable[[], object], tuple[float, asyncio.Handle]] = {}
        """By what they call. The times are kept here, as a timer of uvloop may not know its own."""
        self._spacing = Spacing()
        self._is_draining = False
        self.epoch = b""
        """The server's epoch in which the leases are."""

    def __str__(self) -> str:
        held = sum(len(lease.held) for lease in self.leases.values())
        waiting = sum(len(lease.waiting) for lease in self.leases.values())
        return f"{held} held, {waiting} waiting"

    @property
    def grace(self) -> float:
        """Seconds from sending an update to the deadline that its reply sets."""
        return GRACE * self._options.lease

    @property
    def least_left(self) -> float:
        """Seconds to the deadline of a lease whose next renewal is due."""
        return (GRACE - RENEWAL) * self._options.lease

    @property
    def backoff(self) -> Backoff:
        """How nodes pause after refusals and failures."""
        return self._options.backoff

    def permits(self) -> Iterator[Permit]:
        """All permits of this node, held or waited for."""
        for lease in list(self.leases.values()):
            yield from [*lease.held, *lease.waiting]

    def was_in_use_since(self, time: float) -> bool:
        """Whether there was a lease then or since. When a stopped process wakes, replies come
        first, and may already have ended its leases.
        """
        return bool(self.leases) or self._forgotten_at >= time

    # Requests -----------------------------------------------------------------------------------

    def request(
        self,
        scope: str,
        limit: Limit,
        owner: object = None,
        priority: float = 0.0,
        on_wait: Callable[[], object] | None = None,
    ) -> Permit:
        """Ask for a permit. Calls `on_wait` if none is free. Raises `ClosedError` when closing."""
        if self._is_draining:
            raise ClosedError("the semaphore is closing")
        lease = self.leases.get(scope)
        if lease is None:
            lease = self.leases[scope] = ScopeLease(scope, limit, self)
            if own := self._own_limits.get(scope):
                lease.name_limits(own.values())  # promise: limits of the node
            if self._renew not in self._timers:
                self._call_at(self.now() + RENEWAL * self._options.lease, self._renew)
        permit = Permit(scope, limit, self._loop, lease, owner, priority, on_wait)
        self._spacing.note_request(permit._requested_at)
        lease.acquire(permit)
        return permit

    def name_limit(self, scope: str, source: object, limit: Limit | None) -> None:
        """Set the limit that `source` names for this node at a scope; None: it names none."""
        own = self._own_limits.setdefault(scope, {})
        if limit is None:
            own.pop(source, None)
            if not own:
                del self._own_limits[scope]
        else:
            own[source] = limit
        if lease := self.leases.get(scope):
            lease.name_limits(own.values())

    def give_all_back(self) -> None:
        """Refuse waiting and later requests with `ClosedError`, and release all permits. A request
        that runs under one is cancelled, unless it is a thread's, and releases it at its end.
        """
        self._is_draining = True
        for lease in self.leases.values():
            lease.close()
            for permit in lease.waiting:
                permit._refuse(ClosedError("the semaphore is closing"))
        for permit in list(self.permits()):
            if permit._watchers or permit._is_of_thread:
                permit._lose(f"the semaphore was closed over a permit for {permit.scope!r}")
            else:
                permit.release()
        self.forget_empty(list(self.leases.values()))  # some only remember failures

    # For leases ---------------------------------------------------------------------------------

    def new_lease_id(self, above: int = 0) -> int:
        """A new lease id, above `above` and all earlier ones."""
        self._last_lease_id = max(self._last_lease_id, above) + 1
        return self._last_lease_id

    def send_now(self, lease: ScopeLease) -> None:
        """Send the lease's update at once."""
        self._due[lease] = None
        self._wake()

    def send_soon(self, lease: ScopeLease) -> None:
        """Send the lease's update some milliseconds after the last call, with others."""
        self._due[lease] = None
        now = self.now()
        time = self._spacing.next_time if lease.waiting else now + BATCH_DELAY_S
        if time <= now:
            self._wake()
        else:
            self._call_by(time, self._wake)

    def send_at_window_end(self, lease: ScopeLease) -> None:
        """Call the lease's `on_window_end` when the common reuse window ends."""
        if not self.reuse_window:
            self.send_soon(lease)
            return
        if not self._in_windows:
            self._call_at(common_window_end(self.now(), self.reuse_window), self._end_windows)
        self._in_windows[lease] = None

    def send_later(self, lease: ScopeLease, seconds: float) -> None:
        """Send the update after `seconds`, if requests still wait. A later call replaces it."""
        # promise: shorter wait
        self._call_at(self.now() + max(0.0, seconds - TIMER_LAG_S), lease.on_time)

    def send_by(self, lease: ScopeLease, seconds: float) -> None:
        """Send the lease's update within `seconds`, if it still has a start to report."""
        if seconds == 0:
            self.send_now(lease)
        else:
            self._call_by(self.now() + seconds, lease.on_time)

    def send_all(self) -> None:
        """Send everything again: after missed messages, and to keep the leases."""
        self._due |= dict.fromkeys(self.leases.values())
        self._wake()

    def check_server(self) -> None:
        """Let the next call check the server: whether it is in the incarnation known here."""
        self._is_check_due = True
        self._wake()

    # Calls --------------------------------------------------------------------------------------

    def next_call(self) -> OutgoingCall:
        """Take all due updates for one call. Calls `wake` if more is left for the next one."""
        checks_server = self._is_check_due
        self._is_check_due = False  # after an error, the next connection checks anyway
        leases = list(islice(self._due, self._leases_at_once))
        for lease in leases:
            del self._due[lease]
        if self._due:
            self._wake()
        self._cancel(self._wake)
        sent = self.now()
        self._spacing.note_call(sent)
        updates: list[LeaseUpdate] = []
        for lease in leases:
            if own := lease.updates(sent):
                lease.sent = self.epoch, own, own[-1].granted_ack
                updates += own
        # mutant and -> or: a timer that finds no deadline sets no other
        if updates and self._check_deadlines not in self._timers:
            self._call_at(sent + self.grace, self._check_deadlines)  # promise: timer of deadlines
        return OutgoingCall(leases, updates, checks_server, sent)

    def on_replies(self, call: OutgoingCall, replies: Iterable[Reply]) -> None:
        """Apply the replies to a call."""
        self._leases_at_once = min(LEASES_AT_ONCE, self._leases_at_once + 1)
        for reply in replies:
            if lease := self.leases.get(reply.update.scope):
                lease.on_reply(reply, call.sent)
        self.forget_empty(call.leases)

    def on_timeout(self, call: OutgoingCall) -> None:
        """After a time-out, send less in the next call."""
        self._leases_at_once = max(1, len(call.leases) // 2)

    def forget_empty(self, leases: Iterable[ScopeLease]) -> None:
        """Forget the empty ones among these leases."""
        for lease in leases:
            is_known = self.leases.get(lease.scope) is lease
            if is_known and lease.is_forgettable:
                del self.leases[lease.scope]
                self._forgotten_at = self.now()
                self._cancel(lease.on_time)  # promise: no timer is left
                self.emit(ScopeLeft, lease.scope)
        if not self.leases:
            self.emptied.set()

    # Time ---------------------------------------------------------------------------------------

    def _call_at(self, time: float, do: Callable[[], object]) -> None:
        """Call a function at this time, in place of a time that was set before."""
        self._cancel(do)
        self._timers[do] = time, self._loop.call_at(time, self._on_time, do)

    def _call_by(self, time: float, do: Callable[[], object]) -> None:
        """Call a function at this time, unless an earlier time is set."""
        if do not in self._timers or time < self._timers[do][0]:
            self._call_at(time, do)

    def _on_time(self, do: Callable[[], object]) -> None:
        del self._timers[do]
        do()

    def _cancel(self, do: Callable[[], object]) -> None:
        if do in self._timers:
            _, timer = self._timers.pop(do)
            timer.cancel()

    def cancel_timers(self) -> None:
        """Cancel all timers."""
        for do in list(self._timers):
            self._cancel(do)

    def _end_windows(self) -> None:
        leases = self._in_windows
        self._in_windows = {}
        for lease in leases:
            lease.on_window_end()

    def _renew(self) -> None:
        if self.leases:
            # promise: leases are renewed
            self.send_all()
            self.check_server()  # rule 2: check at each renewal
            self._call_at(self.now() + RENEWAL * self._options.lease, self._renew)

    def on_stall(self, seconds: float) -> None:
        """Send everything again: the renewal thread may have cancelled requests that wait."""
        self.emit(ProcessStalled, seconds)
        self.send_all()
        self.check_server()

    def _check_deadlines(self) -> None:
        """End leases past their deadlines, and set the timer for the next deadline."""
        now = self.now()
        leases = list(self.leases.values())
        for lease in leases:
            lease.expire_if_due(now)
        self.forget_empty(leases)
        next_deadline = min((lease.deadline for lease in self.leases.values()), default=math.inf)
        if next_deadline < math.inf:
            self._call_at(next_deadline, self._check_deadlines)
