"""A node whose requests get no response, at a site that answers other nodes, pauses there alone."""

import pytest

from semaphore_middleware.core.failures import IN_A_ROW
from semaphore_middleware.core.observer import NodePaused
from semaphore_middleware.core.protocol import LeaseUpdate
from semaphore_middleware.model.feedback import Backoff
from tests.core.lone_node import LoneNode

START_S, MOST_S = Backoff().start, Backoff().most
Log = pytest.LogCaptureFixture


def fail(node: LoneNode, count: int) -> LeaseUpdate:
    """Requests that get permits and no response. Returns the update that reports it, not yet
    answered.
    """
    for permit in node.hold(count):
        permit.failed()
        permit.release()
    return node.update()


def pauses(node: LoneNode) -> list[float]:
    return [event.seconds for event in node.events if isinstance(event, NodePaused)]


def test_after_three_failures_in_a_row_it_asks_for_nothing_until_its_pause_is_over(
    caplog: Log,
) -> None:
    node = LoneNode()
    update = fail(node, IN_A_ROW)
    first, _ = node.ask(), node.ask()
    asks = node.update()
    assert (asks.requested - asks.returned, asks.suspended) == (0, 2), (
        "until it knows whose fault it is"
    )
    node.apply(update)
    assert (pauses(node), node.retries[-1]) == ([START_S], START_S)
    assert "s does not respond to the node n: 3 requests in a row failed here" in caplog.text
    node.pass_time(START_S)
    asks = node.exchange()
    assert (asks.requested - asks.returned, asks.suspended) == (1, 1), "one at a time"
    assert first.held
    first.answered(0.1)
    first.release()
    asks = node.exchange()
    assert (asks.requested - asks.returned, asks.suspended) == (1, 0), "it has an answer"


def test_each_pause_is_twice_as_long_as_the_last() -> None:
    node = LoneNode()
    node.apply(fail(node, IN_A_ROW))
    for _ in range(10):
        node.pass_time(MOST_S)
        node.apply(fail(node, 1))
    assert pauses(node) == [min(MOST_S, START_S * 2**n) for n in range(11)]


def test_failures_of_requests_from_before_a_pause_belong_to_it() -> None:
    node = LoneNode()
    before = node.hold(2)
    node.apply(fail(node, IN_A_ROW))
    for permit in before:
        permit.failed()
        permit.release()
        node.exchange()
    assert pauses(node) == [START_S]


def test_it_asks_again_if_the_reply_whether_others_fail_is_lost() -> None:
    node = LoneNode()
    fail(node, IN_A_ROW)
    node.ask()
    node.lease.on_new_epoch()
    asks = node.update()
    assert (asks.requested, asks.suspended) == (1, 0)


def test_failures_are_remembered_though_nothing_is_held_or_waits() -> None:
    node = LoneNode()
    node.apply(fail(node, 1))
    assert node.lease.is_empty
    assert not node.lease.is_forgettable
    node.pass_time(MOST_S)
    assert node.lease.is_forgettable
    node.apply(fail(node, 1))
    node.lease.close()
    assert node.lease.is_forgettable


def test_a_request_that_gives_up_while_its_node_pauses_is_reported() -> None:
    node = LoneNode()
    update = fail(node, IN_A_ROW)
    waits = node.ask()
    node.apply(update)
    assert node.exchange().suspended == 1
    node.at_once.clear()
    waits.release()
    assert node.at_once == [True]
    assert node.update().suspended == 0
