"""One account, without a server: turns, counts, the lease and its deadline, terms, feedback."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from semaphore_middleware.core.account import LINE_SLACK, REFUSED_RETRY_S
from semaphore_middleware.core.observer import (
    BackoffStarted,
    FailedAtOnce,
    HostDown,
    PermitGranted,
    PermitLost,
    PermitReleased,
    PermitWaiting,
    StatementRefused,
)
from semaphore_middleware.core.permit import Permit, Stage
from semaphore_middleware.errors import HostDownError, PermitLostError
from semaphore_middleware.model.limits import Limit
from semaphore_middleware.redis.protocol import Statement
from tests.core.lone_node import FULL, GRACE_S, LEASE_S, SPARE, TURN_S, LoneNode


def stages(permits: list[Permit]) -> list[str]:
    return [permit.stage.value for permit in permits]


def counts(said: Statement) -> tuple[int, int, int]:
    return said.asked, said.returned, said.believed


# A turn: a permit serves one request after another ----------------------------------------------


@pytest.mark.parametrize("available", [SPARE, FULL, -3])
def test_within_a_turn_a_permit_is_handed_to_the_next_request_without_a_call(
    available: int,
) -> None:
    node = LoneNode()
    (first,) = node.hold(available=available)
    deadline = node.account.deadline
    second, third = node.ask(), node.ask()
    node.pass_time(1.0)
    node.owner.at_once.clear()
    first.release()
    second.release()
    assert stages([first, second, third]) == ["released", "released", "held"]
    assert node.owner.granted() == [False, True, True]
    assert node.owner.at_once == []
    assert node.account in node.owner.turns_to_end, "then it asks whether others wait"
    assert third.deadline == deadline
    third.release()
    node.account.drain()
    said = node.say()
    assert (counts(said), said.started) == ((1, 1, 1), 3)


def test_the_highest_priority_is_served_first_and_among_equals_who_asked_first() -> None:
    node = LoneNode()
    order: list[Permit] = []
    waiting: list[Permit] = []
    (permit,) = node.hold(available=FULL)
    for number in range(20):
        waiting.append(node.ask(priority=number // 2))
        for given_up in range(100):
            node.ask(priority=7 - given_up % 3).release()
    waiting[5].release()
    assert len(node.account._line) <= 2 * len(waiting) + LINE_SLACK, "who gave up is forgotten"
    assert len(node.account._newcomers) <= 2 * len(waiting) + LINE_SLACK
    while node.account.held:
        permit.release()
        order += node.account.held
        permit = next(iter(node.account.held), permit)
    first = sorted(range(20), key=lambda number: -(number // 2))
    assert order == [waiting[number] for number in first if number != 5]


def test_at_a_full_site_a_turn_ends_so_long_after_the_grant() -> None:
    node = LoneNode()
    node.pass_time(3.0)
    (first,) = node.hold(available=FULL)
    second, third = node.ask(), node.ask()
    node.pass_time(TURN_S - 0.01)
    first.release()
    assert second.stage is Stage.HELD
    node.talk(granted=1, available=FULL)  # to be heard again lengthens no turn
    node.pass_time(0.01)
    node.owner.at_once.clear()
    second.release()
    assert third.stage is Stage.WAITING
    assert node.owner.at_once == [True]
    assert counts(node.say()) == (2, 1, 1), "it waits for the server's next permit"


def test_with_permits_to_spare_all_turns_end_together_unless_the_server_is_heard_again() -> None:
    node = LoneNode()
    node.pass_time(3.0)
    (early,) = node.hold()
    node.pass_time(TURN_S - 4.0)
    (late,) = node.hold()
    waiting = [node.ask() for _ in range(2)]
    node.pass_time(1.0)  # to the next multiple of a turn
    early.release()
    assert stages(waiting) == ["waiting", "waiting"]
    node.talk(granted=2)
    assert stages(waiting) == ["waiting", "waiting"]
    late.release()
    assert stages(waiting) == ["held", "waiting"]


def test_without_turns_nothing_is_handed_on_nor_kept() -> None:
    node = LoneNode(turn=0.0)
    (first,) = node.hold()
    second = node.ask()
    first.release()
    assert second.stage is Stage.WAITING
    said = node.say()
    assert said.returned == 1
    second.release()
    node.hear(said, granted=2)
    assert node.say().returned == 2
    assert node.owner.turns_to_end == []


def counted(node: LoneNode) -> None:
    """The server says that each start counts."""
    node.talk(granted=1, is_counted=True)


REASONS: list[Callable[[LoneNode], None]] = [
    counted,
    lambda node: node.account.on_backoff(),
    lambda node: node.account.stop_turns(),  # a rule has changed
    lambda node: node.account.drain(),
    lambda node: node.account.on_new_epoch(),
]


@pytest.mark.parametrize("happens", REASONS)
def test_nothing_is_handed_on_nor_kept(happens: Callable[[LoneNode], None]) -> None:
    node = LoneNode()
    first, _, in_hand = node.hold(3)
    in_hand.release()
    happens(node)
    said = node.say()
    assert said.believed - said.returned == 2, "what is in hand goes back"
    waiting = node.ask()
    assert waiting.stage is Stage.WAITING
    first.release()
    assert waiting.stage is Stage.WAITING
    said = node.say()
    assert said.believed - said.returned == 1
    waiting.release()
    node.account.on_granted(said.term, said.believed + 1)
    said = node.say()
    assert said.believed - said.returned == 1, "a surplus goes back"


@pytest.mark.parametrize(
    "limit", [Limit(9, delay=0.1), Limit(8, rate="60/m", burst=5), Limit(9, adaptive=True)]
)
def test_where_each_start_counts_nothing_is_handed_on(limit: Limit) -> None:
    """Whatever the last reply said: it may be from before the limit was named."""
    node = LoneNode()
    first, in_hand = node.hold(2)
    assert not first.starts_count
    in_hand.release()
    node.ask(limit).release()
    assert first.starts_count
    waiting = [node.ask(limit), node.ask()]
    first.release()
    assert stages(waiting) == ["waiting", "waiting"]
    assert node.say().limit == limit, "the strictest that requests have named"


@pytest.mark.parametrize(
    ("available", "stage"), [(SPARE, Stage.HELD), (FULL, Stage.WAITING)], ids=["spare", "full"]
)
def test_a_turn_that_was_stopped_begins_again_if_there_is_some_to_spare(
    available: int, stage: Stage
) -> None:
    node = LoneNode()
    (first,) = node.hold(available=available)
    waiting = node.ask()
    node.account.stop_turns()
    node.talk(granted=1, available=available)
    first.release()
    assert waiting.stage is stage


@pytest.mark.parametrize("from_hand", [True, False])
def test_at_the_deadline_nothing_is_handed_on(from_hand: bool) -> None:
    """A process may be so late that it hears of the time before its timers do."""
    node = LoneNode(turn=4 * LEASE_S)
    (first,) = node.hold()
    if from_hand:
        first.release()
    node.owner.clock.now = node.account.deadline
    waiting = node.ask()
    if not from_hand:
        first.release()
    assert waiting.stage is Stage.WAITING


# In hand ----------------------------------------------------------------------------------------


def test_what_is_kept_in_hand_for_a_whole_turn_without_use_is_returned_at_its_end() -> None:
    node = LoneNode()
    permits = node.hold(3)
    node.owner.at_once.clear()
    for permit in permits:
        permit.release()
    assert node.owner.at_once == []
    assert node.owner.turns_to_end == [node.account] * 3
    node.account.end_turns()
    assert node.talk(granted=3).returned == 0, "they came in the middle of it"
    used = node.ask()
    assert used.stage is Stage.HELD
    used.release()
    assert node.owner.granted() == [False, False, False, True]
    node.owner.at_once.clear()
    node.owner.turns_to_end.clear()
    node.account.end_turns()
    assert (node.owner.at_once, node.owner.turns_to_end) == ([True], [node.account])
    said = node.talk(granted=3)
    assert (counts(said), said.started) == ((3, 2, 3), 4), "two were not used"
    node.account.end_turns()
    assert counts(node.say()) == (3, 3, 3)
    assert node.ask().stage is Stage.WAITING


@pytest.mark.parametrize("timers_are_late", [False, True])
def test_the_hand_serves_for_two_turns_since_the_server_said_that_there_is_some_to_spare(
    timers_are_late: bool,
) -> None:
    """A node that is cut off hears neither of a pause nor of others that wait."""
    node = LoneNode()
    (permit,) = node.hold()
    permit.release()
    node.pass_time(TURN_S)
    node.talk(granted=1)
    end = node.now + 2 * TURN_S
    while node.now < end:
        permit = node.ask()
        assert permit.stage is Stage.HELD
        assert permit.turn_end <= min(end, node.now + TURN_S)
        permit.release()
        node.pass_time(TURN_S / 4)
        if not timers_are_late:
            node.account.end_turns()
        node.say()  # without an answer
    assert node.ask().stage is Stage.WAITING


@pytest.mark.parametrize("reply", [{"available": FULL}, {"available": -1}, {"is_counted": True}])
def test_of_a_full_site_what_nobody_here_uses_is_returned_at_once(reply: dict[str, Any]) -> None:
    node = LoneNode()
    first, second = node.hold(2)
    first.release()
    said = node.say()
    node.owner.at_once.clear()
    node.hear(said, granted=2, **reply)
    assert node.owner.at_once == [True], "it was in hand"
    assert node.say().returned == 1
    second.release()
    assert node.owner.at_once[1:] == ([True] if "available" in reply else [False])
    assert node.say().returned == 2
    assert node.ask().stage is Stage.WAITING


def test_a_node_that_has_handed_on_asks_at_the_turn_s_end_whether_others_wait_by_now() -> None:
    node = LoneNode()
    (first,) = node.hold()
    second = node.ask()
    node.owner.at_once.clear()
    first.release()
    assert (second.stage, node.owner.turns_to_end) == (Stage.HELD, [node.account])
    for _ in range(2):
        node.account.end_turns()
        assert node.owner.at_once == [True], "once a turn"


# Counts -----------------------------------------------------------------------------------------


def test_a_statement_counts_from_the_beginning_of_its_term() -> None:
    node = LoneNode()
    permits = [node.ask() for _ in range(4)]
    said = node.talk(granted=3, available=FULL)
    assert (counts(said), said.seq, said.started) == ((4, 0, 0), 1, 0)
    node.account.stop_turns()
    node.pass_time(2.0)
    permits[0].release()
    said = node.say()  # and may be lost on the way
    assert (counts(said), said.seq, said.started) == ((4, 1, 3), 2, 3)
    assert said.held_age == said.wait_age == 2.0
    for _ in range(3):
        permits[1].release()
    assert counts(node.say()) == (4, 2, 3)
    permits[3].release()
    said = node.say()
    assert (counts(said), said.wait_age) == ((3, 2, 3), 0.0)
    assert node.owner.count(PermitReleased) == 2


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("available", [SPARE, FULL])
def test_a_surplus_grant_serves_who_came_meanwhile_or_is_kept_where_there_is_some_to_spare(
    available: int, by_channel: bool
) -> None:
    node = LoneNode()
    given_up = [node.ask() for _ in range(2)]
    said = node.talk(granted=0, available=available) if by_channel else node.say()
    for permit in given_up:
        permit.release()
    came_meanwhile = node.ask()
    node.owner.at_once.clear()
    if by_channel:
        node.account.on_granted(said.term, 2)
    else:
        node.hear(said, granted=2, available=available)
    assert came_meanwhile.stage is Stage.HELD
    assert PermitGranted(came_meanwhile, 9, False) in node.owner.events
    assert node.owner.at_once == ([] if available else [True])
    next_one = node.ask()
    if available:
        assert (next_one.stage, node.owner.granted()) == (Stage.HELD, [False, True])
        assert counts(node.say()) == (2, 0, 2)
    else:
        assert counts(node.say()) == (3, 1, 2), "asked is never below granted: it is served"


def test_a_grant_counts_once_however_often_it_is_said() -> None:
    node = LoneNode()
    permits = [node.ask() for _ in range(3)]
    said = node.say()
    for _ in range(3):
        node.account.on_granted(said.term, 2)
        node.hear(said, granted=2)
        node.account.on_granted(said.term, 1)
    assert stages(permits) == ["held", "held", "waiting"]
    assert counts(node.say()) == (3, 0, 2)


# Starts -----------------------------------------------------------------------------------------


def test_a_start_counts_when_its_request_begins() -> None:
    node = LoneNode(Limit(9, delay=1.0))
    permit, never = node.ask(begins_later=True), node.ask(begins_later=True)
    assert node.talk().pending == 0
    said = node.say()
    assert (said.pending, said.started) == (2, 0)
    node.owner.at_once.clear()
    permit.begin()
    permit.begin()
    assert node.owner.at_once == [True], "the next start is a delay after this one"
    never.return_unused()
    never.begin()
    said = node.say()
    assert (said.pending, said.started, said.returned) == (0, 1, 1)
    at_once = node.ask()
    node.talk()
    at_once.return_unused()
    assert node.say().started == 2, "the server has counted it: the next one must count, too"


def test_a_permit_that_no_request_has_begun_under_is_returned_as_unused() -> None:
    node = LoneNode(Limit(9, delay=1.0))
    first, second = node.hold(2, is_counted=True)
    first.return_unused()
    said = node.talk(is_counted=True)
    assert (said.returned, said.unused, said.started, said.pending) == (1, 1, 1, -1)
    (third,) = node.hold(is_counted=True)
    second.return_unused()
    assert node.say().unused == 1, "it is not of the latest grant"
    third.return_unused()
    said = node.talk(is_counted=True)
    assert (said.returned, said.unused) == (3, 2)


# The lease --------------------------------------------------------------------------------------


def test_the_deadline_counts_from_the_first_statement_then_from_the_latest_answered() -> None:
    node = LoneNode()
    permit = node.ask()
    node.pass_time(10 * LEASE_S)
    assert node.account.deadline == math.inf, "nothing was said yet"
    first_sent = node.now
    first = node.say()
    node.pass_time(10.0)
    node.say()
    assert node.account.deadline == first_sent + GRACE_S, "while none is answered"
    node.pass_time(10.0)
    sent = node.now
    answered = node.say()
    node.pass_time(10.0)
    node.say()
    node.hear(answered, granted=0, sent=sent)
    assert node.account.deadline == sent + GRACE_S, "and not from the last one sent"
    node.hear(first, granted=0, sent=first_sent)
    assert node.account.deadline == sent + GRACE_S, "a late reply does not shorten it"
    node.account.on_granted(answered.term, 1)
    assert permit.stage is Stage.HELD
    assert permit.deadline == sent + GRACE_S, "nor does a grant lengthen it"


def test_at_the_deadline_all_is_lost_what_is_in_hand_too() -> None:
    node = LoneNode()
    permits = node.hold(3)
    permits.pop().release()
    ended: list[Permit] = []
    for permit in permits:
        permit.end_with_loss(lambda permit=permit: ended.append(permit))  # type: ignore[misc]
    node.owner.clock.now = node.account.deadline
    node.account.end_if_over(math.nextafter(node.now, 0))
    assert ended == []
    with pytest.raises(PermitLostError, match="before its work began"):
        permits[0].check()  # the process was stopped after the grant, and has just woken
    node.account.end_if_over(node.now)
    assert ended == permits
    assert stages(permits) == ["lost", "lost"]
    assert node.owner.count(PermitLost) == 2
    node.owner.at_once.clear()
    assert node.ask().stage is Stage.WAITING
    permits[0].release()
    assert True not in node.owner.at_once, "the other transfer has not ended yet"
    permits[1].release()
    assert node.owner.at_once[-1] is True


@pytest.mark.parametrize("comes", ["reply", "grant", "call"])
def test_what_is_over_ends_before_anything_is_heard_or_said(comes: str) -> None:
    """A node that was stopped wakes: its messages may be handled before its timers."""
    node = LoneNode()
    (held,) = node.hold()
    waiting = node.ask()
    node.pass_time(GRACE_S / 2)
    sent = node.now
    old = node.say()
    node.owner.clock.now = node.account.deadline
    if comes == "reply":
        node.hear(old, granted=2, sent=sent)
    elif comes == "grant":
        node.account.on_granted(old.term, 2)
    else:
        assert list(node.say_all()) == []
    assert held.lost
    assert waiting.stage is Stage.WAITING
    held.release()
    new = node.say()
    assert new.term > old.term
    assert counts(new) == (1, 0, 0)


# Terms ------------------------------------------------------------------------------------------


def test_after_it_was_idle_the_term_is_new_if_the_server_knows_that_it_is() -> None:
    node = LoneNode()
    (permit,) = node.hold(available=FULL)
    permit.release()
    early = node.say()
    given_up = node.ask()
    node.hear(early)
    said = node.say()
    assert (said.term, counts(said)) == (early.term, (2, 1, 1)), "that knew not of the last one"
    given_up.release()
    node.hear(said, granted=1)
    assert not node.account.is_empty, "the server believes that it waits"
    said = node.say()
    assert counts(said) == (1, 1, 1)
    node.hear(said, granted=2, available=FULL)  # it was granted before this was heard
    old = node.say()
    assert (old.term, counts(old)) == (early.term, (2, 2, 2))
    node.hear(old)
    assert (node.account.deadline, node.account.is_empty) == (math.inf, True)
    assert list(node.say_all()) == []
    waiting = node.ask()
    new = node.say()
    assert (new.seq, counts(new)) == (1, (1, 0, 0))
    assert new.term > old.term
    node.account.on_granted(old.term, 3)
    node.hear(old, granted=3)
    assert waiting.stage is Stage.WAITING, "grants of the old term are the old term's"


def test_in_a_new_epoch_the_term_is_new_and_what_is_held_is_claimed() -> None:
    node = LoneNode()
    held = node.hold(3)
    held.pop().release()  # it is in hand, which nobody claims
    held.append(node.ask())
    waiting = node.ask()
    old = node.talk(granted=3)
    deadline = node.account.deadline
    node.owner.at_once.clear()
    node.pass_time(30.0)
    node.account.on_new_epoch()
    assert True in node.owner.at_once
    sent = node.now
    new = node.say()
    assert new.term > old.term
    assert (counts(new), new.seq) == ((4, 0, 3), 1)
    node.account.on_granted(old.term, 4)
    node.hear(old, granted=4)
    assert (waiting.stage, stages(held)) == (Stage.WAITING, ["held"] * 3)
    assert node.account.deadline == deadline, "the old one, until the claim is answered"
    node.pass_time(1.0)
    node.hear(new, granted=3, sent=sent)
    assert node.account.deadline == sent + GRACE_S


@pytest.mark.parametrize("in_new_epoch", [False, True])
@pytest.mark.parametrize("waiting", [0, 1])
def test_the_new_term_is_not_spoken_before_the_last_transfer_of_the_old_one_has_ended(
    waiting: int, in_new_epoch: bool
) -> None:
    node = LoneNode()
    held = node.hold(2)
    for _ in range(waiting):
        node.ask()
    node.owner.clock.now = node.account.deadline
    node.account.end_if_over(node.now)
    if in_new_epoch:
        node.account.on_new_epoch()
    node.owner.at_once.clear()
    for permit in held:
        assert list(node.say_all()) == []
        assert node.account.ending
        assert not node.account.is_empty
        assert node.owner.at_once == []
        permit.release()
    assert node.owner.at_once == [True], "or is forgotten"
    assert node.account.is_empty == (not waiting)
    assert [counts(said) for said in node.say_all()] == waiting * [(1, 0, 0)]


# Refusals of the server -------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["lost", "old", "refused"])
def test_what_the_server_does_not_know_is_lost(status: str) -> None:
    node = LoneNode()
    (held,) = node.hold()
    waiting = node.ask()
    before = node.say()
    node.hear(before, granted=0, status=status, term=7_000)
    assert held.lost
    held.release()
    again = node.say()
    assert again.term > 7_000, "above the term that the server knows"
    assert counts(again) == (1, 0, 0)
    node.talk()
    node.hear(before, granted=0, status=status, term=5)
    assert waiting.stage is Stage.HELD, "a refusal of an old term loses nothing"


@pytest.mark.parametrize("status", ["lost", "refused"])
def test_after_a_refused_statement_the_node_pauses(status: str) -> None:
    """Else it would say the same again as fast as it can."""
    node = LoneNode()
    node.ask()
    node.owner.at_once.clear()
    node.talk(granted=0, status=status)
    is_refused = status == "refused"
    assert node.owner.at_once == ([] if is_refused else [True])
    assert node.owner.retries == ([REFUSED_RETRY_S] if is_refused else [])
    assert node.owner.count(StatementRefused) == is_refused


# Feedback ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["refused", "exhausted quota"])
def test_feedback_goes_with_the_return_of_its_permit_and_a_refusal_stops_turns(kind: str) -> None:
    node = LoneNode()
    first, second, third, in_hand = node.hold(4)
    in_hand.release()
    late = node.owner.permit(node.account, node.limit)
    node.pass_time(2.0)
    first.refused() if kind == "refused" else first.answered(0.1, retry_after=30.0)
    first.release()
    assert node.owner.at_once[-1] is True
    said = node.say()
    assert said.returned == 2, "a permit with feedback is not handed on, nor anything after it"
    assert said.feedback is not None
    seen = said.feedback.refused, said.feedback.good, said.feedback.retry_after
    assert seen == ((1, 0, 0.0) if kind == "refused" else (0, 1, 30.0))
    assert max(said.feedback.bad_age, said.feedback.good_age) == 2.0
    node.account.request(late)
    second.release()
    third.failed()
    third.release()
    assert late.stage is Stage.WAITING
    again, said = node.say_all()
    assert said.returned == 4
    assert said.feedback is not None
    assert said.feedback.failed == 1
    assert again.feedback is not None
    node.owner.clock.now = node.account.deadline
    assert [one.feedback for one in node.say_all()] == [None], "in a new term nobody knows of it"


@pytest.mark.parametrize(("latency", "seen"), [(0.1, (1, 0, 0)), (None, (0, 1, 0))])
@pytest.mark.parametrize(
    ("limit", "wanted"), [(Limit(9), False), (Limit(9), True), (Limit(9, adaptive=True), False)]
)
def test_ordinary_responses_are_reported_only_where_they_are_wanted(
    limit: Limit, wanted: bool, latency: float | None, seen: tuple[int, int, int]
) -> None:
    node = LoneNode(limit)
    (permit,) = node.hold(available=FULL, wants_feedback=wanted)
    permit.answered(latency)
    permit.release()
    feedback = node.say().feedback
    if limit.adaptive or wanted:
        assert feedback is not None
        assert (feedback.good, feedback.errors, feedback.failed) == seen
    else:
        assert feedback is None


def test_feedback_that_was_not_answered_is_said_again_word_for_word_before_the_next() -> None:
    node = LoneNode()
    first, second, third = node.hold(3)
    first.failed()
    first.release()
    (failed,) = node.say_all()
    second.refused()
    second.release()
    again, refused = node.say_all()
    assert again == failed
    assert [one.seq for one in (failed, refused)] == [2, 3]
    assert failed.feedback is not None
    assert refused.feedback is not None
    assert (failed.feedback.failed, failed.feedback.refused) == (1, 0)
    assert (refused.feedback.failed, refused.feedback.refused) == (0, 1)
    node.hear(failed, granted=3)
    again, plain = node.say_all()
    assert again == refused
    assert (plain.seq, plain.feedback) == (4, None)
    node.hear(plain, granted=3)
    assert refused in node.say_all(), "a reply answers its own statement alone"
    node.hear(refused, granted=3)
    assert [said.feedback for said in node.say_all()] == [None]
    assert third.stage is Stage.HELD


def test_a_backoff_withdraws_what_has_been_granted_and_is_an_event(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    node = LoneNode()
    held, refused = node.hold(2)
    waiting = node.ask()
    refused.refused()
    refused.release()
    node.talk(granted=2, backoff=4.0)
    assert BackoffStarted("s", 4.0) in node.owner.events
    assert "s refused a request: no node starts a request there for 4 s." in caplog.messages
    assert not held.withdrawn, "other nodes are told, and so is this one"
    node.account.on_backoff()
    assert (held.withdrawn, waiting.withdrawn) == (True, False)


def test_of_all_nodes_requests_the_youngest_that_was_answered_well_is_known() -> None:
    node = LoneNode()
    (held,) = node.hold()
    assert held.site_answered_at == -math.inf
    node.talk(answered_ago=5.0)
    assert held.site_answered_at == node.now - 5.0, "another node's"
    node.talk(answered_ago=8.0)
    assert held.site_answered_at == node.now - 5.0
    node.pass_time(2.0)
    own = node.ask()
    node.talk()
    node.pass_time(3.0)
    own.answered(0.1)
    own.release()
    assert held.site_answered_at == own.granted_at


# Hosts that are down ----------------------------------------------------------------------------


@pytest.mark.parametrize("is_told", [False, True])
def test_requests_for_a_site_that_is_down_fail_at_once_but_for_the_one_that_tries_it(
    is_told: bool,
) -> None:
    node = LoneNode()
    tries, waits = node.ask(), node.ask()
    node.talk(granted=1, down_for=None if is_told else 65.0)
    if is_told:
        node.owner.at_once.clear()
        node.account.on_down(65.0)
    assert (tries.stage, waits.stage) == (Stage.HELD, Stage.WAITING)
    assert tries._granted.done()
    assert waits._granted.done()
    assert not tries._granted.exception()
    error = waits._granted.exception()
    assert isinstance(error, HostDownError)
    assert "s is down: it has not responded for 65 s" in str(error)
    assert node.owner.at_once[-1] is True, "it wants no permit any more"
    waits.release()
    assert node.say().asked == 1
    assert [one.permit for one in node.owner.events if isinstance(one, FailedAtOnce)] == [waits]


def test_the_node_that_finds_a_site_down_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    node = LoneNode()
    for down_for in (60.0, 70.0, None):
        (tries,) = node.hold(down_for=None if down_for == 60.0 else 60.0)
        tries.failed()
        tries.release()
        node.talk(granted=1, backoff=None if down_for is None else 4.0, down_for=down_for)
    assert [one for one in node.owner.events if isinstance(one, HostDown)] == [HostDown("s", 60.0)]
    assert sum("s is down" in message for message in caplog.messages) == 1
    assert sum("s did not respond: no node" in message for message in caplog.messages) == 2
    assert caplog.messages[-1] == "s is no longer down."


# Waiting ----------------------------------------------------------------------------------------


def test_a_request_that_gets_no_permit_at_once_is_said_to_wait() -> None:
    node = LoneNode()
    first, second = node.ask(), node.ask()
    said = node.say()
    late = node.ask()
    node.hear(said, granted=1)
    assert [one.waited for one in (first, second, late)] == [False, True, False], (
        "the statement knew nothing of the last one"
    )
    node.hear(said, granted=1, retry_in=2.0)
    assert node.owner.count(PermitWaiting) == 1, "once"
    assert node.owner.retries == [2.0]
    node.pass_time(5.0)
    node.account.on_granted(said.term, 2)
    assert second.wait == 5.0
    node.account.on_new_epoch()
    node.talk(granted=2)
    assert late.waited, "the first reply under a new term says so"
    late.release()
    node.talk(granted=2, retry_in=2.0)
    assert node.owner.retries == [2.0], "nobody waits"


@pytest.mark.parametrize(("available", "at_once"), [(SPARE, False), (FULL, True)])
def test_of_a_full_site_all_is_said_at_once(available: int, at_once: bool) -> None:
    node = LoneNode(turn=0.0)
    (permit,) = node.hold(available=available)
    node.owner.at_once.clear()
    node.ask()
    permit.release()
    assert node.owner.at_once == [at_once, True], "then one waits for it"


def test_a_node_in_the_queue_says_at_the_turn_s_end_how_many_more_wait() -> None:
    """Its place there does not depend on how many they are."""
    node = LoneNode()
    node.ask()
    node.talk(granted=0, available=-1)
    node.owner.at_once.clear()
    more = [node.ask() for _ in range(3)]
    assert node.owner.at_once == []
    assert node.owner.turns_to_end
    assert all(permit.waited for permit in more)
    assert node.owner.count(PermitWaiting) == 4
    node.account.end_turns()
    assert node.owner.at_once == [True]
    assert node.talk(granted=0, available=-1).asked == 4
    node.account.end_turns()
    assert node.owner.at_once == [True], "there is nothing new"
    node.owner.turns_to_end.clear()
    more[0].release()
    assert (node.owner.at_once, node.owner.turns_to_end) == ([True], [node.account])
    node.account.end_turns()
    assert node.owner.at_once == [True, True]
    assert node.say().asked == 3


def test_a_node_that_gets_all_it_has_asked_for_asks_at_once_for_those_that_came_later() -> None:
    node = LoneNode()
    first = node.ask()
    said = node.talk(granted=0, available=-1)
    second = node.ask()
    node.owner.at_once.clear()
    node.account.on_granted(said.term, 1)
    assert stages([first, second]) == ["held", "waiting"]
    assert node.owner.at_once == [True]
    assert node.say().asked == 2


@pytest.mark.parametrize("reason", ["given up", "handed on"])
def test_a_node_that_no_longer_waits_leaves_the_queue(reason: str) -> None:
    """Else the server would grant to a node without a use for it."""
    node = LoneNode()
    (held,) = node.hold(available=FULL)
    waiting = node.ask()
    node.talk(granted=1, available=-1)
    node.owner.at_once.clear()
    (waiting if reason == "given up" else held).release()
    assert node.owner.at_once == [False]
    assert node.say().asked == 1
