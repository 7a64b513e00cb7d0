"""Requests started a second, as the surveys of the server tell."""

from __future__ import annotations

from semaphore_middleware.console.snapshot import Snapshot
from semaphore_middleware.console.starts import WINDOW, StartsMeter
from semaphore_middleware.model.inspection import Inspection


def seen(**started: int) -> list[Inspection]:
    return [Inspection(scope, 4, (), 4, started=count) for scope, count in started.items()]


def test_starts_a_second_are_those_since_the_survey_before() -> None:
    meter = StartsMeter()
    first = meter.note(seen(s=100, idle=7), 10.0)
    assert first is None
    snapshot = Snapshot.of(seen(s=100), [], first)
    assert snapshot.scopes[0].starts_per_second is snapshot.totals.starts_per_second is None
    # The first went on, the second was idle meanwhile and began anew, the third is new.
    now = seen(s=130, idle=3, new=5)
    starts = meter.note(now, 12.0)
    assert starts == {"s": 15.0, "idle": 1.5, "new": 2.5}
    assert Snapshot.of(now, [], starts).totals.starts_per_second == 19.0


def test_starts_a_second_are_those_of_late() -> None:
    meter = StartsMeter()
    for look, started in enumerate([7, 9, 11]):
        starts = meter.note(seen(a=started), look / 2)
    assert starts == {"a": 4.0}
    for look in range(WINDOW):
        starts = meter.note(seen(a=11), 2.0 + look)
    assert starts == {"a": 0.0}


def test_a_count_that_began_anew_is_not_below_zero() -> None:
    meter = StartsMeter()
    meter.note(seen(a=100), 0.0)
    assert meter.note(seen(a=3), 1.0) == {"a": 3.0}


def test_a_site_that_is_new_has_had_its_starts_since_the_last_survey() -> None:
    meter = StartsMeter()
    meter.note(seen(old=50), 0.0)
    assert meter.note(seen(old=50, new=6), 2.0) == {"old": 0.0, "new": 3.0}


def test_the_total_counts_the_starts_of_scopes_that_are_gone() -> None:
    meter = StartsMeter()
    meter.note(seen(), 0.0)
    meter.note(seen(short=4), 1.0)
    starts = meter.note(seen(), 2.0)
    assert starts == {"short": 2.0}
    assert Snapshot.of([], [], starts).totals.starts_per_second == 2.0
