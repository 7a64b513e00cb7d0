"""One account, without a server: turns, counts, the lease and its deadline, terms, feedback."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import process_time

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
from semaphore_middleware.errors import ClosedError, HostDownError, PermitLostError
from semaphore_middleware.model.limits import Limit
from tests.core.lone_node import FULL, GRACE_S, LEASE_S, SPARE, TURN_S, LoneNode


def stages(permits: list[Permit]) -> list[str]:
    return [permit.stage.value for permit in permits]


# A turn: a permit serves one request after another ----------------------------------------------


@pytest.mark.parametrize("available", [SPARE, FULL, -3])
def test_within_a_turn_a_permit_is_handed_to_the_next_request_without_a_call(
    available: int,
) -> None:
    node = LoneNode()
    (first,) = node.hold(available=available)
    second, third = node.ask(), node.ask()
    node.owner.at_once.clear()
    first.release()
    second.release()
    assert stages([first, second, third]) == ["released", "released", "held"]
    assert node.owner.granted() == [False, True, True]
    assert node.owner.at_once == []
    third.release()
    node.account.drain()
    statement = node.say()
    assert (statement.asked, statement.returned, statement.believed) == (1, 1, 1)
    assert statement.started == 3


def test_the_request_that_asked_first_is_served_first() -> None:
    node = LoneNode()
    order: list[Permit] = []
    (permit,) = node.hold(available=FULL)
    waiting = [node.ask() for _ in range(5)]
    waiting[2].release()
    while node.account.held:
        permit.release()
        order += node.account.held
        permit = next(iter(node.account.held), permit)
    assert order == [waiting[0], waiting[1], waiting[3], waiting[4]]


def test_who_gave_up_is_forgotten_while_nobody_answers() -> None:
    node = LoneNode()
    waiting = node.ask()
    for _ in range(100):
        node.ask().release()
    assert len(node.account._newcomers) <= 2 + LINE_SLACK
    assert len(node.account._line) <= 2 + LINE_SLACK
    node.talk()
    assert stages([waiting]) == ["held"]


def test_the_request_with_the_highest_priority_is_served_first() -> None:
    node = LoneNode()
    order: list[Permit] = []
    (permit,) = node.hold(available=FULL)
    waiting = [node.ask(priority=priority) for priority in (0, 5, 0, 9, 5, -1)]
    waiting[3].release()
    for _ in range(100):
        node.ask(priority=7).release()
    assert len(node.account._line) <= 2 * len(waiting) + LINE_SLACK
    while node.account.held:
        permit.release()
        order += node.account.held
        permit = next(iter(node.account.held), permit)
    assert order == [waiting[place] for place in (1, 4, 0, 2, 5)]


# Requests that begin later ----------------------------------------------------------------------


def test_a_start_counts_when_its_request_begins() -> None:
    node = LoneNode(Limit(9, delay=1.0))
    permit = node.ask(begins_later=True)
    assert node.talk(granted=1).pending == 0
    said = node.say()
    assert (said.pending, said.started) == (1, 0)
    node.owner.at_once.clear()
    permit.begin()
    permit.begin()
    assert node.owner.at_once == [True]
    said = node.say()
    assert (said.pending, said.started) == (0, 1)


def test_a_start_that_never_began_is_not_counted() -> None:
    node = LoneNode(Limit(9, delay=1.0))
    permit = node.ask(begins_later=True)
    node.talk(granted=1)
    permit.return_unused()
    permit.begin()
    said = node.say()
    assert (said.pending, said.started, said.returned) == (0, 0, 1)


@pytest.mark.parametrize("begins_later", [False, True])
def test_where_requests_begin_later_no_start_that_counts_is_taken_back(begins_later: bool) -> None:
    """Or the next one would not count: the server has counted as many before."""
    node = LoneNode(Limit(9, delay=1.0))
    waits = node.ask(begins_later=True)
    node.talk()
    begun = node.ask(begins_later=begins_later)
    node.talk()
    begun.begin()
    assert node.say().started == 1
    begun.return_unused()
    assert node.say().started == 1
    waits.begin()
    assert node.say().started == 2


def test_requests_that_begin_at_once_say_nothing_of_pending_starts() -> None:
    node = LoneNode()
    (permit,) = node.hold()
    permit.begin()
    assert node.say().pending == -1


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
    statement = node.say()
    assert (statement.asked, statement.returned) == (2, 1), "it waits for the server's next permit"


def test_with_permits_to_spare_all_turns_end_together() -> None:
    node = LoneNode()
    node.pass_time(3.0)
    (early,) = node.hold()
    node.pass_time(TURN_S - 4.0)
    (late,) = node.hold()
    waiting = [node.ask() for _ in range(2)]
    node.pass_time(1.0)  # to the next multiple of a turn
    early.release()
    late.release()
    assert stages(waiting) == ["waiting", "waiting"]
    assert node.say().returned == 2


def test_a_turn_goes_on_while_the_server_says_that_there_is_some_to_spare() -> None:
    node = LoneNode()
    (first,) = node.hold()
    second = node.ask()
    node.pass_time(TURN_S + 1.0)
    node.talk(granted=1)
    first.release()
    assert second.stage is Stage.HELD


def test_without_turns_nothing_is_handed_on() -> None:
    node = LoneNode(turn=0.0)
    (first,) = node.hold()
    second = node.ask()
    first.release()
    assert second.stage is Stage.WAITING
    assert node.say().returned == 1
    assert node.owner.turns_to_end == []


def counted(node: LoneNode) -> None:
    """The server says that each start counts."""
    node.talk(granted=1, is_counted=True)


def told_of_a_backoff(node: LoneNode) -> None:
    node.account.on_backoff()


def told_of_a_changed_rule(node: LoneNode) -> None:
    node.account.stop_turns()


def draining(node: LoneNode) -> None:
    node.account.drain()


def in_another_epoch(node: LoneNode) -> None:
    node.account.on_new_epoch()


REASONS = [counted, told_of_a_backoff, told_of_a_changed_rule, draining, in_another_epoch]


@pytest.mark.parametrize("happens", REASONS)
def test_nothing_is_handed_on(happens: Callable[[LoneNode], None]) -> None:
    node = LoneNode()
    (first,) = node.hold()
    waiting = node.ask()
    happens(node)
    first.release()
    assert waiting.stage is Stage.WAITING
    assert node.say().returned == 1


@pytest.mark.parametrize("happens", REASONS)
def test_nothing_stays_in_hand(happens: Callable[[LoneNode], None]) -> None:
    node = LoneNode()
    first, second = node.hold(2)
    first.release()
    happens(node)
    statement = node.say()
    assert statement.believed - statement.returned == 1, "what `second` holds"
    node.owner.events.clear()
    node.ask()
    assert node.owner.granted() == []
    second.release()
    assert node.owner.granted() == []


@pytest.mark.parametrize(
    "limit", [Limit(9, delay=0.1), Limit(9, rate="60/m", burst=5), Limit(9, adaptive=True)]
)
def test_under_a_delay_a_rate_or_an_adaptive_limit_nothing_is_handed_on(limit: Limit) -> None:
    """Whatever the last reply said: it may be from before the limit was named."""
    node = LoneNode()
    first, in_hand = node.hold(2)
    in_hand.release()
    node.ask(limit).release()
    waiting = [node.ask(limit), node.ask()]
    first.release()
    assert stages(waiting) == ["waiting", "waiting"]
    statement = node.say()
    assert statement.limit == limit


def test_a_turn_that_was_stopped_begins_again_when_the_server_is_heard() -> None:
    node = LoneNode()
    (first,) = node.hold()
    waiting = node.ask()
    node.account.stop_turns()
    node.talk(granted=1)
    first.release()
    assert waiting.stage is Stage.HELD


def test_a_turn_that_was_stopped_stays_so_at_a_full_site() -> None:
    node = LoneNode()
    (first,) = node.hold(available=FULL)
    waiting = node.ask()
    node.account.stop_turns()
    node.talk(granted=1, available=FULL)
    first.release()
    assert waiting.stage is Stage.WAITING


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


def test_handing_on_changes_no_deadline() -> None:
    node = LoneNode()
    (first,) = node.hold()
    deadline = node.account.deadline
    node.pass_time(1.0)
    second = node.ask()
    first.release()
    assert second.deadline == node.account.deadline == deadline


# In hand ----------------------------------------------------------------------------------------


def test_with_permits_to_spare_one_is_kept_in_hand_for_the_next_request() -> None:
    node = LoneNode()
    first, second = node.hold(2)
    node.owner.at_once.clear()
    first.release()
    assert node.owner.at_once == []
    assert node.owner.turns_to_end == [node.account]
    third = node.ask()
    assert third.stage is Stage.HELD
    assert node.owner.granted() == [False, False, True]
    assert node.owner.at_once == []
    second.release()
    third.release()
    statement = node.say()
    assert (statement.asked, statement.returned, statement.started) == (2, 0, 3)


def test_what_no_request_has_used_in_a_whole_turn_is_returned_at_its_end() -> None:
    node = LoneNode()
    permits = node.hold(3)
    for permit in permits:
        permit.release()
    node.account.end_turns()
    assert node.talk(granted=3).returned == 0, "they came in the middle of it"
    node.ask().release()
    node.owner.at_once.clear()
    node.account.end_turns()
    assert node.owner.at_once == [True]
    assert node.talk(granted=3).returned == 2, "two were not used"
    assert node.owner.turns_to_end[-1] is node.account
    node.account.end_turns()
    statement = node.say()
    assert (statement.asked, statement.returned) == (3, 3)
    assert node.ask().stage is Stage.WAITING


def test_the_hand_serves_for_two_turns_since_the_server_said_that_there_is_some_to_spare() -> None:
    """A node that is cut off hears neither of a pause nor of others that wait."""
    node = LoneNode()
    (permit,) = node.hold()
    permit.release()
    end = node.now + 2 * TURN_S
    while node.now < end:
        permit = node.ask()
        assert permit.stage is Stage.HELD
        assert permit.turn_end <= end
        permit.release()
        node.pass_time(TURN_S / 4)
        node.account.end_turns()
        node.say()  # without an answer
    assert node.ask().stage is Stage.WAITING
    node.account.end_turns()
    assert node.say().returned == 1


def test_what_is_in_hand_serves_nobody_after_those_two_turns() -> None:
    """Its timers may be late."""
    node = LoneNode()
    (permit,) = node.hold()
    permit.release()
    node.pass_time(2 * TURN_S)
    assert node.ask().stage is Stage.WAITING


def test_a_word_that_there_is_some_to_spare_lets_the_hand_serve_for_two_turns_more() -> None:
    node = LoneNode()
    first, second = node.hold(2)
    first.release()
    node.pass_time(1.5 * TURN_S)
    node.talk(granted=2)
    node.pass_time(1.4 * TURN_S)
    assert node.ask().stage is Stage.HELD
    assert second.stage is Stage.HELD


def test_the_turn_of_a_permit_from_the_hand_ends_with_the_common_one() -> None:
    node = LoneNode()
    (permit,) = node.hold()
    permit.release()
    node.account.end_turns()
    node.pass_time(1.5 * TURN_S)
    used = node.ask()
    assert (used.stage, used.turn_end) == (Stage.HELD, node.now + TURN_S / 2)


@pytest.mark.parametrize("available", [FULL, -1])
def test_of_a_full_site_what_nobody_here_uses_is_returned_at_once(available: int) -> None:
    node = LoneNode()
    (permit,) = node.hold(available=available)
    node.owner.at_once.clear()
    permit.release()
    assert node.owner.at_once == [True]
    assert node.say().returned == 1


@pytest.mark.parametrize("reply", [{"available": FULL}, {"is_counted": True}])
def test_what_is_in_hand_is_returned_when_the_server_says_that_the_site_is_full(
    reply: dict[str, object],
) -> None:
    node = LoneNode()
    first, _ = node.hold(2)
    first.release()
    statement = node.say()
    node.owner.at_once.clear()
    node.hear(statement, granted=2, **reply)  # type: ignore[arg-type]
    assert node.owner.at_once == [True]
    assert node.say().returned == 1
    assert node.ask().stage is Stage.WAITING


def test_at_the_end_of_a_turn_the_node_asks_whether_there_is_still_some_to_spare() -> None:
    """It has handed on without a word; others may wait by now."""
    node = LoneNode()
    (first,) = node.hold()
    second = node.ask()
    first.release()
    node.owner.at_once.clear()
    node.account.end_turns()
    assert node.owner.at_once == [True]
    node.account.end_turns()
    assert node.owner.at_once == [True], "once a turn"
    assert second.stage is Stage.HELD


def test_the_account_has_turns_ended_once_for_each_turn_in_which_it_handed_on() -> None:
    node = LoneNode()
    (permit,) = node.hold(available=FULL)
    for _ in range(2):
        for _ in range(3):
            after = node.ask()
            permit.release()
            permit = after
        assert node.owner.turns_to_end.count(node.account) == 1
        node.owner.turns_to_end.clear()
        node.account.end_turns()


def test_draining_serves_nobody_who_waits() -> None:
    node = LoneNode()
    first, second = node.hold(2)
    first.release()
    waiting = node.owner.permit(node.account, node.limit)
    node.account.drain()
    node.account.request(waiting)
    waiting.refuse(ClosedError("closing"))
    second.release()
    waiting.release()
    statement = node.say()
    assert (statement.asked, statement.returned) == (2, 2)


# Counts -----------------------------------------------------------------------------------------


def test_a_statement_counts_from_the_opening_of_the_account() -> None:
    node = LoneNode()
    permits = [node.ask() for _ in range(4)]
    statement = node.talk(granted=3)
    assert (statement.asked, statement.returned, statement.believed) == (4, 0, 0)
    assert (statement.seq, statement.started) == (1, 0)
    node.pass_time(2.0)
    permits[0].outcome = None
    node.account.stop_turns()
    permits[0].release()
    statement = node.say()
    assert (statement.asked, statement.returned, statement.believed) == (4, 1, 3)
    assert (statement.seq, statement.started) == (2, 3)
    assert statement.held_age == statement.wait_age == 2.0


def test_what_was_returned_is_said_until_the_end_of_the_term() -> None:
    node = LoneNode()
    permits = [node.ask() for _ in range(3)]
    node.talk(granted=3, available=FULL)
    permits[0].release()
    assert node.say().returned == 1  # and may be lost on the way
    permits[1].release()
    assert node.say().returned == 2


def test_of_a_full_site_a_surplus_grant_is_returned() -> None:
    node = LoneNode()
    kept, given_up = node.ask(), node.ask()
    statement = node.say()
    given_up.release()
    node.owner.at_once.clear()
    node.hear(statement, granted=2, available=FULL)
    assert (kept.stage, given_up.stage) == (Stage.HELD, Stage.RELEASED)
    assert node.owner.at_once == [True]
    statement = node.say()
    assert (statement.asked, statement.returned, statement.believed) == (2, 1, 2)


@pytest.mark.parametrize("happens", REASONS)
def test_where_nothing_is_handed_on_a_surplus_grant_is_returned(
    happens: Callable[[LoneNode], None],
) -> None:
    node = LoneNode()
    (first,) = node.hold()
    given_up = node.ask()
    happens(node)
    statement = node.say()
    given_up.release()
    node.account.on_granted(statement.term, 2)
    assert node.say().returned == 1
    first.release()


def test_with_permits_to_spare_a_surplus_grant_is_kept_in_hand() -> None:
    node = LoneNode()
    kept, given_up = node.ask(), node.ask()
    statement = node.say()
    given_up.release()
    node.hear(statement, granted=2)
    assert node.account in node.owner.turns_to_end
    assert node.ask().stage is Stage.HELD
    assert node.owner.granted() == [False, True]
    statement = node.say()
    assert (statement.asked, statement.returned, statement.believed) == (2, 0, 2)
    assert kept.stage is Stage.HELD


def test_without_turns_a_surplus_grant_is_returned() -> None:
    node = LoneNode(turn=0.0)
    given_up = node.ask()
    statement = node.say()
    given_up.release()
    node.hear(statement, granted=1)
    assert node.say().returned == 1


def test_a_surplus_grant_serves_a_request_that_came_meanwhile() -> None:
    node = LoneNode()
    given_up = node.ask()
    statement = node.say()
    given_up.release()
    other = node.ask()
    node.hear(statement, granted=1)
    assert other.stage is Stage.HELD
    assert node.say().returned == 0


def test_asked_is_never_below_granted() -> None:
    """Ask, give up, return the surplus, ask again: it must be served (a literal counter of wishes
    would say asked = granted).
    """
    node = LoneNode()
    given_up = node.ask()
    statement = node.say()
    given_up.release()
    node.hear(statement, granted=1, available=FULL)
    node.ask()
    statement = node.say()
    assert (statement.asked, statement.returned, statement.believed) == (2, 1, 1)


def test_giving_up_lowers_what_is_asked_for() -> None:
    node = LoneNode()
    permits = [node.ask() for _ in range(3)]
    node.say()
    permits[1].release()
    statement = node.say()
    assert (statement.seq, statement.asked) == (2, 2)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_grant_counts_once_however_often_it_is_said(times: int) -> None:
    node = LoneNode()
    permits = [node.ask() for _ in range(3)]
    statement = node.say()
    for _ in range(times):
        node.account.on_granted(statement.term, 2)
        node.hear(statement, granted=2)
        node.account.on_granted(statement.term, 1)
    assert stages(permits) == ["held", "held", "waiting"]
    statement = node.say()
    assert (statement.asked, statement.returned, statement.believed) == (3, 0, 2)


def test_a_request_is_released_once() -> None:
    node = LoneNode()
    first, second = node.hold(2, available=FULL)
    for _ in range(3):
        first.release()
    assert node.say().returned == 1
    assert node.owner.count(PermitReleased) == 1
    assert second.stage is Stage.HELD


def test_a_permit_that_no_request_has_begun_under_is_returned_as_unused() -> None:
    node = LoneNode(Limit(9, delay=1.0))
    first, second = node.hold(2, is_counted=True)
    first.return_unused()
    statement = node.say()
    assert (statement.returned, statement.unused, statement.started) == (1, 1, 1)
    second.release()
    statement = node.say()
    assert (statement.returned, statement.unused, statement.started) == (2, 1, 1)


def test_a_permit_is_unused_only_while_it_is_of_the_latest_grant() -> None:
    node = LoneNode(Limit(9, delay=1.0))
    (first,) = node.hold(1, is_counted=True)
    node.hold(1, is_counted=True)
    first.return_unused()
    assert (node.say().returned, node.say().unused) == (1, 0)


def test_what_is_returned_unused_is_not_said_of_a_later_grant() -> None:
    """The server would take it for that grant's start, which is used."""
    node = LoneNode(Limit(9, delay=1.0))
    (first,) = node.hold(is_counted=True)
    node.ask()
    call = node.say()
    first.return_unused()
    node.account.on_granted(call.term, 2)
    later = node.say()
    assert (later.believed, later.returned, later.unused) == (2, 1, 0)


def test_what_is_known_to_be_unused_is_said_again_with_a_later_grant() -> None:
    node = LoneNode(Limit(9, delay=1.0))
    first, second = node.hold(2, is_counted=True)
    first.return_unused()
    node.talk(is_counted=True)
    (third,) = node.hold(is_counted=True)
    assert node.say().unused == 1
    second.return_unused()
    third.return_unused()
    assert node.say().unused == 2


def test_what_is_returned_unused_serves_no_request_of_the_same_node() -> None:
    node = LoneNode()
    (permit,) = node.hold(1)
    waits = node.ask()
    permit.return_unused()
    assert waits.stage is Stage.WAITING
    assert node.say().returned == 1


def test_in_a_new_term_nothing_is_unused_yet() -> None:
    node = LoneNode(Limit(9, delay=1.0))
    first, second = node.hold(2, is_counted=True)
    first.return_unused()
    node.talk(is_counted=True)
    node.account.on_new_epoch()
    assert (node.say().unused, node.say().started) == (0, 0)
    node.hold(is_counted=True)
    assert node.say().unused == 0
    second.return_unused()
    assert node.say().started == 0


@pytest.mark.parametrize(
    "limit", [Limit(9, delay=1.0), Limit(9, rate="1/s"), Limit(9, adaptive=True)]
)
def test_starts_count_under_a_delay_a_rate_or_an_adaptive_limit(limit: Limit) -> None:
    assert LoneNode(limit).hold()[0].starts_count


@pytest.mark.parametrize("is_counted", [True, False])
def test_starts_count_where_the_server_says_so(is_counted: bool) -> None:
    assert LoneNode().hold(is_counted=is_counted)[0].starts_count is is_counted


# The lease --------------------------------------------------------------------------------------


def test_nothing_is_over_before_anything_was_said() -> None:
    node = LoneNode()
    node.ask()
    node.pass_time(10 * LEASE_S)
    assert node.account.deadline == math.inf
    assert node.say().seq == 1


def test_the_first_deadline_counts_from_before_the_first_statement() -> None:
    node = LoneNode()
    node.ask()
    sent = node.now
    statement = node.say()
    node.pass_time(10.0)
    node.say()
    assert node.account.deadline == sent + GRACE_S, "from the first one, while none is answered"
    node.hear(statement, sent=sent)
    assert node.account.deadline == sent + GRACE_S


def test_a_deadline_counts_from_the_latest_answered_statement_not_from_the_last_sent() -> None:
    node = LoneNode()
    node.hold()
    node.pass_time(10.0)
    answered_sent = node.now
    answered = node.say()
    node.pass_time(10.0)
    node.say()
    node.pass_time(10.0)
    node.hear(answered, granted=1, sent=answered_sent)
    assert node.account.deadline == answered_sent + GRACE_S


def test_a_late_reply_does_not_shorten_the_lease() -> None:
    node = LoneNode()
    node.ask()
    first = node.say()
    sent = node.now
    node.pass_time(20.0)
    node.talk(granted=1)
    deadline = node.account.deadline
    node.hear(first, granted=1, sent=sent)
    assert node.account.deadline == deadline == node.now + GRACE_S


def test_a_grant_does_not_lengthen_the_lease() -> None:
    node = LoneNode()
    permit = node.ask()
    statement = node.talk(granted=0)
    deadline = node.account.deadline
    node.pass_time(30.0)
    node.account.on_granted(statement.term, 1)
    assert permit.stage is Stage.HELD
    assert permit.deadline == deadline


def test_at_the_deadline_all_is_lost_what_is_in_hand_too() -> None:
    node = LoneNode()
    permits = node.hold(3)
    permits.pop().release()
    ended: list[Permit] = []
    for permit in permits:
        permit.end_with_loss(lambda permit=permit: ended.append(permit))  # type: ignore[misc]
    node.account.end_if_over(math.nextafter(node.account.deadline, 0))
    assert ended == []
    node.account.end_if_over(node.account.deadline)
    assert ended == permits
    assert stages(permits) == ["lost", "lost"]
    assert node.owner.count(PermitLost) == 2
    assert not node.account.held
    node.owner.clock.now += 1
    assert node.ask().stage is Stage.WAITING


@pytest.mark.parametrize("message", ["reply", "grant"])
def test_what_is_over_ends_before_any_message_is_heard(message: str) -> None:
    """A node that was stopped wakes: its messages may be handled before its timers."""
    node = LoneNode()
    (held,) = node.hold()
    waiting = node.ask()
    node.pass_time(GRACE_S / 2)
    sent = node.now
    statement = node.say()
    node.owner.clock.now = node.account.deadline
    if message == "reply":
        node.hear(statement, granted=2, sent=sent)
    else:
        node.account.on_granted(statement.term, 2)
    assert held.lost
    assert waiting.stage is Stage.WAITING


def test_what_is_over_ends_before_anything_is_said() -> None:
    node = LoneNode()
    (held,) = node.hold()
    waiting = node.ask()
    old = node.say()
    node.owner.clock.now = node.account.deadline
    assert list(node.say_all()) == []
    assert held.lost
    held.release()
    statement = node.say()
    assert statement.term > old.term
    assert (statement.asked, statement.returned, statement.believed) == (1, 0, 0)
    assert waiting.stage is Stage.WAITING


# Terms ------------------------------------------------------------------------------------------


def test_after_the_deadline_the_term_is_new_even_if_nothing_was_held() -> None:
    node = LoneNode()
    waiting = node.ask()
    old = node.talk(granted=0)
    node.owner.at_once.clear()
    node.owner.clock.now = node.account.deadline
    node.account.end_if_over(node.now)
    assert node.account.deadline == math.inf
    assert node.owner.at_once == [True]
    new = node.say()
    assert new.term > old.term
    assert (new.seq, new.asked, new.returned, new.believed, new.started) == (1, 1, 0, 0, 0)
    node.account.on_granted(old.term, 1)
    node.hear(old, granted=1)
    assert waiting.stage is Stage.WAITING, "grants of the old term are the old term's"


def test_the_first_deadline_of_a_new_term_counts_from_its_own_first_statement() -> None:
    node = LoneNode()
    node.ask()
    node.talk(granted=0)
    node.owner.clock.now = node.account.deadline
    node.account.end_if_over(node.now)
    node.pass_time(5.0)
    sent = node.now
    node.say()
    assert node.account.deadline == sent + GRACE_S


def test_after_it_was_idle_the_term_is_new() -> None:
    node = LoneNode()
    (permit,) = node.hold(available=FULL)
    permit.release()
    old = node.talk()
    assert node.account.deadline == math.inf
    assert node.account.is_empty
    assert list(node.say_all()) == []
    waiting = node.ask()
    new = node.say()
    assert new.term > old.term
    assert (new.asked, new.returned, new.believed) == (1, 0, 0)
    node.account.on_granted(old.term, 2)
    assert waiting.stage is Stage.WAITING


def test_it_is_not_idle_for_a_reply_that_knows_nothing_of_the_latest_request() -> None:
    node = LoneNode()
    (permit,) = node.hold(available=FULL)
    permit.release()
    idle = node.say()
    waiting = node.ask()
    node.hear(idle, granted=1)
    statement = node.say()
    assert statement.term == idle.term
    assert (statement.asked, statement.returned, statement.believed) == (2, 1, 1)
    # Nor for one to an earlier statement than the latest, which has asked again.
    waiting.release()
    node.hear(idle, granted=1)
    assert node.say().term == idle.term


def test_it_is_not_idle_while_the_server_believes_that_a_request_waits() -> None:
    node = LoneNode()
    given_up = node.ask()
    statement = node.say()
    given_up.release()
    node.hear(statement, granted=0)
    assert not node.account.is_empty
    again = node.say()
    assert (again.term, again.asked) == (statement.term, 0)


def test_it_is_not_idle_while_a_surplus_grant_is_to_be_returned() -> None:
    node = LoneNode()
    given_up = node.ask()
    statement = node.say()
    given_up.release()
    statement = node.say()
    node.hear(statement, granted=1, available=FULL)
    again = node.say()
    assert again.term == statement.term
    assert (again.asked, again.returned) == (1, 1)
    node.hear(again)
    assert node.account.is_empty


def test_in_a_new_epoch_the_term_is_new_and_what_is_held_is_claimed() -> None:
    node = LoneNode()
    held = node.hold(3)
    held.pop().release()  # it is in hand, which nobody claims
    waiting = node.ask()
    waiting_too = node.ask()
    old = node.talk(granted=3)
    assert waiting.stage is Stage.HELD
    held.append(waiting)
    node.owner.at_once.clear()
    node.account.on_new_epoch()
    assert True in node.owner.at_once
    new = node.say()
    assert new.term > old.term
    assert (new.seq, new.asked, new.returned, new.believed) == (1, 4, 0, 3)
    node.account.on_granted(old.term, 4)
    node.hear(old, granted=4)
    assert waiting_too.stage is Stage.WAITING
    assert stages(held) == ["held"] * 3


def test_carried_holds_keep_the_old_deadline_until_the_new_term_is_answered() -> None:
    node = LoneNode()
    node.hold()
    deadline = node.account.deadline
    node.pass_time(30.0)
    node.account.on_new_epoch()
    assert node.account.deadline == deadline
    sent = node.now
    statement = node.say()
    assert node.account.deadline == deadline
    node.pass_time(1.0)
    node.hear(statement, granted=1, sent=sent)
    assert node.account.deadline == sent + GRACE_S


def test_without_holds_a_new_epoch_begins_without_a_deadline() -> None:
    node = LoneNode()
    node.ask()
    node.talk(granted=0)
    node.pass_time(30.0)
    node.account.on_new_epoch()
    assert node.account.deadline == math.inf


def test_the_new_term_is_not_spoken_before_the_last_transfer_of_the_old_one_has_ended() -> None:
    node = LoneNode()
    held = node.hold(2)
    waiting = node.ask()
    node.owner.clock.now = node.account.deadline
    node.account.end_if_over(node.now)
    for permit in held:
        assert list(node.say_all()) == []
        assert node.account.ending
        assert not node.account.is_empty
        node.owner.at_once.clear()
        permit.release()
    assert node.owner.at_once == [True]
    assert node.say().asked == 1
    assert waiting.stage is Stage.WAITING


def test_nor_does_a_new_epoch_let_it_be_spoken() -> None:
    node = LoneNode()
    (held,) = node.hold()
    node.ask()
    node.owner.clock.now = node.account.deadline
    node.account.end_if_over(node.now)
    node.account.on_new_epoch()
    assert list(node.say_all()) == []
    held.release()
    statement = node.say()
    assert (statement.asked, statement.believed) == (1, 0)


def test_when_the_last_transfer_of_a_lost_account_has_ended_it_can_be_forgotten() -> None:
    """Its owner looks at that when it has spoken; closing waits for it."""
    node = LoneNode()
    (held,) = node.hold()
    node.owner.clock.now = node.account.deadline
    node.account.end_if_over(node.now)
    node.owner.at_once.clear()
    held.release()
    assert node.owner.at_once == [True]
    assert node.account.is_empty


# Refusals of the server -------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["lost", "old", "refused"])
def test_what_the_server_does_not_know_is_lost(status: str) -> None:
    node = LoneNode()
    (held,) = node.hold()
    waiting = node.ask()
    statement = node.say()
    node.hear(statement, granted=0, status=status, term=0)  # type: ignore[arg-type]
    assert held.lost
    assert waiting.stage is Stage.WAITING
    held.release()
    again = node.say()
    assert again.term > statement.term
    assert (again.asked, again.returned, again.believed) == (1, 0, 0)


def test_a_node_goes_above_the_term_that_the_server_knows() -> None:
    node = LoneNode()
    node.ask()
    statement = node.say()
    node.hear(statement, granted=0, status="old", term=7_000)
    assert node.say().term > 7_000


@pytest.mark.parametrize("status", ["lost", "old", "refused"])
def test_a_refusal_of_an_old_term_loses_nothing(status: str) -> None:
    node = LoneNode()
    node.ask()
    old = node.say()
    node.hear(old, granted=0, status="old", term=5)
    (held,) = node.account.waiting
    node.talk()
    node.hear(old, granted=0, status=status, term=5)  # type: ignore[arg-type]
    assert held.stage is Stage.HELD


def test_after_a_refused_statement_the_node_pauses() -> None:
    """Else it would say the same again as fast as it can."""
    node = LoneNode()
    node.ask()
    node.owner.at_once.clear()
    node.talk(granted=0, status="refused")
    assert node.owner.at_once == []
    assert node.owner.retries == [REFUSED_RETRY_S]
    node.talk(granted=0, status="lost")
    assert node.owner.at_once == [True]


def test_a_refused_statement_is_counted() -> None:
    node = LoneNode()
    node.ask()
    node.talk(granted=0, status="refused")
    node.talk(granted=0, status="lost")
    assert node.owner.count(StatementRefused) == 1


# Feedback ---------------------------------------------------------------------------------------


def test_feedback_goes_with_the_return_of_its_permit() -> None:
    node = LoneNode()
    first, second = node.hold(2)
    waiting = node.ask()
    node.pass_time(2.0)
    first.refused(retry_after=30.0)
    node.owner.at_once.clear()
    first.release()
    assert waiting.stage is Stage.WAITING, "a permit with feedback is not handed on"
    assert node.owner.at_once == [True]
    statement = node.say()
    assert statement.returned == 1
    assert statement.feedback is not None
    assert (statement.feedback.refused, statement.feedback.retry_after) == (1, 30.0)
    assert statement.feedback.bad_age == 2.0
    second.failed()
    second.release()
    assert node.say().feedback is not None


def test_a_node_whose_request_was_refused_hands_nothing_on_until_the_server_is_heard() -> None:
    node = LoneNode()
    refused, other, in_hand = node.hold(3)
    in_hand.release()
    waiting = node.owner.permit(node.account, node.limit)
    refused.refused()
    refused.release()
    node.account.request(waiting)
    other.release()
    assert waiting.stage is Stage.WAITING
    assert node.say().returned == 3


def test_ordinary_responses_are_reported_only_where_the_server_wants_them() -> None:
    node = LoneNode()
    (permit,) = node.hold(available=FULL)
    permit.answered(0.1)
    permit.release()
    assert node.say().feedback is None
    for limit, wanted in ((Limit(9), True), (Limit(9, adaptive=True), False)):
        node = LoneNode(limit)
        (permit,) = node.hold(available=FULL, wants_feedback=wanted)
        permit.answered(0.1)
        permit.release()
        feedback = node.say().feedback
        assert feedback is not None
        assert feedback.good == 1


def test_feedback_that_was_not_answered_is_said_again_word_for_word_before_the_next() -> None:
    node = LoneNode()
    first, second, third = node.hold(3)
    first.failed()
    first.release()
    (failed,) = node.say_all()
    second.refused()
    second.release()
    said = node.say_all()
    assert [one.seq for one in said] == [2, 3]
    again, refused = said
    assert again == failed
    assert failed.feedback is not None
    assert refused.feedback is not None
    assert (failed.feedback.failed, failed.feedback.refused) == (1, 0)
    assert (refused.feedback.failed, refused.feedback.refused) == (0, 1)
    node.hear(failed, granted=3)
    said = node.say_all()
    assert [one.seq for one in said] == [3, 4]
    again, plain = said
    assert again == refused
    assert plain.feedback is None
    node.hear(plain, granted=3)
    assert refused in node.say_all(), "a reply answers its own statement alone"
    node.hear(refused, granted=3)
    assert [statement.feedback for statement in node.say_all()] == [None]
    assert third.stage is Stage.HELD


def test_feedback_of_an_old_term_is_not_said_in_the_new_one() -> None:
    """The server would count it to permits that the new account never had."""
    node = LoneNode()
    first, second = node.hold(2)
    first.failed()
    first.release()
    node.say()
    second.failed()
    second.release()
    node.owner.clock.now = node.account.deadline
    node.ask()
    assert [(one.seq, one.feedback) for one in node.say_all()] == [(1, None)]


def test_a_backoff_withdraws_what_has_been_granted() -> None:
    node = LoneNode()
    (held,) = node.hold()
    waiting = node.ask()
    node.account.on_backoff()
    assert held.withdrawn
    assert not waiting.withdrawn


def test_a_backoff_that_this_feedback_began_is_an_event() -> None:
    node = LoneNode()
    (held,) = node.hold()
    held.refused()
    held.release()
    node.talk(granted=1, backoff=4.0)
    assert BackoffStarted("s", 4.0) in node.owner.events


def test_an_exhausted_quota_is_reported_at_once_and_nothing_is_handed_on() -> None:
    node = LoneNode()
    held, other = node.hold(2)
    held.answered(0.1, retry_after=30.0)
    node.owner.at_once.clear()
    held.release()
    assert node.owner.at_once == [True]
    waiting = node.ask()
    other.release()
    assert waiting.stage is Stage.WAITING
    feedback = node.say().feedback
    assert feedback is not None
    assert (feedback.good, feedback.refused, feedback.retry_after) == (1, 0, 30.0)


def test_an_error_is_reported_where_the_server_wants_to_know_whether_the_site_is_there() -> None:
    for wanted in (False, True):
        node = LoneNode()
        (held,) = node.hold(available=FULL, wants_feedback=wanted)
        held.answered(None)
        held.release()
        feedback = node.say().feedback
        assert (feedback is not None) == wanted
        assert feedback is None or (feedback.good, feedback.errors, feedback.failed) == (0, 1, 0)


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


def test_requests_for_a_site_that_is_down_fail_at_once_but_for_the_one_that_tries_it() -> None:
    node = LoneNode()
    tries, waits = node.ask(), node.ask()
    node.owner.at_once.clear()
    node.talk(granted=1, down_for=65.0)
    assert (tries.stage, waits.stage) == (Stage.HELD, Stage.WAITING)
    assert tries._granted.done()
    assert not tries._granted.exception()
    assert waits._granted.done()
    error = waits._granted.exception()
    assert isinstance(error, HostDownError)
    assert "s is down: it has not responded for 65 s" in str(error)
    assert node.owner.at_once == [True], "it wants no permit any more"
    waits.release()
    assert node.say().asked == 1
    failed = [one.permit for one in node.owner.events if isinstance(one, FailedAtOnce)]
    assert failed == [waits]


def test_requests_that_wait_for_a_site_that_goes_down_fail() -> None:
    node = LoneNode()
    first = node.ask()
    node.talk(granted=0, available=FULL)
    second = node.ask()
    node.account.on_down(65.0)
    for permit in (first, second):
        assert permit._granted.done()
        assert isinstance(permit._granted.exception(), HostDownError)
        permit.release()
    assert node.say().asked == 0


def test_the_node_that_finds_a_site_down_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    node = LoneNode()
    for down_for in (60.0, 70.0, None):
        (tries,) = node.hold(down_for=None if down_for == 60.0 else 60.0)
        tries.failed()
        tries.release()
        node.talk(granted=1, backoff=None if down_for is None else 4.0, down_for=down_for)
    said = [event for event in node.owner.events if isinstance(event, HostDown)]
    assert said == [HostDown("s", 60.0)]
    assert sum("s is down" in message for message in caplog.messages) == 1
    assert caplog.messages[-1] == "s is no longer down."


# Waiting ----------------------------------------------------------------------------------------


def test_a_request_that_gets_no_permit_at_once_is_said_to_wait() -> None:
    node = LoneNode()
    first, second = node.ask(), node.ask()
    statement = node.talk(granted=1)
    assert (first.waited, second.waited) == (False, True)
    node.hear(statement, granted=1)
    assert node.owner.count(PermitWaiting) == 1, "once"
    node.pass_time(5.0)
    node.account.on_granted(statement.term, 2)
    assert second.wait == 5.0


def test_after_a_new_term_the_first_reply_says_who_waits() -> None:
    node = LoneNode()
    node.hold()
    for _ in range(5):
        node.say()
    waiting = node.ask()
    node.account.on_new_epoch()
    node.talk(granted=1)
    assert waiting.waited


def test_a_reply_does_not_say_that_a_request_waits_of_which_its_statement_knew_nothing() -> None:
    node = LoneNode()
    node.ask()
    statement = node.say()
    late = node.ask()
    node.hear(statement, granted=1)
    assert not late.waited
    node.talk()
    assert late.stage is Stage.HELD
    assert node.owner.count(PermitWaiting) == 0


def test_it_speaks_again_when_the_server_says_that_only_time_is_in_the_way() -> None:
    node = LoneNode()
    (held,) = node.hold(retry_in=2.0)
    assert node.owner.retries == [], "nobody waits"
    node.ask()
    node.talk(granted=1, retry_in=2.0)
    assert node.owner.retries == [2.0]
    assert held.stage is Stage.HELD


@pytest.mark.parametrize(("available", "at_once"), [(SPARE, False), (FULL, True)])
def test_of_a_full_site_all_is_said_at_once(available: int, at_once: bool) -> None:
    node = LoneNode(turn=0.0)
    (permit,) = node.hold(available=available)
    node.owner.at_once.clear()
    node.ask()
    permit.release()
    assert node.owner.at_once[0] == at_once
    assert node.owner.at_once[1], "one waits for it"


def test_a_node_in_the_queue_says_at_the_turn_s_end_how_many_more_wait() -> None:
    """Its place there does not depend on how many they are."""
    node = LoneNode()
    node.ask()
    node.talk(granted=0, available=-1)
    node.owner.at_once.clear()
    more = [node.ask() for _ in range(3)]
    assert node.owner.at_once == []
    assert all(permit.waited for permit in more)
    assert node.owner.count(PermitWaiting) == 4
    assert node.owner.turns_to_end
    node.account.end_turns()
    assert node.owner.at_once == [True]
    assert node.talk(granted=0, available=-1).asked == 4
    node.account.end_turns()
    assert node.owner.at_once == [True], "there is nothing new"
    more[0].release()
    assert node.owner.at_once == [True]
    node.account.end_turns()
    assert node.owner.at_once == [True, True]
    assert node.say().asked == 3


def test_a_node_that_gets_all_it_has_asked_for_asks_at_once_for_those_that_came_later() -> None:
    node = LoneNode()
    first = node.ask()
    statement = node.talk(granted=0, available=-1)
    second = node.ask()
    node.owner.at_once.clear()
    node.account.on_granted(statement.term, 1)
    assert (first.stage, second.stage) == (Stage.HELD, Stage.WAITING)
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


def test_the_strictest_limit_that_requests_have_named_is_said() -> None:
    node = LoneNode(Limit(5))
    node.ask(Limit(3, delay=0.5))
    node.ask(Limit(4, rate="60/m"))
    limit = node.say().limit
    assert (limit.concurrency, limit.delay, limit.rate) == (3, 0.5, "60/m")


def test_who_was_granted_a_permit_is_an_event_with_the_limit_in_force() -> None:
    node = LoneNode()
    node.hold()
    (event,) = [event for event in node.owner.events if isinstance(event, PermitGranted)]
    assert event.limit == 9


def test_nothing_begins_under_a_permit_that_is_over() -> None:
    """As in a process that was stopped between the grant and the start, and has just woken."""
    node = LoneNode()
    (permit,) = node.hold()
    permit.check()
    node.owner.clock.now = node.account.deadline
    with pytest.raises(PermitLostError, match="before its work began"):
        permit.check()


@pytest.mark.slow
def test_a_hundred_thousand_grants_cost_no_more_each_than_some_thousand() -> None:
    def cost_of(many: int) -> float:
        began = process_time()
        node = LoneNode(Limit(many), turn=0)
        permits = [node.ask() for _ in range(many)]
        statement = node.talk(granted=0, available=FULL)
        node.account.on_granted(statement.term, many)
        assert all(permit.stage is Stage.HELD for permit in permits)
        for permit in permits:
            permit.release()
        assert node.say().returned == many
        return process_time() - began

    few = cost_of(4_000)
    assert cost_of(100_000) < 5 * 25 * few, "a cost that grows with the square would be 625 times"
