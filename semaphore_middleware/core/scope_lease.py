"""What a node has of one scope: permits in use, requests that wait, and what to send the server.

    a request asks ──> waits ──> uses a permit ──> releases it ──> reused by the next request,
                        ^                                          kept for a later one, or returned
                        │                                                      │
                        └───── grants <──── server <──── updates <─────────────┘

The file follows this circle: the calls of requests, the updates to the server, its replies, and
finally the end of a lease. No I/O: the node decides when an update is sent. The rules in comments
are those of docs/protocol.md.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Protocol

from semaphore_middleware.core.failures import Failures
from semaphore_middleware.core.lease_totals import LeaseTotals
from semaphore_middleware.core.named_limits import NamedLimits
from semaphore_middleware.core.notices import (
    Announcer,
    note_loss,
    note_own_pause,
    note_reply,
    note_unread,
)
from semaphore_middleware.core.observer import (
    FailedAtOnce,
    LimitOverruled,
    PauseBegun,
    PermitGranted,
    PermitReleased,
    PermitWaiting,
    RefusalReported,
    RequestBegun,
    RequestEnded,
)
from semaphore_middleware.core.permit import Permit, Stage
from semaphore_middleware.core.protocol import LeaseUpdate, Reply
from semaphore_middleware.core.reuse import Pool, common_window_end
from semaphore_middleware.core.wait_queue import WaitQueue
from semaphore_middleware.model.feedback import Feedback, FeedbackSummary
from semaphore_middleware.model.inspection import Finding
from semaphore_middleware.model.limits import Limit

SHORT_INTERVAL_S = 0.5
"""If starts are closer together than this, each is reported at once."""
RETRY_UNREAD_S = 1.0
"""Before the next update, if the server could not read the last one, or the scope's keys."""

# Why permits are lost, in errors and the log.
NOT_RENEWED = (
    "could not be renewed in time (is the server reachable, and does anything block the event "
    "loop?)"
)
NOT_OURS = (
    "has ended on the server (its lease was over, an operator evicted this node, or the server has "
    "lost data)"
)
NOT_READ = "could not be renewed, as the server could not read this node's update"
UNREADABLE = "could not be renewed, as its site's data on the server is damaged"


class Node(Announcer, Protocol):
    """What a lease needs of its node, which is an `UpdateQueue`."""

    reuse_window: float

    @property
    def grace(self) -> float: ...
    @property
    def least_left(self) -> float: ...
    def now(self) -> float: ...
    def new_lease_id(self, above: int = 0) -> int: ...
    def send_now(self, lease: ScopeLease) -> None: ...
    def send_soon(self, lease: ScopeLease) -> None: ...
    def send_at_window_end(self, lease: ScopeLease) -> None: ...
    def send_later(self, lease: ScopeLease, seconds: float) -> None: ...
    def send_by(self, lease: ScopeLease, seconds: float) -> None: ...


class ScopeLease:
    """A node's lease on one scope. When it ends, this object goes on with the next one.

    Each granted permit is returned later; until then it is held by a request, or spare:
    granted - returned == held + spare.
    """

    def __init__(self, scope: str, limit: Limit, node: Node) -> None:
        self.scope = scope
        self.limits = NamedLimits(limit)
        self.deadline = math.inf
        """Until then, on the loop's clock, the lease cannot be over; or for longer, if the renewal
        thread has renewed it. Infinite until its first update.
        """
        self.last_reply: Reply | None = None
        """The last reply to an update that the server accepted, of any lease."""
        self.last_success = -math.inf
        """When the newest request known to have succeeded began, on any node."""
        self.failures = Failures()
        self._node = node
        # Requests and their permits.
        self._queue = WaitQueue()
        self._held: OrderedDict[Permit, None] = OrderedDict()  # in the order of the grants
        self._pool = Pool()  # the spare ones
        self._orphans: set[Permit] = set()  # lost, but their requests have not ended yet
        self._unstarted = 0  # permits that are held, and whose requests have not begun
        # What the server gets.
        self._totals = LeaseTotals(node.new_lease_id())
        self._feedback: list[tuple[Feedback, float]] = []  # not sent yet; with the grant's time
        self._unanswered: list[LeaseUpdate] = []  # sent updates with feedback
        # What forbids reuse.
        self._is_closing = False
        self._is_reuse_stopped = False  # by the last reply, or since then
        self._pause = 0, 0.0  # the site's last: begin, by the server's clock, and length (ms)
        # The loop and the renewal thread share these without a lock, by single assignments:
        self.sent: tuple[bytes, Sequence[LeaseUpdate], int] = b"", (), 0
        """The epoch, the updates of the last call, and how many permits are known to be granted."""
        self.repeated = 0, -math.inf
        """The lease id and the deadline of what the renewal thread has repeated last."""

    def __repr__(self) -> str:
        counts = f"{len(self._held)} held, {len(self._queue)} waiting"
        return f"<ScopeLease {self._totals.lease_id} on {self.scope!r}: {counts}>"

    # A request asks -----------------------------------------------------------------------------

    def acquire(self, permit: Permit) -> None:
        """Take a permit for a request: a spare one of this node, or one from the server."""
        now = self._node.now()
        self.limits.add(permit.limit)
        if self._pool.permits and now < self._pool.until and self._may_reuse(now):
            self._pool.take()
            window_end = min(self._window_end(now), self._pool.until)
            self._grant_to(permit, window_end, now, is_reused=True)
            return
        # A later request must not get it before this one.
        self._return_spare()  # promise: no spare permit while a request waits
        if self.is_full and self._totals.is_queued:
            # The server's queue has this node once, however many of its requests wait.
            self._queue.add(permit, None)
            self._note_wait(permit)
            self._node.send_at_window_end(self)
        else:
            self._queue.add(permit, self._totals.seq + 1)
            if self.is_full:
                self._node.send_now(self)
            else:
                self._node.send_soon(self)

    def cancel(self, permit: Permit) -> None:
        """Remove a request that no longer waits for its permit."""
        self.limits.drop(permit.limit)
        self._queue.drop(permit)
        self._request_fewer(self._node.send_now)

    def name_limits(self, limits: Collection[Limit]) -> None:
        """Set the limits that the node names for all its requests."""
        self.limits.set_own(limits)
        if self._queue:
            self._node.send_soon(self)

    def _request_fewer(self, send: Callable[[ScopeLease], None]) -> None:
        """Ask the server for fewer permits. If no request waits any more, the server must neither
        grant permits nor reserve the next start for this node, even if the node only waits for a
        delay to pass.
        """
        if self._queue:
            self._node.send_at_window_end(self)
        elif self._totals.is_queued or self._totals.suspended:
            send(self)  # rule 20: nobody waits

    def _note_wait(self, permit: Permit) -> None:
        """Report, once for each request, that no permit was free for it."""
        if permit._stage is not Stage.WAITING or permit.waited:
            return
        permit.waited = True
        if permit._on_wait is not None:
            try:
                permit._on_wait()
            except BaseException as error:  # the caller's own function failed, so its request fails
                permit._refuse(error)
        self._node.emit(PermitWaiting, permit)

    # A request begins ---------------------------------------------------------------------------

    def _grant_to(
        self, permit: Permit, window_end: float, now: float, is_reused: bool = False
    ) -> None:
        """Give a permit to its request."""
        self._held[permit] = None
        self._unstarted += 1
        if is_reused and not self._pool.has_reused:
            self._pool.has_reused = True
            self._node.send_at_window_end(self)
        permit._reuse_until = window_end
        permit._grant(now)
        last = self.last_reply
        self._node.emit(PermitGranted, permit, last.limit if last else None, is_reused)

    def start(self, permit: Permit) -> None:
        """Note that the request with this permit begins."""
        if permit in self._held:
            self._unstarted -= 1
            self._totals.started += 1
            self._totals.last_start = self._node.now()
            self._node.emit(RequestBegun, permit)
            self._send_start()

    def _send_start(self) -> None:
        """If starts are spaced, report this one before the next is due."""
        last = self.last_reply
        if last and last.interval is not None and self.has_start_to_report:
            within = last.interval / 2 if last.interval >= SHORT_INTERVAL_S else 0.0
            self._node.send_by(self, within)  # rule 21: in time

    def note_response(self, status: int, size: int) -> None:
        """Report a request's end to observers, with its response's status (0: none) and size."""
        self._node.emit(RequestEnded, self.scope, status, size)

    # A request is done --------------------------------------------------------------------------

    def release(self, permit: Permit) -> None:
        """Take the permit of a request that is done: reuse it, keep it, or return it."""
        self.limits.drop(permit.limit)
        del self._held[permit]
        self._unstarted -= not permit._begun
        now = self._node.now()
        is_sent = permit._outcome is not None and self._note_outcome(permit, permit._outcome)
        # promise: reuse windows end
        may_reuse = permit._begun and not is_sent and now < permit._reuse_until
        may_reuse = may_reuse and self._may_reuse(now)
        if may_reuse and self._queue:
            self._node.emit(PermitReleased, permit)
            self._grant_to(self._queue.pop(), permit._reuse_until, now, is_reused=True)
            self._request_fewer(self._node.send_soon)
            return
        if may_reuse and not self.is_full:
            self._keep(1)
        else:
            self._return_one(permit._outcome)
        self._node.emit(PermitReleased, permit)

    def release_lost(self, permit: Permit) -> None:
        """Forget a lost permit, as its request has ended."""
        if permit in self._held:  # not lost on the server: the semaphore closes
            self.release(permit)
            return
        self.limits.drop(permit.limit)
        self._orphans.remove(permit)
        if not self._orphans:
            self._node.send_now(self)  # or the node forgets it, if it is empty
        self._node.emit(PermitReleased, permit)

    def _note_outcome(self, permit: Permit, outcome: Feedback) -> bool:
        """Note how the site answered. Returns whether the permit is returned, to report it."""
        if outcome.latency is not None:
            self.last_success = max(self.last_success, permit.granted_at)
        if outcome.failed:
            self.failures.note(permit.granted_at, self._node.now())
        else:
            self.failures.end()
        if outcome.refused:
            self._node.emit(RefusalReported, self.scope)
            # A request with a permit of this scope may get its other ones before the server
            # announces the pause, as the refused request's are reused.
            self._forbid_starts()
        is_news = outcome.refused or outcome.failed or outcome.retry_after > 0
        last = self.last_reply
        if is_news or (last and last.wants_feedback):
            self._feedback.append((outcome, permit.granted_at))
            return True
        return False

    def _forbid_starts(self) -> None:
        """Forbid requests that have not begun to begin under their present permits."""
        for permit in self._held:
            permit.must_not_start = True

    def _return_one(self, outcome: Feedback | None) -> None:
        """Return a permit to the server, with the outcome of its request."""
        self._totals.returned += 1
        asks_for_pause = outcome is not None and (outcome.refused or outcome.retry_after > 0)
        if asks_for_pause:
            self.stop_reuse()
        if asks_for_pause or self.is_full or self._queue:
            self._node.send_now(self)
        else:
            self._node.send_soon(self)

    # Reuse --------------------------------------------------------------------------------------

    @property
    def starts_count(self) -> bool:
        """Whether each start must be reported to the server: then no permit is reused."""
        limit = self.limits.strictest
        return self._is_reuse_stopped or bool(limit.delay or limit.rate)

    def _may_reuse(self, now: float) -> bool:
        """Whether a permit may go from one request to the next."""
        is_free = not (self.starts_count or self._is_closing or self.failures.are_limiting)
        # rule 18: nothing after the deadline
        return is_free and (now < self.deadline or not self.is_expired(now))

    def _window_end(self, now: float) -> float:
        """The end of a reuse window that begins now. While the site has permits to spare, all
        windows end together, at multiples of their length, so that all returns go in one call.
        """
        window = self._node.reuse_window
        if window == 0:
            return 0.0
        return now + window if self.is_full else common_window_end(now, window)

    def _extend_windows(self, now: float) -> None:
        """After a reply: permits may be reused for another window if the site has some to spare."""
        if self.is_full or self._is_reuse_stopped:
            self._return_spare()
            return
        window_end = self._window_end(now)
        self._pool.until = window_end + self._node.reuse_window
        for permit in self._held:
            permit._reuse_until = window_end

    def on_window_end(self) -> None:
        """End a common reuse window: return the permits that were spare throughout it, ask the
        server whether the site still has permits to spare, and send how many requests wait now.
        """
        totals = self._totals
        has_news = totals.granted + len(self._queue) != totals.requested + totals.suspended
        has_reused, unused = self._pool.has_reused, self._pool.end_window()
        if unused or has_news or (has_reused and not self.is_full):
            totals.returned += unused
            self._node.send_now(self)
        if self._pool.permits:
            self._node.send_at_window_end(self)

    def on_time(self) -> None:
        """Send an update if it is still needed, at the time set by `send_later` or `send_by`."""
        if self._queue or self.has_start_to_report:
            self._node.send_now(self)

    def _keep(self, permits: int) -> None:
        self._pool.permits += permits
        self._node.send_at_window_end(self)

    def _return_spare(self) -> None:
        if permits := self._pool.empty():
            self._totals.returned += permits
            self._node.send_now(self)

    def stop_reuse(self) -> None:
        """Reuse no permit until the server's next reply."""
        self._is_reuse_stopped = True
        for permit in self._held:
            permit._reuse_until = 0.0
        self._return_spare()

    def close(self) -> None:
        """Reuse no permit any more, and return all spare ones."""
        self._is_closing = True
        self._return_spare()

    # Updates to the server ----------------------------------------------------------------------

    def updates(self, now: float) -> list[LeaseUpdate]:
        """The updates for the next call: first, unchanged, those whose feedback has no reply yet,
        so that it counts once; then the present totals.
        """
        self.expire_if_due(now)
        if self._orphans or self.is_empty:  # rule 7: transfers of the old lease
            return []  # a lease begins when the last transfer of the one before has ended
        totals = self._totals
        eligible = self._eligible(now)
        totals.seq += 1
        totals.requested = totals.granted + eligible
        totals.suspended = len(self._queue) - eligible
        totals.started_sent = totals.started
        if self.deadline == math.inf:  # rule 16: from the first sending
            self.deadline = now + self._node.grace
        update = self._update(now)
        updates = [*self._unanswered, update]  # rule 14: until it is answered
        if update.feedback:
            self._unanswered.append(update)
        return updates

    def _eligible(self, now: float) -> int:
        """How many of the waiting requests may get a permit now, after this node's own failures."""
        waiting = len(self._queue)
        if not self.failures.are_limiting:
            return waiting
        held = sum(self.failures.is_try(permit.granted_at) for permit in self._held)
        return min(waiting, max(0, self.failures.may_hold(now) - held))

    def _update(self, now: float) -> LeaseUpdate:
        totals = self._totals
        first_held = next(iter(self._held), None)
        first_waiting = next(iter(self.waiting), None)
        feedback = [(outcome, now - granted_at) for outcome, granted_at in self._feedback]
        self._feedback.clear()
        return LeaseUpdate(
            scope=self.scope,
            limit=self.limits.strictest,
            lease_id=totals.lease_id,
            seq=totals.seq,
            requested=totals.requested,
            returned=totals.returned,
            granted_ack=totals.granted,
            started=totals.started,
            unstarted=self._unstarted,
            suspended=totals.suspended,
            held_age=max(0.0, now - first_held.granted_at) if first_held else 0.0,
            wait_age=max(0.0, now - first_waiting._requested_at) if first_waiting else 0.0,
            start_age=max(0.0, now - totals.last_start) if totals.started else 0.0,
            feedback=FeedbackSummary.of(feedback) if feedback else None,
        )

    # The server's replies -----------------------------------------------------------------------

    def on_reply(self, reply: Reply, sent: float) -> None:
        """Apply the reply to an update sent at `sent`. The order of the steps matters."""
        now = self._node.now()
        self.expire_if_due(now)  # rule 17: deadlines first
        update = reply.update
        if update.lease_id != self._totals.lease_id:  # rule 13: reply of another lease
            return
        if reply.status != "ok":
            self._on_rejected(reply)
            return
        # 1. The lease is renewed, and the update's feedback has arrived.
        self.deadline = max(self.deadline, sent + self._node.grace)  # rule 16: from the sending
        # rule 14: answered
        self._unanswered = [other for other in self._unanswered if other.seq != update.seq]
        # 2. A new pause stops reuse; the reply then decides whether permits may be reused again.
        if reply.paused_at:
            self._apply_pause(reply)
        before, self.last_reply = self.last_reply, reply
        self._is_reuse_stopped = reply.starts_count
        if reply.answered_ago is not None:
            self.last_success = max(self.last_success, sent - reply.answered_ago)
        note_reply(self._node, before, reply)
        is_known = before is not None and before.is_stricter
        # What AutoThrottle computes differs from node to node, and with time.
        if reply.is_stricter and not is_known and not self.limits.has_own:
            self._node.emit(LimitOverruled, self.scope, reply.update.limit)
        # 3. Requests get what was granted.
        self._take_grants(reply.granted, now)
        self._send_start()  # some may have begun before it was known that starts are spaced
        # 4. Only requests that still wait fail, or are notified that they wait.
        for finding in reply.findings:
            self.on_finding(finding)
        for permit in self._queue.pop_answered(update.seq):
            self._note_wait(permit)
        self._apply_own_failures(reply, now)
        if reply.retry_in is not None and self._queue:
            self._node.send_later(self, reply.retry_in)
        self._extend_windows(now)
        # 5. A lease that the server has closed is not used again.
        if self._totals.is_closed_by(update) and not self._eligible(now):
            self._begin_lease()

    def _on_rejected(self, reply: Reply) -> None:
        why = {"refused": NOT_READ, "unreadable": UNREADABLE}.get(reply.status, NOT_OURS)
        self.lose_all(why, reply.lease_id)
        if reply.status == "refused":
            note_unread(self._node, reply)
        if reply.status in ("refused", "unreadable"):
            self._node.send_later(self, RETRY_UNREAD_S)
        else:
            self._request_again()

    def _apply_pause(self, reply: Reply) -> None:
        paused_at, length = self._pause
        if reply.paused_at > paused_at:  # its notification was lost, or comes later
            self.on_pause(reply.paused_at, reply.pause_length)
        elif reply.pause_length > length:
            self._note_pause(paused_at, reply.pause_length)

    def _take_grants(self, granted: int, now: float) -> None:
        """Give granted permits to waiting requests. A surplus stays if the site has more."""
        new = granted - self._totals.granted
        if new <= 0:
            return  # a message or an earlier reply has granted them
        self._totals.granted = granted
        self.sent = *self.sent[:2], granted  # rule 30: granted since
        window_end = self._window_end(now)
        for _ in range(min(new, self._eligible(now))):
            self._grant_to(self._queue.pop(), window_end, now)
            new -= 1
        # promise: no spare permit at a full site
        if new > 0 and self._may_reuse(now) and now < window_end and not self.is_full:
            self._keep(new)
            new = 0
        self._totals.returned += new  # rule 11: surplus
        if new > 0 or (self._queue and not self._totals.is_queued):
            self._node.send_now(self)

    def _apply_own_failures(self, reply: Reply, now: float) -> None:
        """After failures, pause with all other nodes if the site responds to none; or alone."""
        failures, feedback = self.failures, reply.update.feedback
        if not failures.are_many:
            return
        if any(finding.explains_failures for finding in reply.findings):
            failures.end_pause()
        elif feedback and feedback.failed and failures.is_in_question:
            seconds = failures.begin_pause(now, self._node.backoff)
            note_own_pause(self._node, self.scope, seconds, failures.in_a_row)
        if not self._queue:
            return
        if now < failures.until < math.inf:
            self._node.send_later(self, failures.until - now)
        elif self._eligible(now) and not self._totals.is_queued:
            self._node.send_now(self)

    # Messages on the node's channel -------------------------------------------------------------

    def on_granted(self, lease_id: int, granted: int) -> None:
        """Apply a grant: the number of permits granted under this lease so far."""
        now = self._node.now()
        self.expire_if_due(now)
        # rule 13: message of another lease
        if lease_id == self._totals.lease_id and self.deadline < math.inf:
            # rule 17: grants near the deadline
            if self.is_expired(now + self._node.least_left):
                self._node.send_now(self)  # the reply renews the lease, and grants
            else:
                self._take_grants(granted, now)

    def on_pause(self, paused_at: int, length: float) -> None:
        """Begin a pause that the site has caused or asked for. Times are in milliseconds."""
        self._note_pause(paused_at, length)
        self._forbid_starts()
        self.stop_reuse()

    def _note_pause(self, paused_at: int, length: float) -> None:
        self._pause = paused_at, length
        self._node.emit(PauseBegun, self.scope, paused_at, length)

    def on_finding(self, finding: Finding) -> None:
        """Fail waiting requests if a policy has found that the site is shut."""
        waiting = self._queue.clear() if finding.shut else ()
        for permit in waiting:
            self._node.emit(FailedAtOnce, permit)
            permit._refuse(finding.failure(self.scope))
        if waiting:
            self._node.send_now(self)

    # The end of a lease -------------------------------------------------------------------------

    def expire_if_due(self, now: float) -> None:
        """Lose all permits after the deadline. Called before any message is applied or sent."""
        if now >= self.deadline and self.is_expired(now):
            self.lose_all(NOT_RENEWED)
            self._request_again()

    def is_expired(self, now: float) -> bool:
        """Whether the lease may be over, even if the renewal thread has renewed it."""
        if now >= self.deadline:
            lease_id, repeated_until = self.repeated
            if lease_id == self._totals.lease_id:
                self.deadline = max(self.deadline, repeated_until)  # rule 30: before anything ends
        return now >= self.deadline

    def lose_all(self, why: str, above: int = 0) -> None:
        """End a lease that may be over: lose its permits, cancel their transfers, begin anew."""
        lost = list(self._held)
        self._held.clear()
        self._unstarted = 0
        self._orphans.update(lost)
        self._begin_lease(above)
        for permit in lost:
            stopped = ", so its work was stopped" if permit._watchers else ""
            permit._lose(f"the permit for {self.scope!r} {why}{stopped}")
        for permit in lost:
            note_loss(self._node, permit, why)

    def on_new_epoch(self) -> None:
        """Claim all held permits under a new lease in the next update, as the server is in another
        epoch. The old deadline holds until the claim is answered.
        """
        deadline = self.deadline
        self._begin_lease()
        if self._held:
            self._totals.granted = len(self._held)  # rule 3: claims
            self.deadline = deadline  # rule 4: old deadline
        self.stop_reuse()

    def _begin_lease(self, above: int = 0) -> None:
        """Begin a new lease, in which nothing of the old one counts."""
        self._totals = LeaseTotals(self._node.new_lease_id(above))  # rule 5: new lease
        self._pool.empty()
        self._feedback.clear()
        self._unanswered.clear()
        self._queue.ask_anew()
        self.failures.end_question()
        self.deadline = math.inf

    def _request_again(self) -> None:
        """Request permits under the new lease, once all transfers of the old one have ended."""
        if self._queue and not self._orphans:
            self._node.send_now(self)

    # In the renewal thread ----------------------------------------------------------------------

    def to_repeat(self, epoch: bytes) -> list[LeaseUpdate]:
        """The updates of the last call in this epoch, if permits are held. They ask for no new
        permit, which a stalled event loop could not use.
        """
        epoch_then, updates, granted = self.sent
        if epoch_then != epoch or not updates:
            return []
        *earlier, latest = updates
        has_ended = self.repeated == (latest.lease_id, -math.inf)  # on the server
        if has_ended or granted <= latest.returned:
            return []
        # What was granted since then counts as unstarted.
        unstarted = latest.unstarted + granted - latest.granted_ack
        # rule 30: asks for nothing
        # rule 30: claims
        counts = replace(latest, requested=granted, granted_ack=granted, unstarted=unstarted)
        repeated = [replace(one, requested=one.granted_ack, suspended=0) for one in earlier]
        return [*repeated, replace(counts, suspended=0)]

    # For the node -------------------------------------------------------------------------------

    @property
    def held(self) -> Collection[Permit]:
        """Permits held by requests, the oldest first."""
        return self._held.keys()

    @property
    def in_use(self) -> int:
        """How many requests have a permit, or go on although they have lost theirs."""
        return len(self._held) + len(self._orphans)

    @property
    def waiting(self) -> Collection[Permit]:
        """Permits of waiting requests, the oldest first."""
        return self._queue.permits

    @property
    def is_full(self) -> bool:
        """Whether the site had no permit to spare at the last reply."""
        return self.last_reply is not None and self.last_reply.available <= 0

    @property
    def findings(self) -> Sequence[Finding]:
        """What policies have found about the site, by the last reply."""
        return self.last_reply.findings if self.last_reply else ()

    @property
    def pause_end(self) -> float:
        """When the site's last pause ends, in seconds by the server's clock."""
        return sum(self._pause) / 1000

    @property
    def has_start_to_report(self) -> bool:
        """Whether a request has begun since the last update."""
        return self._totals.started > self._totals.started_sent

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to send to the server or to report to a request."""
        is_open = self.deadline < math.inf
        return not (is_open or self._held or self._queue or self._orphans)

    @property
    def is_forgettable(self) -> bool:
        """Whether it is empty, and has no failures to remember."""
        if not self.is_empty:
            return False
        remembered_until = self.failures.last_at + self._node.backoff.most
        return self._is_closing or self._node.now() >= remembered_until
