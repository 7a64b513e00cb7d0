"""The benchmarks that crawl: that they count as they say, and run to their end."""

from __future__ import annotations

import pytest

from benchmarks.cases import adaptive, delay, overhead, refusal, scopes, use
from benchmarks.harness.in_hand import all_at_work, in_hand, mean, most
from benchmarks.harness.report import Report
from benchmarks.harness.site import Visit
from tests.support.paths import REPOSITORY

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


@pytest.mark.slow
def test_overhead_measures_each_crawl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)  # where the processes find the benchmarks
    report = overhead.measure(quick=True)
    crawls = [overhead.PLAIN, overhead.ADD_ON, overhead.BY_HAND]
    assert [row[0] for row in report.rows] == crawls
    assert all(len(row) == len(report.columns) for row in report.rows)
    assert len(report.goals) == 1


@pytest.mark.slow
def test_scopes_measures_one_two_and_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    found = figures(scopes.measure(quick=True))
    assert len(found) == len(scopes.CRAWLS)
    assert all(number > 0 for row in found for number in row)


def figures(report: Report) -> list[list[float]]:
    assert all(len(row) == len(report.columns) for row in report.rows)
    assert report.goals
    return [[float(str(cell)) for cell in row[1:]] for row in report.rows]


@pytest.mark.slow
def test_use_sees_what_share_of_the_limit_each_crawl_uses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(REPOSITORY)
    ((*shares, _, at_once),) = figures(use.measure(quick=True))
    assert len(shares) == 3
    assert all(0 < share <= 1 for share in shares)
    assert at_once == use.LIMIT


@pytest.mark.slow
def test_delay_sees_starts_that_are_spaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    ((starts, _, gap, _, rate),) = figures(delay.measure(quick=True))
    assert starts > 3
    assert gap > 50
    assert rate < 1.1


@pytest.mark.slow
def test_refusal_sees_nodes_fall_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    ((refused, nodes, starts, _, quiet),) = figures(refusal.measure(quick=True))
    assert 1 <= nodes <= refused <= starts + refusal.LIMIT
    assert quiet >= refusal.PAUSE


@pytest.mark.slow
def test_adaptive_sees_a_limit_that_passes_the_site_s_capacity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(REPOSITORY)
    heedless, adapting, known = figures(adaptive.measure(quick=True))
    assert heedless[3] > 0
    assert adapting[0] < adaptive.LIMIT
    assert known[3] == 0
