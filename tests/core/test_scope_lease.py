"""One lease, without a server: what the simulation cannot see, or does not check."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from semaphore_middleware.core import observer
from semaphore_middleware.core.permit import Permit, Stage
from semaphore_middleware.core.scope_lease import RETRY_UNREAD_S
from semaphore_middleware.core.wait_queue import QUEUE_SLACK
from semaphore_middleware.errors import PermitLostError
from semaphore_middleware.model.limits import Limit
from tests.core.lone_node import FULL, GRACE_S, LEASE_S, START_S, WINDOW_S, LoneNode
from tests.support.crawls import Log


def stages(*permits: Permit) -> list[str]:
    return [permit._stage.value for permit in permits]


def test_within_a_window_a_permit_is_reused_without_a_call() -> None:
    node = LoneNode()
    (first,) = node.hold()
    second, third = node.ask(), node.ask()
    node.pass_time(1.0)
    node.at_once.clear()
    for permit in (first, first, second):  # the second time it does nothing
        permit._begin()
        permit.release()
    third._begin()
    assert stages(first, second, third) == ["released", "released", "held"]
    assert node.at_once == []
    for _ in range(2):
        node.lease.on_window_end()
        assert node.at_once == [True], "once a window it asks whether others wait"
    assert (node.update().requested, node.update().started) == (1, 3)


def test_while_the_site_has_permits_to_spare_a_window_goes_on() -> None:
    node = LoneNode()
    (first,) = node.hold()
    node.pass_time(WINDOW_S)
    node.exchange()
    second = node.ask()
    first.release()
    assert stages(second) == ["held"]


def test_requests_that_gave_up_are_forgotten() -> None:
    node = LoneNode()
    waiting = [node.ask(priority=number // 2) for number in range(20)]
    for priority in range(2000):
        node.ask(priority=priority % 3).release()
    assert len(node.lease._queue._heap) <= 2 * len(waiting) + QUEUE_SLACK
    assert len(node.lease._queue._unanswered) <= 2 * len(waiting) + QUEUE_SLACK
    node.exchange(granted=1)
    assert waiting[18]._stage is Stage.HELD


def counted(node: LoneNode) -> None:
    """The server replies that each start must be reported."""
    node.exchange(granted=1, starts_count=True)


REASONS: list[Callable[[LoneNode], None]] = [
    counted,
    lambda node: node.lease.on_pause(0, 0.0),
    lambda node: node.lease.stop_reuse(),  # a rule has changed
    lambda node: node.lease.close(),
    lambda node: node.lease.on_new_epoch(),
]


@pytest.mark.parametrize("happens", REASONS)
def test_nothing_is_reused_nor_kept(happens: Callable[[LoneNode], None]) -> None:
    node = LoneNode()
    first, _, spare = node.hold(3)
    spare.release()
    happens(node)
    update = node.update()
    assert update.granted_ack - update.returned == 2, "what is spare goes back"
    waiting = node.ask()
    first.release()
    assert waiting._stage is Stage.WAITING
    waiting.release()
    update = node.update()
    node.lease.on_granted(update.lease_id, update.granted_ack + 1)
    update = node.update()
    assert update.granted_ack - update.returned == 1, "and a surplus"


@pytest.mark.parametrize("limit", [Limit(9, delay=0.1), Limit(8, rate="60/m", burst=5)])
def test_where_each_start_counts_nothing_is_reused(limit: Limit) -> None:
    """Whatever the last reply was: it may be from before the limit was set."""
    node = LoneNode()
    first, spare = node.hold(2)
    spare.release()
    assert not first._lease.starts_count
    waiting = [node.ask(limit), node.ask()]
    assert first._lease.starts_count
    first.release()
    assert stages(*waiting) == ["waiting", "waiting"]
    assert node.update().limit == limit, "the strictest that requests name now"
    waiting[0].release()
    assert node.update().limit == Limit(9)


@pytest.mark.parametrize("from_pool", [True, False])
def test_at_the_deadline_nothing_is_reused(from_pool: bool) -> None:
    """A process may be so late that it reads the time before its timers fire."""
    node = LoneNode(window=4 * LEASE_S)
    (first,) = node.hold()
    if from_pool:
        first.release()
    node.clock.now = node.lease.deadline
    waiting = node.ask()
    if not from_pool:
        first.release()
    assert waiting._stage is Stage.WAITING


@pytest.mark.parametrize("timers_are_late", [False, True])
def test_the_pool_serves_for_two_windows_after_the_last_answer(timers_are_late: bool) -> None:
    """A node that is cut off gets no notification of a pause, or of others that wait."""
    node = LoneNode()
    (permit,) = node.hold()
    permit.release()
    end = node.clock.now + 2 * WINDOW_S
    while node.clock.now < end:
        permit = node.ask()
        assert permit._stage is Stage.HELD
        assert permit._reuse_until <= min(end, node.clock.now + WINDOW_S)
        permit._begin()
        permit.release()
        node.pass_time(WINDOW_S / 4)
        if not timers_are_late:
            node.lease.on_window_end()
        node.update()  # without an answer
    assert node.ask()._stage is Stage.WAITING


@pytest.mark.parametrize("reply", [{"available": FULL}, {"available": -1}, {"starts_count": True}])
def test_of_a_full_site_what_nobody_here_uses_is_returned_at_once(reply: dict[str, Any]) -> None:
    node = LoneNode()
    first, second = node.hold(2)
    first.release()
    update = node.update()
    node.at_once.clear()
    node.apply(update, granted=2, **reply)
    assert node.at_once == [True], "it was spare"
    assert node.update().returned == 1
    second.release()
    assert node.at_once[1:] == [("available" in reply)]
    assert node.update().returned == 2


def test_a_surplus_of_a_full_site_is_returned_at_once() -> None:
    node = LoneNode()
    given_up = node.ask()
    update = node.exchange(granted=0, available=FULL)
    given_up.release()
    node.at_once.clear()
    node.lease.on_granted(update.lease_id, 1)
    assert (node.at_once, node.update().returned) == ([True], 1)


@pytest.mark.parametrize("late_by_a_lease", [False, True])
def test_what_is_spare_is_returned_when_a_request_must_wait(late_by_a_lease: bool) -> None:
    """Otherwise a later request would get it first, once permits may be reused again."""
    node = LoneNode(window=4 * LEASE_S if late_by_a_lease else WINDOW_S)
    (permit,) = node.hold()
    permit.release()
    update = node.update()
    node.clock.now = node.lease.deadline if late_by_a_lease else START_S + 2 * WINDOW_S
    waiting = node.ask()
    node.lease.repeated = update.lease_id, node.now() + GRACE_S  # by the renewal thread
    update = node.exchange(granted=1)
    assert (update.requested, update.returned) == (2, 1)
    later = node.ask()
    assert stages(waiting, later) == ["waiting", "waiting"]
    node.exchange(granted=2)
    assert stages(waiting, later) == ["held", "waiting"]


def test_a_start_counts_when_its_request_begins() -> None:
    node = LoneNode(Limit(9, delay=1.0))
    permit, never, lost = (node.ask() for _ in range(3))
    update = node.exchange(granted=3, starts_count=True, interval=1.0)
    assert update.unstarted == 0
    update = node.update()
    assert (update.unstarted, update.started) == (3, 0)
    permit._begin()
    permit._begin()
    assert node.reports == [0.5], "the next start is a delay after this one"
    node.clock.now += 0.25
    assert node.update().start_age == 0.25
    never.release()
    never._begin()
    update = node.update()
    assert (update.unstarted, update.started, update.returned) == (1, 1, 1)
    node.lease.lose_all("was lost")
    lost._begin()
    lost.release()
    permit.release()
    node.ask()
    assert (node.update().unstarted, node.update().started) == (0, 0)


@pytest.mark.parametrize(("interval", "within"), [(0.4, 0.0), (0.5, 0.25), (60.0, 30.0)])
def test_a_start_is_reported_once_it_is_known_that_starts_are_spaced(
    interval: float, within: float
) -> None:
    node = LoneNode()
    permit = node.ask()
    update = node.update()
    node.lease.on_granted(update.lease_id, 1)
    permit._begin()
    assert node.reports == []
    node.apply(update, granted=1, interval=interval)
    assert node.reports == [within]
    node.exchange(granted=1, interval=interval)
    assert node.reports == [within], "it is reported"


def test_the_deadline_counts_from_the_first_update_then_from_the_latest_answered() -> None:
    node = LoneNode()
    permit = node.ask()
    assert node.lease.deadline == math.inf, "nothing was said yet"
    sent: list[float] = []
    updates = []
    for _ in range(3):
        node.pass_time(10.0)
        sent.append(node.clock.now)
        updates.append(node.update())
        assert node.lease.deadline == sent[0] + GRACE_S, "while none is answered"
    for late in (1, 0):
        node.apply(updates[late], granted=0, sent=sent[late])
        assert node.lease.deadline == sent[1] + GRACE_S
    node.lease.on_granted(updates[0].lease_id, 1)
    assert permit._lease.deadline == sent[1] + GRACE_S, "a grant does not lengthen it"


@pytest.mark.parametrize("comes", ["reply", "grant", "call"])
def test_what_is_over_ends_before_anything_is_heard_or_said(comes: str) -> None:
    """A node that was stopped wakes: its messages may be handled before its timers."""
    node = LoneNode()
    (held,) = node.hold()
    waiting = node.ask()
    node.pass_time(GRACE_S / 2)
    sent, old = node.clock.now, node.update()
    node.clock.now = node.lease.deadline
    with pytest.raises(PermitLostError, match="before its work began"):
        held._check()
    if comes == "reply":
        node.apply(old, granted=2, sent=sent)
    elif comes == "grant":
        node.lease.on_granted(old.lease_id, 2)
    else:
        assert list(node.updates()) == []
    assert held.lost
    assert waiting._stage is Stage.WAITING
    node.at_once.clear()
    held.release()
    assert node.at_once == [True]
    new = node.update()
    assert new.lease_id > old.lease_id
    assert (new.requested, new.returned, new.granted_ack) == (1, 0, 0)


def test_what_is_claimed_in_a_new_epoch_keeps_its_deadline_until_the_claim_is_answered() -> None:
    node = LoneNode()
    node.hold(3)
    deadline = node.lease.deadline
    node.pass_time(30.0)
    node.lease.on_new_epoch()
    sent, new = node.clock.now, node.update()
    assert (new.requested, new.returned, new.granted_ack, new.seq) == (3, 0, 3, 1)
    assert node.lease.deadline == deadline
    node.pass_time(1.0)
    node.apply(new, sent=sent)
    assert node.lease.deadline == sent + GRACE_S


@pytest.mark.parametrize("status", ["lost", "refused"])
def test_after_a_refused_update_the_node_pauses(status: str) -> None:
    """Otherwise it would repeat this as fast as it can."""
    node = LoneNode()
    node.ask()
    node.at_once.clear()
    node.exchange(granted=0, status=status, lease_id=7_000)
    is_refused = status == "refused"
    assert node.at_once == ([] if is_refused else [True])
    assert node.retries == ([RETRY_UNREAD_S] if is_refused else [])
    assert node.count(observer.UpdateRefused) == is_refused
    assert node.update().lease_id > 7_000, "above the lease_id that the server knows"


@pytest.mark.parametrize("kind", ["refused", "exhausted quota"])
def test_feedback_goes_with_the_return_of_its_permit_and_a_refusal_stops_reuse(kind: str) -> None:
    node = LoneNode()
    first, second, spare = node.hold(3)
    spare.release()
    late = node.permit()
    node.pass_time(2.0)
    report = first.refused if kind == "refused" else partial(first.answered, 0.1)
    report(retry_after=30.0)
    first.release()
    assert node.at_once[-1] is True
    update = node.update()
    assert update.returned == 2, "a permit with feedback is not reused, nor anything after it"
    assert update.feedback is not None
    seen = update.feedback.refused, update.feedback.good, update.feedback.retry_after
    assert seen == ((1, 0, 30.0) if kind == "refused" else (0, 1, 30.0))
    assert max(update.feedback.bad_age, update.feedback.good_age) == 2.0
    node.lease.acquire(late)
    second.release()
    assert late._stage is Stage.WAITING
    node.clock.now = node.lease.deadline
    assert [one.feedback for one in node.updates()] == [None], "in a new lease nobody knows of it"


@pytest.mark.parametrize("latency", [0.1, None])
@pytest.mark.parametrize("wanted", [False, True])
def test_plain_responses_where_wanted(wanted: bool, latency: float | None) -> None:
    node = LoneNode()
    (permit,) = node.hold(available=FULL, wants_feedback=wanted)
    permit.answered(latency)
    permit.release()
    feedback = node.update().feedback
    assert (feedback is not None) == wanted
    if feedback is not None:
        assert (feedback.good, feedback.errors) == ((0, 1) if latency is None else (1, 0))


def test_feedback_that_was_not_answered_is_said_again_word_for_word_before_the_next() -> None:
    node = LoneNode()
    first, second, _ = node.hold(3)
    first.failed()
    first.release()
    (failed,) = node.updates()
    second.refused()
    second.release()
    again, refused = node.updates()
    assert (again, refused.seq) == (failed, failed.seq + 1)
    assert failed.feedback is not None
    assert refused.feedback is not None
    assert (failed.feedback.failed, failed.feedback.refused) == (1, 0)
    assert (refused.feedback.failed, refused.feedback.refused) == (0, 1)
    node.apply(failed, granted=3)
    again, plain = node.updates()
    assert (again, plain.feedback) == (refused, None)
    node.apply(plain, granted=3)
    assert refused in node.updates(), "a reply answers its own update alone"
    node.apply(refused, granted=3)
    assert [update.feedback for update in node.updates()] == [None]


def test_a_backoff_withdraws_grants_and_is_an_event(caplog: Log) -> None:
    caplog.set_level("INFO")
    node = LoneNode()
    held, refused = node.hold(2)
    waiting = node.ask()
    refused.refused()
    refused.release()
    assert (held.must_not_start, waiting.must_not_start) == (True, False), (
        "before the server tells of it"
    )
    node.exchange(granted=2, backoff=4.0)
    assert observer.BackoffStarted("s", 4.0) in node.events
    assert "s refused a request: all nodes pause there for 4 s." in caplog.messages
    node.exchange(granted=3)
    assert (waiting.held, waiting.must_not_start) == (True, False)
    node.lease.on_pause(0, 0.0)
    assert waiting.must_not_start, "all nodes are told"


def test_a_pause_is_reported_when_it_begins_when_it_grows_and_by_whom_it_was_caused() -> None:
    node = LoneNode()
    node.hold()
    (refused,) = node.hold()
    node.exchange(paused_at=7, pause_length=100.0)
    node.exchange(paused_at=7, pause_length=100.0)
    node.exchange(paused_at=7, pause_length=200.0)
    begun = [event for event in node.events if isinstance(event, observer.PauseBegun)]
    assert begun == [observer.PauseBegun("s", 7, length) for length in (100.0, 200.0)]
    assert node.count(observer.PauseCaused) == 0, "another node caused it"
    refused.refused(retry_after=0.3)
    refused.release()
    node.exchange(granted=2, paused_at=7, pause_length=300.0)
    assert observer.PauseCaused("s", 7, 300.0, 0.3, True) in node.events


def test_of_all_nodes_requests_the_youngest_that_was_answered_well_is_known() -> None:
    node = LoneNode()
    (held,) = node.hold()
    assert held.site_answered_at == -math.inf
    for ago in (5.0, 8.0):
        node.exchange(answered_ago=ago)
        assert held.site_answered_at == node.clock.now - 5.0, "another node's"
    node.pass_time(2.0)
    (own,) = node.hold()
    node.pass_time(3.0)
    own.answered(0.1)
    own.release()
    assert held.site_answered_at == own.granted_at


def test_a_request_that_gets_no_permit_at_once_is_reported_to_wait() -> None:
    node = LoneNode()
    first, second = node.ask(), node.ask()
    update = node.update()
    late = node.ask()
    node.pass_time(5.0)
    assert node.update().wait_age == 5.0
    for retry_in in (None, 2.0):
        node.apply(update, granted=1, retry_in=retry_in)
        assert [one.waited for one in (first, second, late)] == [False, True, False]
    assert node.count(observer.PermitWaiting) == 1, "once"
    assert node.retries == [2.0]
    node.lease.on_granted(update.lease_id, 2)
    assert second.wait == 5.0
    node.lease.on_new_epoch()
    node.exchange(granted=2)
    assert late.waited, "the first reply under a new lease says so"
    late.release()
    node.exchange(granted=2, retry_in=2.0)
    assert node.retries == [2.0], "nobody waits"


def test_a_node_in_the_queue_sends_at_the_window_s_end_how_many_more_wait() -> None:
    """Its order there does not depend on how many they are."""
    node = LoneNode()
    node.ask()
    node.exchange(granted=0, available=-1)
    node.at_once.clear()
    more = [node.ask() for _ in range(3)]
    assert node.at_once == []
    assert all(permit.waited for permit in more)
    for _ in range(2):
        node.lease.on_window_end()
        node.exchange(granted=0, available=-1)
        assert node.at_once == [True], "once"
    more[0].release()
    assert node.at_once == [True]
    node.lease.on_window_end()
    assert node.at_once == [True, True]
    assert node.update().requested == 3


@pytest.mark.parametrize("reason", ["given up", "reused"])
def test_a_node_that_no_longer_waits_leaves_the_queue(reason: str) -> None:
    """Otherwise the server would grant a permit to a node that has no use for it."""
    node = LoneNode()
    (held,) = node.hold(available=FULL)
    waiting = node.ask()
    node.exchange(granted=1, available=-1)
    node.at_once.clear()
    (waiting if reason == "given up" else held).release()
    assert (node.at_once, node.update().requested) == ([reason == "given up"], 1)
