"""The benchmarks that crawl: that they count as they say, and run to their end."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import overhead
from benchmarks.in_hand import all_at_work, in_hand, mean, most
from benchmarks.site import Visit

REPOSITORY = Path(__file__).parents[1]
VISITS = [Visit("a.test", "one", 0, 4), Visit("a.test", "two", 1, 3), Visit("a.test", "one", 3, 5)]


def test_who_comes_as_another_leaves_is_not_counted_beside_it() -> None:
    assert [*in_hand(VISITS)] == [(0, 1), (1, 2), (3, 1), (3, 2), (4, 1), (5, 0)]
    assert most(VISITS) == 2


def test_the_mean_in_hand_is_that_of_the_time_asked_for() -> None:
    assert mean(VISITS, 0, 5) == 8 / 5
    assert mean(VISITS, 2, 4) == 2
    assert mean(VISITS, 4.5, 6) == 0.5 / 1.5


def test_all_are_at_work_from_the_last_s_first_visit_to_the_first_s_last() -> None:
    assert all_at_work([*VISITS, Visit("a.test", "two", 4, 5)]) == (1, 3)


def test_overhead_measures_each_crawl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)  # where the processes find the benchmarks
    report = overhead.measure(quick=True)
    crawls = [overhead.PLAIN, overhead.FROZEN, overhead.ADD_ON, overhead.BY_HAND]
    assert [row[0] for row in report.rows] == crawls
    assert all(len(row) == len(report.columns) for row in report.rows)
    assert len(report.goals) == 2
