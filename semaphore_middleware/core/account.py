"""One scope's permits in this process: demand, turns, lease and counts. No I/O.

An account is what a node and the server both know of the node's permits of one scope. Its numbers
are totals since its term began, so a statement may be sent twice or late without harm, and after a
gap the node simply sends its present one. The rules are those of docs/how-it-works.md.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from functools import reduce
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from semaphore_middleware.core.diary import Diary
from semaphore_middleware.core.observer import (
    BackoffStarted,
    FailedAtOnce,
    HostDown,
    LimitOverruled,
    PermitGranted,
    PermitLost,
    PermitReleased,
    PermitWaiting,
    StatementRefused,
)
from semaphore_middleware.core.permit import Permit, Stage
from semaphore_middleware.errors import HostDownError
from semaphore_middleware.model.feedback import Feedback, FeedbackSummary
from semaphore_middleware.model.limits import Limit, strictest
from semaphore_middleware.redis.protocol import Reply, Statement

if TYPE_CHECKING:
    from semaphore_middleware.core.session import Session

logger = logging.getLogger(__name__)

LINE_SLACK = 16  # the heap is rebuilt when this many more requests have given up than still wait
REFUSED_RETRY_S = 1.0  # after a statement, or a scope, that the server could make no sense of


def common_turn_end(now: float, turn: float) -> float:
    """When the common turn of all accounts ends: at multiples of a turn's length."""
    return (now // turn + 1) * turn


class Line:
    """Requests that wait: the highest priority comes first, and among equals who asked first."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Permit, None] = OrderedDict()  # in the order of asking
        self._heap: list[tuple[float, int, Permit]] = []  # of them, and of some that gave up
        self._numbers = count()
        self._unanswered: list[tuple[int, Permit]] = []  # with the seq that first asks for it

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def permits(self) -> Collection[Permit]:
        """What they wait for, the oldest first."""
        return self._waiting.keys()

    def add(self, permit: Permit, seq: int | None) -> None:
        """A request waits. The statement `seq` asks for it first; None: it has its answer."""
        self._waiting[permit] = None
        heappush(self._heap, (-permit._priority, next(self._numbers), permit))
        if seq is not None:
            self._unanswered.append((seq, permit))

    def drop(self, permit: Permit) -> None:
        """A request waits no longer."""
        self._waiting.pop(permit, None)
        if len(self._heap) > 2 * len(self._waiting) + LINE_SLACK:
            self._heap = [one for one in self._heap if one[2] in self._waiting]
            heapify(self._heap)
            self._unanswered = [one for one in self._unanswered if one[1] in self._waiting]

    def pop(self) -> Permit:
        """The first one."""
        while True:
            _, _, permit = heappop(self._heap)
            if permit in self._waiting:
                del self._waiting[permit]
                return permit

    def clear(self) -> list[Permit]:
        """Nobody waits any more; returns who did."""
        permits = list(self._waiting)
        self._waiting.clear()
        self._unanswered.clear()
        return permits

    def answered(self, seq: int) -> list[Permit]:
        """Those that this statement, or one before it, was the first to ask for."""
        answered = [permit for first_seq, permit in self._unanswered if first_seq <= seq]
        self._unanswered = [one for one in self._unanswered if one[0] > seq]
        return answered

    def ask_anew(self) -> None:
        """A new term begins: its first statement asks for those that have no answer."""
        self._unanswered = [(1, permit) for _, permit in self._unanswered]


@dataclass(slots=True)
class Totals:
    """What a node has said of its permits of one scope, and heard, since a term began."""

    term: int
    seq: int = 0
    asked: int = 0
    """As last said."""
    granted: int = 0
    returned: int = 0
    started: int = 0

    @property
    def is_queued(self) -> bool:
        """True if more was asked for than was granted: this node is in the server's queue."""
        return self.asked > self.granted

    def is_settled_by(self, statement: Statement) -> bool:
        """True if this was the newest statement, and said that nothing is held or wanted, and that
        still is so: the server has closed the account.
        """
        said_nothing = statement.seq == self.seq and statement.asked == statement.returned
        return said_nothing and self.granted == self.returned == statement.returned


@dataclass(slots=True)
class Hand:
    """Permits that no request uses, kept for this node's next ones."""

    permits: int = 0
    always: int = 0
    """The least of them since the last common turn."""
    until: float = -math.inf
    """So long there may be permits to spare: two turns at most after the last reply."""

    def take(self) -> None:
        """A request uses one."""
        self.permits -= 1
        self.always = min(self.always, self.permits)

    def end_turn(self) -> int:
        """A common turn is over. Returns how many no request has used in it: these go back."""
        unused, self.permits = self.always, self.permits - self.always
        self.always = self.permits
        return unused

    def empty(self) -> int:
        """All go back; returns how many."""
        permits, self.permits, self.always = self.permits, 0, 0
        return permits


class Account:
    """One scope's permits in this process, counted since the current term began.

    Of the permits granted in this term some were returned. Each of the others is held by a request,
    or kept in hand for the next one: granted - returned = held + in hand.
    """

    def __init__(self, scope: str, limit: Limit, session: Session) -> None:
        self.scope = scope
        self.limit = limit
        """The strictest that requests name which wait or hold a permit now."""
        self._limits: dict[Limit, int] = {}  # how many such requests name it
        self._session = session
        self._line = Line()
        self._held: OrderedDict[Permit, None] = OrderedDict()  # in the order of the grants
        self._hand = Hand()
        self._ending: set[Permit] = set()  # lost, but their requests have not ended yet
        self._is_draining = False
        self._pending = 0  # permits that are held, and under which no request has begun
        self._totals = Totals(session.new_term())
        self.deadline = math.inf
        """When the lease may be over; infinite while nothing was said under this term."""
        # To be said, and said but not answered:
        self._feedback: list[tuple[Feedback, float]] = []  # with the time of the grant
        self._unanswered: list[Statement] = []  # those with feedback
        # As last heard from the server:
        self.limit_in_force: int | None = None
        """How many may hold a permit, on all nodes; None: not known."""
        self._available = 1  # until it is heard otherwise
        self._is_counted = False
        self._is_paced = False
        self._wants_feedback = False
        self._is_overruled = False  # another node asks for a stricter limit
        self._is_down = False
        self._paused_at = 0  # when the last pause of the site began, in ms by the server's clock
        self._begun_at = 0.0  # when the last request did, in seconds by that clock
        self.answered_at = -math.inf
        """When the youngest request began that is known to be answered well, by whatever node."""
        self._has_handed_on = False  # since the last common turn

    def __repr__(self) -> str:
        counts = f"{len(self._held)} held, {len(self._line)} waiting"
        return f"<Account {self._totals.term} with {self.scope!r}: {counts}>"

    @property
    def held(self) -> Collection[Permit]:
        """Permits that requests hold, the oldest first."""
        return self._held.keys()

    @property
    def waiting(self) -> Collection[Permit]:
        """Permits that requests wait for, the oldest first."""
        return self._line.permits

    @property
    def ending(self) -> int:
        """Requests that still run though their permits were lost; until they end, none starts."""
        return len(self._ending)

    @property
    def is_empty(self) -> bool:
        """True if there is nothing that the server or a request still has to hear of."""
        is_open = self.deadline < math.inf
        return not (is_open or self._held or self._line or self._ending)

    @property
    def is_at_limit(self) -> bool:
        """True if the site had no permit to spare, as last heard."""
        return self._available <= 0

    @property
    def starts_count(self) -> bool:
        """True if each start counts or is reported, so that no permit is handed on."""
        limit = self.limit
        return self._is_counted or bool(limit.delay or limit.rate or limit.adaptive)

    # Requests -----------------------------------------------------------------------------------

    def request(self, permit: Permit) -> None:
        """A request wants a permit: one that is in hand, else one of the server's."""
        now = self._session.now()
        self._limits[permit.limit] = self._limits.get(permit.limit, 0) + 1
        if permit.limit != self.limit:
            self.limit = reduce(strictest, self._limits)
        if self._hand.permits and now < self._hand.until and self._may_hand_on(now):
            self._hand.take()
            turn_end = min(self._turn_end(now), self._hand.until)
            self._start(permit, turn_end, now, handed_on=True)
        elif self.is_at_limit and self._totals.is_queued:
            # However many of its requests wait there.
            self._line.add(permit, None)
            self._tell_to_wait(permit)
            self._session.speak_at_turns_end(self)
        else:
            self._line.add(permit, self._totals.seq + 1)
            self._session.speak(self, self.is_at_limit)

    def begin(self, permit: Permit) -> None:
        """The request begins that holds this permit."""
        if permit in self._held:
            self._pending -= 1
            self._totals.started += 1
            if diary := self._session.diary:
                self._begun_at = diary.begun(self.scope, self.limit)
                if permit._withdrawn:
                    self._note_late(diary)
            if self._is_paced:
                self._session.speak(self, True)  # the next start is a delay after this one

    def received(self, status: int, size: int) -> None:
        """A request has ended with such a response; status 0: without one."""
        if diary := self._session.diary:
            diary.received(self.scope, status, size)

    def release(self, permit: Permit) -> None:
        """A request is done with its permit, or no longer wants one."""
        self._limits[permit.limit] -= 1
        if not self._limits[permit.limit]:
            del self._limits[permit.limit]
            if self._limits:
                self.limit = reduce(strictest, self._limits)
        if permit._stage is Stage.WAITING:
            self._line.drop(permit)
            self._wants_fewer(at_once=True)
            return
        self._session.emit(PermitReleased(permit))
        if permit in self._ending:
            self._ending.remove(permit)
            if not self._ending:
                self._session.speak(self, True)  # or be forgotten, if it is empty
            return
        del self._held[permit]
        self._pending -= not permit._begun
        now = self._session.now()
        is_reported = self._note_outcome(permit)
        is_handed_on = permit._begun and not is_reported and now < permit._turn_end
        if is_handed_on and self._may_hand_on(now):
            if self._line:
                self._start(self._line.pop(), permit._turn_end, now, handed_on=True)
                self._wants_fewer(at_once=False)
                return
            if not self.is_at_limit:
                self._keep(1)
                return
        self._totals.returned += 1
        outcome = permit._outcome
        is_urgent = outcome is not None and (outcome.refused or outcome.retry_after > 0)
        if is_urgent:
            self.stop_turns()
        self._session.speak(self, is_urgent or self.is_at_limit or bool(self._line))

    def _wants_fewer(self, at_once: bool) -> None:
        """Fewer requests wait. If none does, the server must not grant any more, nor keep the next
        start for this node: also where only time stands in the way.
        """
        if self._line:
            self._session.speak_at_turns_end(self)
        elif self._totals.is_queued:
            self._session.speak(self, at_once)

    def _note_outcome(self, permit: Permit) -> bool:
        """Queue the outcome of a request for the server, if it is to be reported. True if it is."""
        outcome = permit._outcome
        if outcome is None:
            return False
        if outcome.latency is not None:
            self.answered_at = max(self.answered_at, permit.granted_at)
        if outcome.refused and (diary := self._session.diary):
            diary.refused(self.scope)
        is_news = outcome.refused or outcome.failed or outcome.retry_after > 0
        if is_news or permit.limit.adaptive or self._wants_feedback:
            self._feedback.append((outcome, permit.granted_at))
            return True
        return False

    def _may_hand_on(self, now: float) -> bool:
        """Whether a permit may go from request to request: not where each start counts."""
        return not (self.starts_count or self._is_draining) and now < self.deadline

    def _start(self, permit: Permit, turn_end: float, now: float, handed_on: bool = False) -> None:
        self._held[permit] = None
        self._pending += 1
        if handed_on and not self._has_handed_on:
            self._has_handed_on = True
            self._session.speak_at_turns_end(self)
        permit._turn_end = turn_end
        permit._grant(now)
        self._session.emit(PermitGranted(permit, self.limit_in_force, handed_on))

    def _keep(self, permits: int) -> None:
        self._hand.permits += permits
        self._session.speak_at_turns_end(self)

    def end_turns(self) -> None:
        """A common turn is over: return what no request has used in it, hear whether there is
        still some to spare, and say how many requests wait now.
        """
        has_news = self._totals.granted + len(self._line) != self._totals.asked
        unused = self._hand.end_turn()
        if unused or has_news or (self._has_handed_on and not self.is_at_limit):
            self._totals.returned += unused
            self._session.speak(self, True)
        if self._hand.permits:
            self._session.speak_at_turns_end(self)
        self._has_handed_on = False

    def _return_in_hand(self) -> None:
        if permits := self._hand.empty():
            self._totals.returned += permits
            self._session.speak(self, True)

    def stop_turns(self) -> None:
        """Hand nothing on until the server has been heard again: something has changed."""
        self._is_counted = True
        for permit in self._held:
            permit._turn_end = 0.0
        self._return_in_hand()

    def drain(self) -> None:
        """Hand nothing on any more, and return what is in hand."""
        self._is_draining = True
        self._return_in_hand()

    # To the server ------------------------------------------------------------------------------

    def pending_statements(self, now: float) -> list[Statement]:
        """What the next call is to say: the present counts, and before them the statements whose
        feedback may not have been heard, word for word, so that it is counted once.
        """
        self.end_if_over(now)
        if self._ending or self.is_empty:
            return []  # a new term is not spoken before all transfers of the old one have ended
        self._totals.seq += 1
        self._totals.asked = self._totals.granted + len(self._line)
        if self.deadline == math.inf:
            self.deadline = now + self._session.grace
        first_held, first_waiting = next(iter(self._held), None), next(iter(self.waiting), None)
        feedback = [(outcome, now - granted_at) for outcome, granted_at in self._feedback]
        self._feedback.clear()
        statement = Statement(
            scope=self.scope,
            limit=self.limit,
            term=self._totals.term,
            seq=self._totals.seq,
            asked=self._totals.asked,
            returned=self._totals.returned,
            believed=self._totals.granted,
            started=self._totals.started,
            pending=self._pending,
            held_age=max(0.0, now - first_held.granted_at) if first_held else 0.0,
            wait_age=max(0.0, now - first_waiting._asked_at) if first_waiting else 0.0,
            feedback=FeedbackSummary.of(feedback) if feedback else None,
        )
        statements = [*self._unanswered, statement]
        if feedback:
            self._unanswered.append(statement)
        return statements

    # From the server ----------------------------------------------------------------------------

    def on_reply(self, reply: Reply, sent: float) -> None:
        """The server has replied to a statement that was sent at the time `sent`."""
        now = self._session.now()
        self.end_if_over(now)  # before any message: see docs/how-it-works.md
        statement = reply.statement
        if statement.term != self._totals.term:
            return
        if reply.status != "ok":
            self._on_refusal(reply)
            return
        self._unanswered = [one for one in self._unanswered if one.seq != statement.seq]
        self.deadline = max(self.deadline, sent + self._session.grace)
        if reply.paused_at > self._paused_at:  # its notification was lost, or comes later
            self.on_backoff(reply.paused_at)
        if reply.granted and (diary := self._session.diary):
            diary.heard(self.scope, reply.held, reply.limit)
        self._note(reply)
        self._note_answers(reply, sent)
        self._take(reply.granted, now)
        self._say_starts(statement)
        self._note_down(reply)
        self._announce_waiting(statement.seq)
        self._wait_for_time(reply)
        self._spare(now)
        if self._totals.is_settled_by(statement) and not self._line:
            self._begin_term()  # the server has closed the account: there is nothing in it

    def _note_answers(self, reply: Reply, sent: float) -> None:
        if reply.answered_ago is not None:
            self.answered_at = max(self.answered_at, sent - reply.answered_ago)

    def _say_starts(self, statement: Statement) -> None:
        """It was not known that starts are spaced: say those that have begun since."""
        if self._is_paced and self._totals.started > statement.started:
            self._session.speak(self, True)

    def _wait_for_time(self, reply: Reply) -> None:
        if reply.retry_in is not None and self._line:
            self._session.retry(self, reply.retry_in)

    def _spare(self, now: float) -> None:
        """Where the site has permits to spare, they serve one request after another for a turn."""
        if self.is_at_limit or self._is_counted:
            self._return_in_hand()
            return
        turn_end = self._turn_end(now)
        self._hand.until = turn_end + self._session.turn
        for permit in self._held:
            permit._turn_end = turn_end

    def _on_refusal(self, reply: Reply) -> None:
        self.lose_all(above=reply.term)
        if reply.status == "refused":
            self._session.emit(StatementRefused())
            logger.error("The server could not read %s (a bug: please report it).", reply.statement)
        if reply.status in ("refused", "unreadable"):
            self._session.retry(self, REFUSED_RETRY_S)
        else:
            self._ask_anew()

    def _note(self, reply: Reply) -> None:
        self._available = reply.available
        self._is_counted = reply.is_counted
        self._is_paced = reply.is_paced
        self._wants_feedback = reply.wants_feedback
        self.limit_in_force = reply.limit
        if reply.is_stricter and not self._is_overruled:
            self._session.emit(LimitOverruled(self.scope, self.limit))
        self._is_overruled = reply.is_stricter
        if reply.backoff is not None:
            self._session.emit(BackoffStarted(self.scope, reply.backoff))
            assert reply.statement.feedback is not None, "it has begun the pause"
            cause = reply.statement.feedback.cause
            logger.info(
                "%s %s: all nodes pause there for %.3g s.", self.scope, cause, reply.backoff
            )

    def _note_down(self, reply: Reply) -> None:
        was_down, self._is_down = self._is_down, reply.down_for is not None
        if reply.down_for is not None:
            if reply.backoff is not None and not was_down:
                self._session.emit(HostDown(self.scope, reply.down_for))
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
        """The site has not responded for so long that it counts as down: fail what waits."""
        waiting = self._line.clear()
        for permit in waiting:
            self._session.emit(FailedAtOnce(permit))
            permit._refuse(
                HostDownError(
                    f"{self.scope} is down: it has not responded for {seconds:.0f} s; one request "
                    "at a time tries it again"
                )
            )
        if waiting:
            self._session.speak(self, True)

    def _announce_waiting(self, seq: int) -> None:
        """No permit was free for those that the statement asked for and that still wait."""
        for permit in self._line.answered(seq):
            self._tell_to_wait(permit)

    def _tell_to_wait(self, permit: Permit) -> None:
        if permit._stage is Stage.WAITING and not permit.waited:
            permit.waited = True
            self._session.emit(PermitWaiting(permit))

    def on_granted(self, term: int, granted: int) -> None:
        """A message on this node's channel: under `term` so many permits are granted."""
        now = self._session.now()
        self.end_if_over(now)
        if term == self._totals.term and self.deadline < math.inf:
            self._take(granted, now)

    def on_backoff(self, paused_at: int) -> None:
        """The site has refused a request, or asked for a pause, which began at this time."""
        self._paused_at = paused_at
        # The server's time is rounded down: in the same millisecond nothing is known to be late.
        if 1000 * self._begun_at > paused_at + 1 and (diary := self._session.diary):
            self._note_late(diary)
        for permit in self._held:
            permit._withdrawn = True
        self.stop_turns()

    def _note_late(self, diary: Diary) -> None:
        late = 1000 * self._begun_at - self._paused_at
        diary.begun_late(self.scope, self._paused_at, late)

    def _take(self, granted: int, now: float) -> None:
        """Permits were granted: they go to requests that wait. A surplus is kept in hand where the
        site has permits to spare, else it goes back.
        """
        new = granted - self._totals.granted
        if new <= 0:
            return  # heard already
        self._totals.granted = granted
        turn_end = self._turn_end(now)
        for _ in range(min(new, len(self._line))):
            self._start(self._line.pop(), turn_end, now)
            new -= 1
        if new > 0 and self._may_hand_on(now) and now < turn_end and not self.is_at_limit:
            self._keep(new)
            new = 0
        self._totals.returned += new
        if new > 0 or (self._line and not self._totals.is_queued):
            self._session.speak(self, True)

    def _turn_end(self, now: float) -> float:
        """Where the site has permits to spare, all turns end together, at multiples of their
        length, so that what is returned goes in one statement.
        """
        turn = self._session.turn
        if turn == 0:
            return 0.0
        return now + turn if self.is_at_limit else common_turn_end(now, turn)

    # Terms --------------------------------------------------------------------------------------

    def end_if_over(self, now: float) -> None:
        """At the deadline all permits are lost."""
        if now >= self.deadline:
            self.lose_all()
            self._ask_anew()

    def _ask_anew(self) -> None:
        """Ask under the new term, once all transfers of the old one have ended."""
        if self._line and not self._ending:
            self._session.speak(self, True)

    def lose_all(self, above: int = 0) -> None:
        """The lease is over, or may be: end what runs under it, and go on under a new term."""
        held = list(self._held)
        self._held.clear()
        self._pending = 0
        self._ending.update(held)
        self._begin_term(above)
        for permit in held:
            self._session.emit(PermitLost(permit))
            logger.warning("Lost a permit for %r.", self.scope)
            permit._lose(
                f"the permit for {self.scope!r} could not be renewed in time, so its work was "
                "stopped; is the server reachable, and does anything block the event loop?"
            )

    def _begin_term(self, above: int = 0) -> None:
        """Nothing of the old term counts in the new one."""
        self._totals = Totals(self._session.new_term(above))
        self._hand.empty()
        self._feedback.clear()
        self._unanswered.clear()
        self._line.ask_anew()
        self.deadline = math.inf

    def on_new_epoch(self) -> None:
        """The server is in another epoch: claim what is held, under a new term, in the next
        statement. The old deadline holds until that is answered.
        """
        deadline = self.deadline
        self._begin_term()
        if self._held:
            self._totals.granted = len(self._held)
            self.deadline = deadline
        self.stop_turns()
