"""Starts a second, measured between surveys."""

from __future__ import annotations

from semaphore_middleware.console.poller import WINDOW, StartsMeter
from semaphore_middleware.model.inspection import Inspection
from semaphore_middleware.operators.snapshot import Snapshot


def counted(**started: int) -> list[Inspection]:
    return [Inspection(scope, 4, (), 4, started=count) for scope, count in started.items()]


def test_starts_a_second_are_those_since_the_survey_before() -> None:
    meter = StartsMeter()
    first = meter.measure_starts(counted(s=100, idle=7), 10.0)
    assert first is None
    snapshot = Snapshot.of(counted(s=100), [], first)
    assert snapshot.starts_of("s") is snapshot.totals.starts_per_second is None
    # The first went on, the second was idle meanwhile and began anew, the third is new.
    now = counted(s=130, idle=3, new=5)
    starts = meter.measure_starts(now, 12.0)
    assert starts == {"s": 15.0, "idle": 1.5, "new": 2.5}
    assert Snapshot.of(now, [], starts).totals.starts_per_second == 19.0


def test_they_are_those_of_late() -> None:
    meter = StartsMeter()
    for look, started in enumerate([7, 9, 11]):
        starts = meter.measure_starts(counted(a=started), look / 2)
    assert starts == {"a": 4.0}
    for look in range(WINDOW):
        starts = meter.measure_starts(counted(a=11), 2.0 + look)
    assert starts == {"a": 0.0}


def test_the_total_counts_the_starts_of_scopes_that_are_gone() -> None:
    meter = StartsMeter()
    meter.measure_starts([], 0.0)
    meter.measure_starts(counted(short=4), 1.0)
    starts = meter.measure_starts([], 2.0)
    assert starts == {"short": 2.0}
    assert Snapshot.of([], [], starts).totals.starts_per_second == 2.0
