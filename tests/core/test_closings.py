"""A site that closes connections without a response does not respond, or refuses requests so."""

import pytest

from semaphore_middleware.core.closings import AMONG, Closing, Closings
from semaphore_middleware.core.observer import NodePaused
from semaphore_middleware.model.feedback import Feedback
from tests.core.lone_node import LoneNode

REFUSAL, FAILURE, SAME_MOMENT, NOTHING = Closing
LETTERS = {REFUSAL: "R", FAILURE: "F", NOTHING: "-"}


class World:
    """A site's closings and answers, one after another, each of a request that took a second."""

    def __init__(self) -> None:
        self.closings = Closings()
        self.now = 0.0

    def closed(
        self, page: str, began_at: float | None = None, may_be_idle: bool = False
    ) -> Closing:
        began_at = self.now if began_at is None else began_at
        self.now += 1.0
        return self.closings.note(page, began_at, self.now, may_be_idle)

    def answered(self, began_at: float | None = None) -> None:
        self.closings.note_answer(self.now if began_at is None else began_at)
        self.now += 1.0

    def sees(self, events: str) -> str:
        """The verdicts of what happens: a page's letter is its closing, a dot an answer."""
        verdicts = ""
        for event in events:
            if event == ".":
                self.answered()
            else:
                verdicts += LETTERS[self.closed(event)]
        return verdicts


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    ("events", "verdicts"),
    [
        ("a.b.c.d", "FFRR"),
        ("ab.cd", "FFRR"),
        (".abcdef", "FFFFFF"),
        ("a.b.c.defghijklmn", "FFRRRRRRRRRRFF"),
        ("aa.a.a.a.a.a", "FF-----"),  # at first it may be the site
        (f"ab{'.' * (AMONG + 1)}c", "FFF"),
    ],
    ids=[
        *("several pages", "one answer between", "no answer", "no answer any more", "one page"),
        "long ago",
    ],
)
def test_several_pages_with_answers_in_between_are_refusals(
    world: World, events: str, verdicts: str
) -> None:
    assert world.sees(events) == verdicts


def test_an_answer_to_a_request_from_before_says_nothing(world: World) -> None:
    began_at = world.now
    assert [world.closed(page) for page in "ab"] == [FAILURE] * 2
    world.answered(began_at - 1.0)
    assert world.closed("c") is FAILURE


def test_only_an_answer_to_a_later_request_ends_the_wait_for_one(world: World) -> None:
    began_at = world.now
    world.closed("a")
    world.answered(began_at)
    assert world.closings.unanswered == 1
    world.answered()
    assert world.closings.unanswered == 0


def test_closings_of_a_moment_count_once(world: World) -> None:
    assert world.closed("a", began_at=0.0) is FAILURE
    assert [world.closed(page, began_at=0.5) for page in "bcd"] == [SAME_MOMENT] * 3
    world.answered()
    assert world.closed("e") is FAILURE, "the second of them"
    assert world.closed("f") is REFUSAL
    assert world.closed("g", began_at=0.5) is REFUSAL, "each request of a refusal is one"


def test_a_connection_that_may_have_been_idle_counts_after_another(world: World) -> None:
    for page in "abcdef":
        world.answered()
        assert world.closed(page, may_be_idle=True) is NOTHING
    assert world.closed("g", may_be_idle=True) is FAILURE


def close(node: LoneNode, page: str) -> Feedback | None:
    (permit,) = node.hold()
    node.pass_time(1.0)
    permit.closed(page, what="closed it")
    permit.release()
    return permit._outcome


def test_requests_closed_at_the_same_moment_are_repeated_but_for_the_first() -> None:
    node = LoneNode()
    permits = node.hold(3)
    node.pass_time(1.0)
    assert [permit.closed(page) for permit, page in zip(permits, "abc", strict=True)] == [
        *(False, True, True)
    ]
    assert [permit._outcome for permit in permits[1:]] == [None, None]


def answer(node: LoneNode) -> None:
    (permit,) = node.hold()
    permit.answered(0.1)
    permit.release()


def test_a_permit_reports_a_failure_then_a_refusal() -> None:
    node = LoneNode()
    answer(node)
    for page in "ab":
        assert close(node, page) == Feedback(failed=True, what="closed it")
        answer(node)
    assert close(node, "c") == Feedback(refused=True, what="closed it")
    reported = node.update().feedback
    assert reported is not None
    assert (reported.refused, reported.metered, reported.cause) == (1, 1, "closed it")
    answer(node)
    close(node, "c")


def test_after_a_closing_a_node_makes_one_request_at_a_time_until_an_answer() -> None:
    node = LoneNode()
    answer(node)
    close(node, "a")
    node.exchange()
    first, _ = node.ask(), node.ask()
    for _ in range(2):
        asks = node.exchange()
        assert (asks.requested - asks.returned, asks.suspended) == (1, 1)
    first._begin()
    first.answered(None)
    first.release()
    asks = node.update()
    assert (asks.requested - asks.returned, asks.suspended) == (1, 0)


def test_a_node_pauses_before_the_retries_of_a_page_are_used_up() -> None:
    """At the second closing in a row; at the first, if it has had no answer yet."""
    node, other = LoneNode(), LoneNode()
    answer(other)
    for each, pauses in ((node, 1), (other, 0), (other, 1)):
        close(each, "a")
        each.exchange()
        assert each.count(NodePaused) == pauses


def test_after_a_closing_requests_from_before_do_not_count_as_the_one() -> None:
    """They may be open for long."""
    node = LoneNode()
    answer(node)
    node.hold()
    close(node, "a")
    node.exchange()
    for _ in range(2):
        node.ask()
    asks = node.exchange()
    assert (asks.requested - asks.returned - 1, asks.suspended) == (1, 1)


def test_after_a_pause_they_count_as_the_one() -> None:
    node = LoneNode()
    answer(node)
    (before,) = node.hold()
    for page in "aa":
        close(node, page)
        node.exchange()
    node.pass_time(node.backoff.start)
    node.ask()
    asks = node.exchange()
    assert (asks.requested - asks.returned, asks.suspended) == (1, 1)
    before.answered(0.1)
    before.release()
    assert node.exchange().suspended == 0


def test_a_lease_is_kept_while_a_closing_is_remembered() -> None:
    node = LoneNode(window=0.0)
    answer(node)
    close(node, "a")
    answer(node)
    node.exchange()
    assert node.lease.is_empty
    assert not node.lease.is_forgettable
    node.pass_time(node.backoff.most)
    assert node.lease.is_forgettable
