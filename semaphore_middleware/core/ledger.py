"""What one node wants and holds: the permits, what is to be said of them, and when time is up.

Every verb is idempotent, so after a gap all of it is simply said again.
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

BUSY = 1 / 400  # seconds from one request to the next, below which calls cost a node too much
MANY = 1000  # scopes to remember
EARLY = 0.001  # seconds: timers are so late, since the event loop's poll counts in milliseconds


class Ledger:
    """`something_to_say` is called whenever `gather` has something to give, with whether to say it
    at once: somebody waits, or few are asked for. Else it is worth waiting for more.
    """

    def __init__(
        self,
        lease: float,
        emit: Callable[[Event], None],
        something_to_say: Callable[[bool], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._lease = lease
        self._grace = GRACE * lease  # from sending a call that lengthens a lease to the deadline
        self._emit = emit
        self._something_to_say = something_to_say
        self._numbers = itertools.count(1)
        self._permits: dict[int, Permit] = {}  # waiting and held, in the order of asking
        self._to_ask: dict[int, Permit] = {}
        self._to_release: dict[int, tuple[str, Limit]] = {}
        self._to_report: dict[int, tuple[str, Limit, Feedback, float]] = {}
        self._say_all_due = False
        self._asked_at = -math.inf
        self._pace = 1.0  # seconds from one request to the next, on average
        self._tight: set[str] = set()  # scopes that had no permit to spare when last heard of
        self._curious: set[str] = set()  # scopes of which the server wants to know all answers
        self._limits: dict[str, int] = {}  # in force, when last heard of
        self._closed = False
        self._renewal: asyncio.TimerHandle | None = None
        self._deadlines: asyncio.TimerHandle | None = None
        self._again: dict[str, asyncio.TimerHandle] = {}

    def __str__(self) -> str:
        held = len(self._in_stage(Stage.HELD))
        return f"{held} held, {len(self._permits) - held} waiting"

    @property
    def settled(self) -> bool:
        """Whether everything has been given back, and the server knows."""
        return not self._permits and not self._to_release and not self._to_report

    def permits(self) -> Collection[Permit]:
        """All that wait and all that are held."""
        return self._permits.values()

    def limit_of(self, scope: str) -> int | None:
        """The limit in force, as last heard of."""
        return self._limits.get(scope)

    def drain(self) -> None:
        """Let nobody in any more."""
        self._closed = True
        for permit in self._in_stage(Stage.WAITING):
            permit.refuse(ClosedError("the semaphore is closing"))

    def give_all_back(self) -> None:
        """What runs under a permit is cancelled; that permit goes back when it has ended."""
        self.drain()
        for permit in list(self._permits.values()):
            if permit.stage is Stage.HELD and permit.ends_with_loss:
                permit.lose(f"the semaphore was closed over a permit for {permit.scope!r}")
            else:
                permit.release()

    def stop_timers(self) -> None:
        for timer in (*self._again.values(), self._renewal, self._deadlines):
            if timer is not None:
                timer.cancel()

    # What is to be said -------------------------------------------------------------------------

    def ask(self, scope: str, limit: Limit, owner: object = None) -> Permit:
        """Want a permit; its future tells when it is there."""
        if self._closed:
            raise ClosedError("the semaphore is closing")
        permit = Permit(scope, limit, next(self._numbers), self._loop, self._give_back, owner)
        self._permits[permit.number] = permit
        self._to_ask[permit.number] = permit
        self._pace += (min(1.0, permit.asked_at - self._asked_at) - self._pace) / 16
        self._asked_at = permit.asked_at
        self._something_to_say(self._pace > BUSY or scope in self._tight)
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
        if outcome and (outcome.latency is None or limit.adaptive or scope in self._curious):
            self._to_report[permit.number] = scope, limit, outcome, permit.granted_at
        else:
            self._to_release[permit.number] = scope, limit
        refused = outcome is not None and outcome.refused
        self._something_to_say(refused or scope in self._tight)

    def say_all(self) -> None:
        """Ask for all that wait and renew all that is held: after a gap, and to keep the leases."""
        self._say_all_due = True
        self._something_to_say(True)

    def gather(self, now: float) -> list[Ask]:
        everything, self._say_all_due = self._say_all_due, False
        held = self._in_stage(Stage.HELD) if everything else []
        waiting = self._in_stage(Stage.WAITING) if everything else [*self._to_ask.values()]
        for permit in waiting:
            if permit.deadline and permit.deadline <= now:
                # So late that it may have been granted and taken back, and that grant still be on
                # its way here: under a new number it cannot be mistaken for the one to come.
                self._renumber(permit)
            # Counted from the first call until one is answered: any of them may have been heard.
            permit.deadline = permit.deadline or now + self._grace
        self._to_ask.clear()
        return [
            *self._reports(now),
            *asks("release", ((n, *what) for n, what in self._to_release.items())),
            *asks("renew", ((p.number, p.scope, p.limit) for p in held)),
            *asks("acquire", ((p.number, p.scope, p.limit) for p in waiting)),
        ]

    def _reports(self, now: float) -> list[Ask]:
        """First of all that is said: a site that said "not now" is to be left alone at once."""
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

    # What is heard ------------------------------------------------------------------------------

    def settle(self, reply: Reply, sent: float) -> None:
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
        for known in (self._tight, self._curious, self._limits):
            if len(known) > MANY:  # of sites that this node has long done with
                known.clear()
        (self._tight.discard if reply.available > 0 else self._tight.add)(scope)
        (self._curious.add if reply.wants_feedback else self._curious.discard)(scope)
        self._limits[scope] = reply.limit
        if reply.backoff is not None:
            self._emit(BackoffStarted(scope, reply.backoff))
            logger.info(
                "%s says 'not now', or does not answer: no node starts a request there for %.3g s.",
                scope,
                reply.backoff,
            )

    def hear(self, payload: bytes) -> None:
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
            return  # told twice, or given back while the grant was under way
        self._to_ask.pop(number, None)
        now = self._loop.time()
        if now < permit.deadline:
            permit.grant(now)
            self._emit(PermitGranted(permit, self._limits.get(permit.scope)))
            self._check_by(permit.deadline)
            return
        # So late that the server may count it as over already.
        self._renumber(permit)

    def _renumber(self, permit: Permit) -> None:
        """Give back what there may be of it on the server, and ask anew."""
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
                "This process stood still for %.1f s, and so could not renew its permits. A permit "
                "outlives %.1f s: is it the machine, or a callback that computes for long?",
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
        """One timer a scope, for its first waiter here: only time is in that one's way."""
        if timer := self._again.pop(scope, None):
            timer.cancel()
        wait = max(0.0, wait - EARLY)
        self._again[scope] = self._loop.call_later(wait, self._ask_for_first, scope)

    def _ask_for_first(self, scope: str) -> None:
        self._again.pop(scope, None)
        for permit in self._permits.values():
            if permit.scope == scope and permit.stage is Stage.WAITING:
                self._to_ask[permit.number] = permit
                self._something_to_say(True)
                return
