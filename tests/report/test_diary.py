"""A node's counts of its requests, before they are sent to the server."""

from __future__ import annotations

import math

from semaphore_middleware.report.diary import Batch, Diary, PauseNote

WALL_S = 6000.0  # a minute begins
WALL_MS = int(1000 * WALL_S)


class Clock:
    def __init__(self) -> None:
        self.now = WALL_S

    def __call__(self) -> float:
        return self.now


def notes(diary: Diary) -> dict[int, PauseNote]:
    """The notes of pauses in a minute."""
    (tally,) = first_minute(diary).tallies
    return tally.pauses


def first_minute(diary: Diary) -> Batch:
    """The batch of the first minute, after the one that announces the node."""
    diary.on_sent(diary.next_batch(is_closing=True))
    return diary.next_batch(is_closing=True)


def test_the_first_batch_only_announces_the_node() -> None:
    diary = Diary(Clock())
    diary.add_start("s")
    assert diary.next_batch(is_closing=True) == Batch(1, 100, [], is_last=False)
    assert [tally.requests for tally in first_minute(diary).tallies] == [1]


def test_a_start_that_crossed_the_news_of_a_pause_is_noted() -> None:
    diary = Diary(Clock())
    diary.add_start("s")
    diary.set_pause("s", WALL_MS + 250, 1000.0)  # it began after the start
    diary.set_pause("s", WALL_MS - 250, 1000.0)
    diary.set_pause("s", WALL_MS - 2000, 1000.0)  # it was over before the start
    assert notes(diary) == {WALL_MS - 250: PauseNote(1000.0, last=250.0)}


def test_a_start_in_a_pause_is_noted_also_if_the_pause_has_grown() -> None:
    clock = Clock()
    diary = Diary(clock)
    diary.set_pause("s", WALL_MS, 1000.0)
    clock.now += 2.0
    diary.add_start("s")
    diary.set_pause("s", WALL_MS, 5000.0)
    diary.add_cause("s", WALL_MS, 5000.0, asked=3000.0, refused=True)
    diary.add_cause("s", WALL_MS, 4000.0, asked=1000.0, refused=False)
    assert notes(diary) == {WALL_MS: PauseNote(5000.0, asked=3000.0, refused=1, last=2000.0)}


def test_a_first_try_in_a_pause_is_noted() -> None:
    clock = Clock()
    diary = Diary(clock)
    diary.set_pause("s", WALL_MS, 1000.0)  # of a site that does not respond
    clock.now += 0.5
    diary.add_start("s")  # rule 26: under a permit granted since
    assert notes(diary) == {WALL_MS: PauseNote(1000.0, last=500.0)}


def test_a_start_after_a_pause_is_not_noted() -> None:
    clock = Clock()
    diary = Diary(clock)
    diary.set_pause("s", WALL_MS, 1000.0)
    clock.now += 2.0
    diary.add_start("s")
    assert notes(diary) == {}


def test_a_minute_begins_with_the_permits_that_are_held_unless_the_scope_was_left() -> None:
    clock = Clock()
    diary = Diary(clock)
    for scope in "ab":
        diary.set_usage(scope, 3, 5, 1.0, 2.0)
    diary.forget("b")
    clock.now += 60.0
    for scope in "ab":
        diary.add_response(scope, 200, 1)
    diary.on_sent(first_minute(diary))
    tallies = diary.next_batch(is_closing=True).tallies
    assert [
        (tally.scope, tally.most, tally.limit, tally.least_interval, tally.interval)
        for tally in tallies
    ] == [("a", 3, 5, 1.0, 2.0), ("b", 0, 0, math.inf, math.inf)]


def test_a_minute_has_the_loosest_limit_that_was_effective_in_it() -> None:
    clock = Clock()
    diary = Diary(clock)
    diary.set_usage("s", 0, 3, 2.0, 2.0)  # a wait alone is no part of the history
    clock.now += 60.0
    diary.add_start("s")
    diary.set_usage("s", 4, 4, 0.0, 0.0)
    diary.set_usage("s", 0, 2, 3.0, 4.0)
    clock.now += 60.0
    diary.add_start("s")
    found = []
    while not diary.is_closed:
        batch = diary.next_batch(is_closing=True)
        found += [(tally.limit, tally.least_interval, tally.interval) for tally in batch.tallies]
        diary.on_sent(batch)
    assert found == [(4, 0.0, 0.0), (2, 3.0, 4.0)]
