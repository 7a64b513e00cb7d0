"""One node's permits: demand, leases, timers, and what the server is to be told of them. No I/O.

Every verb is idempotent, so after a gap everything is simply sent again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Callable, Collection
from dataclasses import replace

from semaphore_middleware.core.observer import (
    BackoffStarted,
    Event,
    PermitGranted,
    PermitLost,
    PermitReleased,
    PermitWaiting,
    ProcessStalled,
    UnknownNotification,
)
from semaphore_middleware.core.permit import Permit, Stage
from semaphore_middleware.errors import ClosedError
from semaphore_middleware.model.feedback import Feedback, FeedbackSummary
from semaphore_middleware.model.lease import GRACE, RENEWAL
from semaphore_middleware.model.limits import Limit
from semaphore_middleware.redis.protocol import Ask, Notification, Reply, asks

logger = logging.getLogger(__name__)

BUSY_INTERVAL_S = 1 / 400  # between two requests: if it is shorter, a call for each costs too much
REMEMBERED_SCOPES_MAX = 1000
TIMER_LAG_S = 0.001  # timers are so late, since the event loop's poll counts in milliseconds


class Ledger:
    """The permits that this node holds or waits for, of all scopes.

    `something_to_say` is called whenever `gather` has something to send. Its argument is True if
    that should go at once, as a request waits for it; otherwise it is cheaper to wait for more.
    """

    def __init__(
        self,
        lease: float,
        emit: Callable[[Event], None],
        something_to_say: Callable[[bool], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._lease = lease
        self._grace = GRACE * lease  # seconds from sending a renewal to the deadline
        self._emit = emit
        self._something_to_say = something_to_say
        self._numbers = itertools.count(1)
        self._permits: dict[int, Permit] = {}  # waiting and held, in the order of asking
        self._to_ask: dict[int, Permit] = {}
        self._to_release: dict[int, tuple[str, Limit]] = {}
        self._to_report: dict[int, tuple[str, Limit, Feedback, float]] = {}
        self._say_all_due = False
        self._asked_at = -math.inf
        self._request_interval = 1.0  # seconds between two requests, on average
        self._at_limit: set[str] = set()  # scopes that had no free permit, as last heard
        self._wants_feedback: set[str] = set()  # scopes of which it wants all responses reported
        self._limits: dict[str, int] = {}  # in force, as last heard
        self._closed = False
        self._renewal: asyncio.TimerHandle | None = None
        self._deadlines: asyncio.TimerHandle | None = None
        self._retry_timers: dict[str, asyncio.TimerHandle] = {}

    def __str__(self) -> str:
        held = len(self._in_stage(Stage.HELD))
        return f"{held} held, {len(self._permits) - held} waiting"

    @property
    def settled(self) -> bool:
        """True if everything has been given back, and the server has confirmed it."""
        return not self._permits and not self._to_release and not self._to_report

    def permits(self) -> Collection[Permit]:
        """All permits that are held or waited for."""
        return self._permits.values()

    def limit_of(self, scope: str) -> int | None:
        """The limit in force, as last heard; None: not known."""
        return self._limits.get(scope)

    def drain(self) -> None:
        """Refuse requests that wait, and those to come, with `ClosedError`."""
        self._closed = True
        for permit in self._in_stage(Stage.WAITING):
            permit.refuse(ClosedError("the semaphore is closing"))

    def give_all_back(self) -> None:
        """Release all permits; what runs under one is cancelled, and releases it at its end."""
        self.drain()
        for permit in list(self._permits.values()):
            if permit.stage is Stage.HELD and permit.ends_with_loss:
                permit.lose(f"the semaphore was closed over a permit for {permit.scope!r}")
            else:
                permit.release()

    def stop_timers(self) -> None:
        """Cancel all timers: the session ends."""
        for timer in (*self._retry_timers.values(), self._renewal, self._deadlines):
            if timer is not None:
                timer.cancel()

    # To the server ------------------------------------------------------------------------------

    def ask(self, scope: str, limit: Limit, owner: object = None) -> Permit:
        """Ask for a permit. Raises `ClosedError` after `drain`."""
        if self._closed:
            raise ClosedError("the semaphore is closing")
        permit = Permit(scope, limit, next(self._numbers), self._loop, self._give_back, owner)
        self._permits[permit.number] = permit
        self._to_ask[permit.number] = permit
        self._request_interval += (
            min(1.0, permit.asked_at - self._asked_at) - self._request_interval
        ) / 16
        self._asked_at = permit.asked_at
        self._something_to_say(self._request_interval > BUSY_INTERVAL_S or scope in self._at_limit)
        if self._renewal is None:
            self._renewal = self._loop.call_later(RENEWAL * self._lease, self._renew)
        return permit

    def _give_back(self, permit: Permit) -> None:
        self._permits.pop(permit.number, None)
        self._to_ask.pop(permit.number, None)
        if permit.stage is not Stage.WAITING:
            self._emit(PermitReleased(permit))
        if not permit.deadline:  # the server has never heard of it
            return
        scope, limit, outcome = permit.scope, permit.limit, permit.outcome
        if outcome and (outcome.latency is None or limit.adaptive or scope in self._wants_feedback):
            self._to_report[permit.number] = scope, limit, outcome, permit.granted_at
        else:
            self._to_release[permit.number] = scope, limit
        refused = outcome is not None and outcome.refused
        self._something_to_say(refused or scope in self._at_limit)

    def say_all(self) -> None:
        """Ask for all that wait, renew all that are held: after a gap, and to keep the leases."""
        self._say_all_due = True
        self._something_to_say(True)

    def gather(self, now: float) -> list[Ask]:
        """What the next round trip should tell the server; `now` is on the loop's clock."""
        everything, self._say_all_due = self._say_all_due, False
        held = self._in_stage(Stage.HELD) if everything else []
        waiting = self._in_stage(Stage.WAITING) if everything else [*self._to_ask.values()]
        for permit in waiting:
            if permit.deadline and permit.deadline <= now:
                # So late that the server may have granted it and ended its lease. That grant may
                # still arrive: with a new number it cannot be taken for the next one.
                self._renumber(permit)
            # From the first call on, until one is answered: the server may have run any of them.
            permit.deadline = permit.deadline or now + self._grace
        self._to_ask.clear()
        return [
            *self._reports(now),
            *asks("release", ((n, *what) for n, what in self._to_release.items())),
            *asks("renew", ((p.number, p.scope, p.limit) for p in held)),
            *asks("acquire", ((p.number, p.scope, p.limit) for p in waiting)),
        ]

    def _reports(self, now: float) -> list[Ask]:
        """They go before all else: a site that refused a request gets a pause at once."""
        outcomes = {
            n: (outcome, now - granted_at)
            for n, (_, _, outcome, granted_at) in self._to_report.items()
        }
        of_sites = asks("report", ((n, *what[:2]) for n, what in self._to_report.items()))
        return [
            replace(ask, feedback=FeedbackSummary.of(outcomes[number] for number in ask.numbers))
            for ask in of_sites
        ]

    def _in_stage(self, stage: Stage) -> list[Permit]:
        return [permit for permit in self._permits.values() if permit.stage is stage]

    # From the server ----------------------------------------------------------------------------

    def settle(self, reply: Reply, sent: float) -> None:
        """The server has replied to what was sent at the time `sent`, on the loop's clock."""
        ask = reply.ask
        self._note(ask.scope, reply)
        if ask.verb in ("release", "report"):
            for number in ask.numbers:
                self._to_release.pop(number, None)
                self._to_report.pop(number, None)
        else:
            for number in ask.numbers:
                if (permit := self._permits.get(number)) and number not in reply.lost:
                    permit.deadline = sent + self._grace
        for number in reply.lost:
            self._lose(number)
        for number in reply.granted:
            self._grant(number)
        if ask.verb == "acquire":
            for number in ask.numbers:
                permit = self._permits.get(number)
                if permit and permit.stage is Stage.WAITING and not permit.waited:
                    permit.waited = True
                    self._emit(PermitWaiting(permit))
        if reply.retry_in is not None:
            self._ask_again(ask.scope, reply.retry_in)

    def _note(self, scope: str, reply: Reply) -> None:
        for known in (self._at_limit, self._wants_feedback, self._limits):
            if len(known) > REMEMBERED_SCOPES_MAX:  # most are of sites that this node is done with
                known.clear()
        (self._at_limit.discard if reply.available > 0 else self._at_limit.add)(scope)
        (self._wants_feedback.add if reply.wants_feedback else self._wants_feedback.discard)(scope)
        self._limits[scope] = reply.limit
        if reply.backoff is not None:
            self._emit(BackoffStarted(scope, reply.backoff))
            logger.info(
                "%s refused a request, or did not respond: no node starts one there for %.3g s.",
                scope,
                reply.backoff,
            )

    def hear(self, payload: bytes) -> None:
        """A message has come over this node's channel."""
        message = Notification.read(payload)
        if message is None:
            self._emit(UnknownNotification())
            return
        for number in message.granted:
            self._grant(number)
        for number, wait in message.retry_in:
            if permit := self._permits.get(number):
                self._ask_again(permit.scope, wait)
        for number in message.backoff:
            if permit := self._permits.get(number):
                permit.withdrawn = True
        if message.changed:
            firsts = {p.scope: p for p in reversed(self._in_stage(Stage.WAITING))}
            self._to_ask |= {permit.number: permit for permit in firsts.values()}
            self._something_to_say(True)

    def _grant(self, number: int) -> None:
        permit = self._permits.get(number)
        if permit is None or permit.stage is not Stage.WAITING:
            return  # notified twice, or given back while the grant was on its way
        self._to_ask.pop(number, None)
        now = self._loop.time()
        if now < permit.deadline:
            permit.grant(now)
            self._emit(PermitGranted(permit, self._limits.get(permit.scope)))
            self._check_by(permit.deadline)
            return
        # So late that the server may have ended the lease already.
        self._renumber(permit)

    def _renumber(self, permit: Permit) -> None:
        """Give back what the server may know of it, and ask again with a new number."""
        self._give_back(permit)
        permit.number, permit.deadline = next(self._numbers), 0.0
        self._permits[permit.number] = permit
        self._to_ask[permit.number] = permit

    def _lose(self, number: int) -> None:
        permit = self._permits.pop(number, None)
        if permit is not None and permit.stage is Stage.HELD:
            self._emit(PermitLost(permit))
            logger.warning("Lost a permit for %r.", permit.scope)
            permit.lose(
                f"the permit for {permit.scope!r} could not be renewed in time, so its work was "
                "stopped; is the server reachable, and does anything block the event loop?"
            )

    # Time ---------------------------------------------------------------------------------------

    def _renew(self) -> None:
        assert self._renewal is not None
        late = self._loop.time() - self._renewal.when()
        self._renewal = None
        if late > RENEWAL * self._lease:
            self._emit(ProcessStalled(late))
            logger.warning(
                "This process stood still for %.1f s and could not renew its permits, which end "
                "after %.1f s. Does a callback compute for long, does the machine swap, or was it "
                "suspended?",
                late,
                self._lease,
            )
        if self._permits:
            self.say_all()
            self._renewal = self._loop.call_later(RENEWAL * self._lease, self._renew)

    def _check_by(self, deadline: float) -> None:
        if self._deadlines is not None:
            if self._deadlines.when() <= deadline:
                return
            self._deadlines.cancel()
        self._deadlines = self._loop.call_at(deadline, self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._deadlines = None
        now = self._loop.time()
        for permit in self._in_stage(Stage.HELD):
            if permit.deadline <= now:
                self._lose(permit.number)
        if held := self._in_stage(Stage.HELD):
            self._check_by(min(permit.deadline for permit in held))

    def _ask_again(self, scope: str, wait: float) -> None:
        """One timer per scope, for its first request here, which has to wait only for the time."""
        if timer := self._retry_timers.pop(scope, None):
            timer.cancel()
        wait = max(0.0, wait - TIMER_LAG_S)
        self._retry_timers[scope] = self._loop.call_later(wait, self._ask_for_first, scope)

    def _ask_for_first(self, scope: str) -> None:
        self._retry_timers.pop(scope, None)
        for permit in self._permits.values():
            if permit.scope == scope and permit.stage is Stage.WAITING:
                self._to_ask[permit.number] = permit
                self._something_to_say(True)
                return
