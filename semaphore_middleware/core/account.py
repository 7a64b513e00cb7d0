"""One scope's permits in this process: demand, turns, lease and counts. No I/O.

An account is what a node and the server both know of the node's permits of one scope. Its numbers
are totals since its term began. So a statement may be sent twice or late without harm, and after a
gap the node simply sends its present one. The rules are those of docs/protocol.md.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

from semaphore_middleware.core.failures import Failures
from semaphore_middleware.core.handover import Handover
from semaphore_middleware.core.line import Line
from semaphore_middleware.core.observer import (
    BackoffStarted,
    Event,
    FailedAtOnce,
    Fields,
    HostDown,
    LimitOverruled,
    NodePaused,
    PauseBegun,
    PauseCaused,
    PermitGranted,
    PermitLost,
    PermitReleased,
    PermitWaiting,
    RefusalReported,
    RequestBegun,
    RequestEnded,
    SiteWalled,
    StatementRefused,
    UsageReported,
)
from semaphore_middleware.core.permit import Permit, Stage
from semaphore_middleware.core.protocol import Reply, Statement
from semaphore_middleware.core.turns import Hand, common_turn_end
from semaphore_middleware.errors import HostDownError, SiteWalledError
from semaphore_middleware.link.text import digits
from semaphore_middleware.model.feedback import Backoff, Feedback, FeedbackSummary
from semaphore_middleware.model.inspection import refusals_text
from semaphore_middleware.model.limits import Limit, strictest
from semaphore_middleware.model.reasons import Reason

logger = logging.getLogger(__name__)

LATE_FROM_S = 0.5  # between two starts: if it is less, each is reported at once
REFUSED_RETRY_S = 1.0  # after a statement, or a scope, that the server could not read

# What has become of permits that are lost.
NOT_RENEWED = (
    "could not be renewed in time (is the server reachable, and does anything block the event "
    "loop?)"
)
NOT_OURS = (
    "has ended on the server (its lease was over, an operator evicted this node, or the server has "
    "lost data)"
)
NOT_READ = "could not be renewed, as the server could not read what this node reported"
UNREADABLE = "could not be renewed, as the data of its site on the server is damaged"
NOT_SENT = "could not be renewed, as what is to be reported cannot be sent"


class Desk(Protocol):
    """An account's view of its node: a clock, settings, and the ways to send a statement."""

    node: str
    """This node's name."""
    turn: float
    """Seconds for which a permit may serve further requests; 0: it serves one only."""
    backoff: Backoff
    handover: Handover

    @property
    def grace(self) -> float:
        """Seconds from sending a statement to the deadline that its reply sets."""

    def now(self) -> float:
        """The loop's clock."""

    def emit(self, kind: Callable[[*Fields], Event], *fields: *Fields) -> None:
        """Notify observers of an event."""

    def new_term(self, above: int = 0) -> int:
        """A new number above `above`."""

    def send(self, account: Account, at_once: bool) -> None:
        """Send the account's statement, at once or together with others."""

    def send_at_turns_end(self, account: Account) -> None:
        """Call the account's `end_turns` when the common turn ends."""

    def send_later(self, account: Account, seconds: float) -> None:
        """Send the account's statement after `seconds`, if its requests still wait."""

    def send_by(self, account: Account, seconds: float) -> None:
        """Send the account's statement within `seconds`, if it still has a start to report."""


@dataclass(slots=True)
class AccountCounts:
    """Counts of a node's permits of one scope since a term began, as sent and as replied."""

    term: int
    seq: int = 0
    asked: int = 0
    """As last sent."""
    resting: int = 0
    """As last sent."""
    granted: int = 0
    returned: int = 0
    started: int = 0
    reported: int = 0
    """Requests begun, as last sent."""
    began_at: float = 0.0
    """When the last one did, by the loop's clock."""

    @property
    def is_queued(self) -> bool:
        """True if more was asked for than granted: this node is in the server's queue."""
        return self.asked > self.granted

    def is_closed_by(self, statement: Statement) -> bool:
        """True if this statement closed the account on the server: it is the newest, with nothing
        held or wanted then or now.
        """
        return (
            statement.seq == self.seq
            and statement.asked == statement.returned
            and statement.resting == 0
            and self.granted == self.returned == statement.returned
        )


@dataclass(slots=True)
class SiteState:
    """The state of a scope, as last reported by the server."""

    available: int = 1
    """Permits to spare; one until the server has replied."""
    limit: int | None = None
    """How many may hold a permit, on all nodes; None: not known."""
    reason: Reason | None = None
    """Why requests wait."""
    is_counted: bool = False
    """True if each start counts, so that no permit is handed on."""
    gap: float | None = None
    """The least time from one start to the next; None: starts are not spaced."""
    wants_feedback: bool = False
    is_overruled: bool = False
    """True if another node asks for a stricter limit."""
    is_down: bool = False
    is_walled: bool = False
    paused_at: int = 0
    """When its last pause began, in milliseconds by the server's clock."""
    pause_length: float = 0.0
    """In milliseconds."""

    @property
    def pause_end(self) -> float:
        """When its last pause ends, in seconds by the server's clock."""
        return (self.paused_at + self.pause_length) / 1000


class Account:
    """One scope's permits in this process, counted since the current term began.

    Of the permits granted in this term some were returned. Each of the others is held by a request,
    or kept in hand for the next one: granted - returned = held + in hand.
    """

    def __init__(self, scope: str, limit: Limit, desk: Desk) -> None:
        self.scope = scope
        self.limit = limit
        """The strictest one named by the requests that wait or hold a permit now."""
        self._limits: dict[Limit, int] = {}  # how many such requests name it
        self._desk = desk
        self._line = Line()
        self._held: OrderedDict[Permit, None] = OrderedDict()  # in the order of the grants
        self._hand = Hand()
        self._ending: set[Permit] = set()  # lost, but their requests have not ended yet
        self._is_draining = False
        self._pending = 0  # permits that are held, and under which no request has begun
        self._counts = AccountCounts(desk.new_term())
        self.deadline = math.inf
        """When the lease may be over; infinite while nothing was sent under this term."""
        self._feedback: list[tuple[Feedback, float]] = []  # to be sent; with the time of the grant
        self._unanswered: list[Statement] = []  # those with feedback
        self.site = SiteState()
        self.answered_at = -math.inf
        """When the newest request known to have succeeded began, on any node."""
        self._has_handed_on = False  # since the last common turn
        self._failures = Failures()

    def __repr__(self) -> str:
        counts = f"{len(self._held)} held, {len(self._line)} waiting"
        return f"<Account {self._counts.term} with {self.scope!r}: {counts}>"

    @property
    def held(self) -> Collection[Permit]:
        """Permits held by requests, the oldest first."""
        return self._held.keys()

    @property
    def waiting(self) -> Collection[Permit]:
        """Permits of waiting requests, the oldest first."""
        return self._line.permits

    @property
    def ending(self) -> int:
        """Requests still running under lost permits; until they end, none starts."""
        return len(self._ending)

    @property
    def is_empty(self) -> bool:
        """True if nothing is left to be sent to the server or reported to a request."""
        is_open = self.deadline < math.inf
        return not (is_open or self._held or self._line or self._ending)

    @property
    def is_forgettable(self) -> bool:
        """True if it is empty, and has no failures to remember."""
        if not self.is_empty:
            return False
        failures = self._failures
        if self._is_draining or not failures.in_a_row:
            return True
        return self._desk.now() >= failures.failed_at + self._desk.backoff.most

    @property
    def is_at_limit(self) -> bool:
        """True if the site had no permit to spare at the last reply."""
        return self.site.available <= 0

    @property
    def waits_to_report(self) -> bool:
        """True if a request has begun since the last statement."""
        return self._counts.started > self._counts.reported

    @property
    def is_walled(self) -> bool:
        """True if the site has refused all requests for long, as last reported."""
        return self.site.is_walled

    @property
    def starts_count(self) -> bool:
        """True if each start counts or is reported; then no permit is handed on."""
        limit = self.limit
        return self.site.is_counted or bool(limit.delay or limit.rate or limit.adaptive)

    # Requests -----------------------------------------------------------------------------------

    def request(self, permit: Permit) -> None:
        """Take a permit for a request: from the hand, else from the server."""
        now = self._desk.now()
        self._limits[permit.limit] = self._limits.get(permit.limit, 0) + 1
        if permit.limit != self.limit:  # promise: strictest of a node's requests
            self.limit = reduce(strictest, self._limits)
        if self._hand.permits and now < self._hand.until and self._may_hand_on(now):
            self._hand.take()
            turn_end = min(self._turn_end(now), self._hand.until)
            self._start(permit, turn_end, now, handed_on=True)
        elif self.is_at_limit and self._counts.is_queued:
            # However many of its requests wait there.
            self._line.add(permit, None)
            self._report_wait(permit)
            self._desk.send_at_turns_end(self)
        else:
            self._line.add(permit, self._counts.seq + 1)
            self._desk.send(self, self.is_at_limit)

    def begin(self, permit: Permit) -> None:
        """The request with this permit begins."""
        if permit in self._held:
            self._pending -= 1
            self._counts.started += 1
            self._counts.began_at = self._desk.now()
            self._desk.emit(RequestBegun, permit)
            self._report_start()

    def _report_start(self) -> None:
        """Report a start where starts are spaced: with the next statement, but before the next
        start is due, as the server knows that only then.
        """
        gap = self.site.gap
        if gap is not None and self.waits_to_report:
            self._desk.send_by(self, gap / 2 if gap >= LATE_FROM_S else 0.0)  # rule 21: in time

    def received(self, status: int, size: int) -> None:
        """A request has ended with such a response; status 0: without a response."""
        self._desk.emit(RequestEnded, self.scope, status, size)

    def give_up(self, permit: Permit) -> None:
        """A request no longer waits for this permit."""
        self._drop_limit(permit.limit)
        self._line.drop(permit)
        self._want_fewer(at_once=True)

    def end_lost(self, permit: Permit) -> None:
        """A request with a lost permit has ended."""
        if permit in self._held:  # only this node has taken it away: the semaphore closes
            self.give_back(permit)
            return
        self._drop_limit(permit.limit)
        self._ending.remove(permit)
        if not self._ending:
            self._desk.send(self, True)  # or be forgotten, if it is empty
        self._desk.emit(PermitReleased, permit)

    def give_back(self, permit: Permit) -> None:
        """A request is done with this permit. It goes to the next request, to the hand, or to the
        server.
        """
        self._drop_limit(permit.limit)
        del self._held[permit]
        self._pending -= not permit._begun
        now = self._desk.now()
        is_reported = permit._outcome is not None and self._note_outcome(permit, permit._outcome)
        # promise: turns end
        is_handed_on = permit._begun and not is_reported and now < permit._turn_end
        is_handed_on = is_handed_on and self._may_hand_on(now)
        if is_handed_on and self._line:
            heir = self._line.pop()
            self._desk.emit(PermitReleased, permit)
            self._start(heir, permit._turn_end, now, handed_on=True)
            self._want_fewer(at_once=False)
            return
        if is_handed_on and not self.is_at_limit:
            self._keep(1)
        else:
            self._return(permit._outcome)
        self._desk.emit(PermitReleased, permit)

    def _return(self, outcome: Feedback | None) -> None:
        """Return a permit to the server, with the outcome of its request."""
        self._counts.returned += 1
        is_urgent = outcome is not None and (outcome.refused or outcome.retry_after > 0)
        if is_urgent:
            self.stop_turns()
        self._desk.send(self, is_urgent or self.is_at_limit or bool(self._line))

    def _drop_limit(self, limit: Limit) -> None:
        """One request fewer names this limit."""
        self._limits[limit] -= 1
        if not self._limits[limit]:
            del self._limits[limit]  # promise: limit goes with its requests
            if self._limits:
                self.limit = reduce(strictest, self._limits)

    def _want_fewer(self, at_once: bool) -> None:
        """Fewer requests wait. If none does, the server must not grant any more, nor keep the next
        start for this node: also where only time stands in the way.
        """
        if self._line:
            self._desk.send_at_turns_end(self)
        elif self._counts.is_queued or self._counts.resting:
            self._desk.send(self, at_once)  # rule 20: nobody waits

    def _note_outcome(self, permit: Permit, outcome: Feedback) -> bool:
        """Queue the outcome of a request for the server, if it is to be reported. True if it is."""
        if outcome.latency is not None:
            self.answered_at = max(self.answered_at, permit.granted_at)
        if outcome.failed:
            self._failures.note(permit.granted_at, self._desk.now())
        elif self._failures.in_a_row:
            self._failures = Failures()
        if outcome.refused:
            self._desk.emit(RefusalReported, self.scope)
            # Before the server tells of the pause: a request with this permit may get its other
            # ones meanwhile, as those of the refused request go on.
            self._withdraw()
        is_news = outcome.refused or outcome.failed or outcome.retry_after > 0
        if is_news or permit.limit.adaptive or self.site.wants_feedback:
            self._feedback.append((outcome, permit.granted_at))
            return True
        return False

    def _may_hand_on(self, now: float) -> bool:
        """True if a permit may go from request to request: not where each start counts."""
        is_free = not (self.starts_count or self._is_draining or self._failures.are_many)
        # rule 18: nothing after the deadline
        return is_free and (now < self.deadline or not self.is_over(now))

    def _start(self, permit: Permit, turn_end: float, now: float, handed_on: bool = False) -> None:
        self._held[permit] = None
        self._pending += 1
        if handed_on and not self._has_handed_on:
            self._has_handed_on = True
            self._desk.send_at_turns_end(self)
        permit._turn_end = turn_end
        permit._grant(now)
        self._desk.emit(PermitGranted, permit, self.site.limit, handed_on)

    def _keep(self, permits: int) -> None:
        self._hand.permits += permits
        self._desk.send_at_turns_end(self)

    def end_turns(self) -> None:
        """End a common turn: return permits unused in it, ask the server whether there are still
        some to spare, and report how many requests wait now.
        """
        counts = self._counts
        has_news = counts.granted + len(self._line) != counts.asked + counts.resting
        unused = self._hand.end_turn()
        if unused or has_news or (self._has_handed_on and not self.is_at_limit):
            self._counts.returned += unused
            self._desk.send(self, True)
        if self._hand.permits:
            self._desk.send_at_turns_end(self)
        self._has_handed_on = False

    def _return_in_hand(self) -> None:
        if permits := self._hand.empty():
            self._counts.returned += permits
            self._desk.send(self, True)

    def stop_turns(self) -> None:
        """Something has changed: hand nothing on until the server's next reply."""
        self.site.is_counted = True
        for permit in self._held:
            permit._turn_end = 0.0
        self._return_in_hand()

    def drain(self) -> None:
        """Hand nothing on any more, and return all permits in hand."""
        self._is_draining = True
        self._return_in_hand()

    # To the server ------------------------------------------------------------------------------

    def _wanted(self, now: float) -> int:
        """How many of the waiting requests may start, as far as this node's own failures allow."""
        waiting = len(self._line)
        if not self._failures.are_many:
            return waiting
        return min(waiting, max(0, self._failures.may_hold(now) - len(self._held)))

    def pending_statements(self, now: float) -> list[Statement]:
        """The statements for the next call: the present counts, and before them, word for word, all
        statements with feedback and without a reply, so that their feedback counts once.
        """
        self.end_if_over(now)
        if self._ending or self.is_empty:  # rule 7: transfers of the old term
            return []  # nothing is sent under a new term before all transfers of the old have ended
        counts = self._counts
        counts.seq += 1
        wanted = self._wanted(now)
        counts.asked, counts.resting = counts.granted + wanted, len(self._line) - wanted
        counts.reported = counts.started
        if self.deadline == math.inf:  # rule 16: from the first sending
            self.deadline = now + self._desk.grace
        first_held = next(iter(self._held), None)
        first_waiting = next(iter(self.waiting), None)
        feedback = [(outcome, now - granted_at) for outcome, granted_at in self._feedback]
        self._feedback.clear()
        statement = Statement(
            scope=self.scope,
            limit=self.limit,
            term=counts.term,
            seq=counts.seq,
            asked=counts.asked,
            returned=counts.returned,
            believed=counts.granted,
            started=counts.started,
            pending=self._pending,
            resting=counts.resting,
            held_age=max(0.0, now - first_held.granted_at) if first_held else 0.0,
            wait_age=max(0.0, now - first_waiting._asked_at) if first_waiting else 0.0,
            start_age=max(0.0, now - counts.began_at) if counts.started else 0.0,
            feedback=FeedbackSummary.of(feedback) if feedback else None,
        )
        statements = [*self._unanswered, statement]  # rule 14: until it is answered
        if feedback:
            self._unanswered.append(statement)
        return statements

    # From the server ----------------------------------------------------------------------------

    def on_reply(self, reply: Reply, sent: float) -> None:
        """Apply the server's reply to a statement sent at the time `sent`.

        In this order, on which the guarantees rest: what is over ends, as before any message; a
        reply to another term changes nothing; the lease is renewed; the site's state is learned,
        as it decides what may be handed on; grants start requests; and only requests that still
        wait then fail, or are notified of it. A closed account begins a new term.
        """
        now = self._desk.now()
        self.end_if_over(now)  # rule 17: deadlines first
        statement = reply.statement
        if statement.term != self._counts.term:  # rule 13: reply of another term
            return
        if reply.status != "ok":
            self._on_refusal(reply)
            return
        self._renew(statement, sent)
        self._learn(reply, sent)
        self._serve(reply, now)
        if self._counts.is_closed_by(statement) and not self._wanted(now):
            self._begin_term()

    def _renew(self, statement: Statement, sent: float) -> None:
        """Count the lease from the sending of the statement; its feedback has arrived."""
        # rule 14: answered
        self._unanswered = [other for other in self._unanswered if other.seq != statement.seq]
        self.deadline = max(self.deadline, sent + self._desk.grace)  # rule 16: from the sending

    def _learn(self, reply: Reply, sent: float) -> None:
        """Note the site's state, and report its changes. A pause stops all turns first: the
        reply then decides whether permits may be handed on again.
        """
        if reply.paused_at:
            self._note_pause(reply)
        if reply.granted:
            self._desk.emit(UsageReported, self.scope, reply.held, reply.limit)
        site = self.site
        site.available = reply.available
        site.is_counted = reply.is_counted
        site.gap = reply.gap
        site.wants_feedback = reply.wants_feedback
        site.limit = reply.limit
        site.reason = reply.reason
        if reply.is_stricter and not site.is_overruled:
            self._desk.emit(LimitOverruled, self.scope, self.limit)
        site.is_overruled = reply.is_stricter
        if reply.backoff is not None:
            self._report_backoff(reply.backoff, reply.statement)
        if reply.answered_ago is not None:
            self.answered_at = max(self.answered_at, sent - reply.answered_ago)

    def _serve(self, reply: Reply, now: float) -> None:
        """Give the granted permits to requests, and report to the others why they wait."""
        statement = reply.statement
        self._take(reply.granted, now)
        self._report_start()  # some may have begun before it was known that starts are spaced
        self._note_down(reply)
        self._note_walled(reply)
        for permit in self._line.pop_answered(statement.seq):
            self._report_wait(permit)
        self._note_failures(reply, now)
        if reply.retry_in is not None and self._line:
            self._desk.send_later(self, reply.retry_in)
        self._lengthen_turns(now)

    def _note_failures(self, reply: Reply, now: float) -> None:
        """After failures, pause with all other nodes if the site responds to none; else alone."""
        failures, feedback = self._failures, reply.statement.feedback
        if not failures.are_many:
            return
        if reply.is_failing:
            failures.end_pause()
        elif feedback and feedback.failed and failures.is_in_question:
            self._report_own_pause(failures.begin_pause(now, self._desk.backoff))
        if not self._line:
            return
        if now < failures.until < math.inf:
            self._desk.send_later(self, failures.until - now)
        elif self._wanted(now) and not self._counts.is_queued:
            self._desk.send(self, True)

    def _report_own_pause(self, seconds: float) -> None:
        self._desk.emit(NodePaused, self.scope, seconds)
        level = logging.WARNING if seconds == self._desk.backoff.start else logging.INFO
        logger.log(
            level,
            "%s does not respond to the node %s: %d requests in a row failed here, while other "
            "nodes get answers, or still wait for them. This node alone pauses there for %s s.",
            self.scope,
            self._desk.node,
            self._failures.in_a_row,
            digits(seconds),
        )

    def _lengthen_turns(self, now: float) -> None:
        """Let permits serve requests for another turn, where the site has some to spare."""
        if self.is_at_limit or self.site.is_counted:
            self._return_in_hand()
            return
        turn_end = self._turn_end(now)
        self._hand.until = turn_end + self._desk.turn
        for permit in self._held:
            permit._turn_end = turn_end

    def _on_refusal(self, reply: Reply) -> None:
        why = {"refused": NOT_READ, "unreadable": UNREADABLE}.get(reply.status, NOT_OURS)
        self.lose_all(why, reply.term)
        if reply.status == "refused":
            self._desk.emit(StatementRefused)
            logger.error("The server could not read %s (a bug: please report it).", reply.statement)
        if reply.status in ("refused", "unreadable"):
            self._desk.send_later(self, REFUSED_RETRY_S)
        else:
            self._ask_anew()

    def _report_backoff(self, seconds: float, statement: Statement) -> None:
        self._desk.emit(BackoffStarted, self.scope, seconds)
        assert statement.feedback is not None, "it has begun the pause"
        asked, most = statement.feedback.retry_after, self._desk.backoff.most
        cut = f" (it asked for {digits(asked)} s; SEMAPHORE_BACKOFF_MAX is {digits(most)} s)"
        logger.info(
            "%s %s: all nodes pause there for %s s%s.",
            self.scope,
            statement.feedback.cause,
            digits(seconds),
            cut if asked > most else "",
        )

    def _note_down(self, reply: Reply) -> None:
        was_down = self.site.is_down
        self.site.is_down = reply.down_for is not None
        if reply.down_for is not None:
            if reply.backoff is not None and not was_down:
                self._desk.emit(HostDown, self.scope, reply.down_for)
                logger.warning(
                    "%s is down: it has not responded for %.0f s. Requests fail at once, except "
                    "one at a time, which tries it again.",
                    self.scope,
                    reply.down_for,
                )
            self.on_down(reply.down_for)
        elif was_down:
            logger.info("%s is no longer down.", self.scope)

    def on_down(self, seconds: float) -> None:
        """The site counts as down, after `seconds` without a response: fail waiting requests."""
        text = f"is down: it has not responded for {seconds:.0f} s; one request at a time"
        self._fail_waiting(HostDownError, text)

    def _note_walled(self, reply: Reply) -> None:
        was_walled, seconds = self.site.is_walled, reply.walled_for
        self.site.is_walled = seconds is not None
        if seconds is not None:
            if reply.backoff is not None and not was_walled:
                self._desk.emit(SiteWalled, self.scope, seconds)
                logger.warning(
                    "%s is walled. %s. Requests fail at once, except for one after each pause, "
                    "which tries the site again.",
                    self.scope,
                    refusals_text(seconds, reply.refused_by),
                )
            self.on_walled(seconds, reply.refused_by)
        elif was_walled:
            logger.info("%s is no longer walled.", self.scope)

    def on_walled(self, seconds: float, status: int) -> None:
        """The site counts as walled, after `seconds` of nothing but refusals: fail waiting
        requests.
        """
        text = f"is walled. {refusals_text(seconds, status)}; one request after each pause"
        self._fail_waiting(SiteWalledError, text)

    def _fail_waiting(self, kind: type[HostDownError], text: str) -> None:
        waiting = self._line.clear()
        for permit in waiting:
            self._desk.emit(FailedAtOnce, permit)
            permit._refuse(kind(f"{self.scope} {text} tries it again"))
        if waiting:
            self._desk.send(self, True)

    def fail(self, error: Exception) -> None:
        """Fail waiting requests with this error, and lose all permits: what is to be reported about
        this scope cannot be sent.
        """
        logger.error("%s: %r. Its requests fail; other sites are served.", error, error.__cause__)
        self._desk.emit(StatementRefused)
        for permit in self._line.clear():
            permit._refuse(error)
        self.lose_all(NOT_SENT)

    def _report_wait(self, permit: Permit) -> None:
        """No permit was free for this request."""
        if permit._stage is Stage.WAITING and not permit.waited:
            permit.waited = True
            if permit._on_wait is not None:
                try:
                    permit._on_wait()
                except BaseException as error:  # of the caller's function: it is the caller's
                    permit._refuse(error)
            self._desk.emit(PermitWaiting, permit)

    def on_granted(self, term: int, granted: int) -> None:
        """Apply a message on this node's channel: `granted` permits under `term` so far."""
        now = self._desk.now()
        self.end_if_over(now)
        # rule 13: message of another term
        if term == self._counts.term and self.deadline < math.inf:
            self._take(granted, now)

    def on_backoff(self, paused_at: int, length: float) -> None:
        """A pause of the site began at this time, after a refusal or because it asked for one.

        Times are in milliseconds.
        """
        self.site.paused_at = paused_at
        self._set_pause_length(length)
        self._withdraw()
        self.stop_turns()

    def _withdraw(self) -> None:
        """Let no request begin with the permits of now."""
        for permit in self._held:
            permit.withdrawn = True

    def _set_pause_length(self, length: float) -> None:
        self.site.pause_length = length
        self._desk.emit(PauseBegun, self.scope, self.site.paused_at, length)

    def _note_pause(self, reply: Reply) -> None:
        if reply.paused_at > self.site.paused_at:  # its notification was lost, or comes later
            self.on_backoff(reply.paused_at, reply.pause_length)
        elif reply.pause_length > self.site.pause_length:
            self._set_pause_length(reply.pause_length)
        feedback = reply.statement.feedback
        if feedback and (reply.backoff is not None or feedback.refused or feedback.retry_after):
            pause = reply.paused_at, reply.pause_length
            about = feedback.retry_after, feedback.refused > 0
            self._desk.emit(PauseCaused, self.scope, *pause, *about)

    def _take(self, granted: int, now: float) -> None:
        """Give granted permits to waiting requests. A surplus is kept in hand where the site has
        permits to spare, else it goes back.
        """
        new = granted - self._counts.granted
        if new <= 0:
            return  # a message or an earlier reply has granted them
        self._counts.granted = granted
        self._desk.handover.note_granted(self.scope, granted)
        turn_end = self._turn_end(now)
        for _ in range(min(new, self._wanted(now))):
            self._start(self._line.pop(), turn_end, now)
            new -= 1
        # promise: nothing in hand at a full site
        if new > 0 and self._may_hand_on(now) and now < turn_end and not self.is_at_limit:
            self._keep(new)
            new = 0
        self._counts.returned += new  # rule 11: surplus
        if new > 0 or (self._line and not self._counts.is_queued):
            self._desk.send(self, True)

    def _turn_end(self, now: float) -> float:
        """The end of a turn begun now. Where the site has permits to spare, all turns end
        together, at multiples of their length, so that all returns go in one statement.
        """
        turn = self._desk.turn
        if turn == 0:
            return 0.0
        return now + turn if self.is_at_limit else common_turn_end(now, turn)

    # Terms --------------------------------------------------------------------------------------

    def end_if_over(self, now: float) -> None:
        """At the deadline all permits are lost. Called before any message is applied or sent."""
        if now >= self.deadline and self.is_over(now):
            self.lose_all(NOT_RENEWED)
            self._ask_anew()

    def is_over(self, now: float) -> bool:
        """True if the lease may be over, whatever the keeper has renewed."""
        if now >= self.deadline:
            kept_until = self._desk.handover.kept_until(self.scope, self._counts.term)
            self.deadline = max(self.deadline, kept_until)  # rule 30: before anything ends
        return now >= self.deadline

    def _ask_anew(self) -> None:
        """Ask under the new term, once all transfers of the old one have ended."""
        if self._line and not self._ending:
            self._desk.send(self, True)

    def lose_all(self, why: str, above: int = 0) -> None:
        """Cancel all transfers that can be, as the lease is over or may be, and go on under a new
        term.
        """
        held = list(self._held)
        self._held.clear()
        self._pending = 0
        self._ending.update(held)
        self._begin_term(above)
        for permit in held:
            stopped = ", so its work was stopped" if permit._watchers else ""
            permit._lose(f"the permit for {self.scope!r} {why}{stopped}")
        for permit in held:
            self._desk.emit(PermitLost, permit)
            effect = "its request is aborted"
            if not permit._watchers:  # or it has not begun, and does not
                effect = "a request that has begun under it is not aborted"
            logger.warning("A permit for %r %s: %s.", self.scope, why, effect)

    def _begin_term(self, above: int = 0) -> None:
        """Begin a new term: nothing of the old one counts in it."""
        self._counts = AccountCounts(self._desk.new_term(above))  # rule 5: new term
        self._hand.empty()
        self._feedback.clear()
        self._unanswered.clear()
        self._line.ask_anew()
        self._failures.end_question()
        self.deadline = math.inf

    def on_new_epoch(self) -> None:
        """The server is in another epoch: claim all held permits, under a new term, in the next
        statement. The old deadline holds until that is answered.
        """
        deadline = self.deadline
        self._begin_term()
        if self._held:
            self._counts.granted = len(self._held)  # rule 3: claims
            self.deadline = deadline  # rule 4: old deadline
        self.stop_turns()
