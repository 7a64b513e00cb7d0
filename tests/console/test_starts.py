"""Permits granted a second, as the surveys of the server tell."""

from __future__ import annotations

from semaphore_middleware.console.rates import WINDOW, RateMeter
from semaphore_middleware.console.snapshot import Snapshot
from semaphore_middleware.model.inspection import Inspection


def seen(**grants: int) -> list[Inspection]:
    return [Inspection(scope, 4, (), (), 4, grants=count) for scope, count in grants.items()]


def test_the_rate_is_the_grants_since_the_survey_before() -> None:
    meter = RateMeter()
    first = meter.note(seen(s=100, idle=7), 10.0)
    assert first is None
    snapshot = Snapshot.of(seen(s=100), [], first)
    assert (snapshot.scopes[0].rate, snapshot.totals.rate) == (None, None)
    # The first went on, the second was idle meanwhile and began anew, the third is new.
    now = seen(s=130, idle=3, new=5)
    rates = meter.note(now, 12.0)
    assert rates == {"s": 15.0, "idle": 1.5, "new": 2.5}
    assert Snapshot.of(now, [], rates).totals.rate == 19.0


def test_the_rate_is_what_was_granted_lately() -> None:
    meter = RateMeter()
    for look, grants in enumerate([7, 9, 11]):
        rates = meter.note(seen(a=grants), look / 2)
    assert rates == {"a": 4.0}
    for look in range(WINDOW):
        rates = meter.note(seen(a=11), 2.0 + look)
    assert rates == {"a": 0.0}


def test_a_count_that_began_anew_is_not_a_rate_below_zero() -> None:
    meter = RateMeter()
    meter.note(seen(a=100), 0.0)
    assert meter.note(seen(a=3), 1.0) == {"a": 3.0}


def test_a_site_that_is_new_has_had_its_grants_since_the_last_survey() -> None:
    meter = RateMeter()
    meter.note(seen(old=50), 0.0)
    assert meter.note(seen(old=50, new=6), 2.0) == {"old": 0.0, "new": 3.0}


def test_the_total_counts_what_was_granted_of_scopes_that_are_gone() -> None:
    meter = RateMeter()
    meter.note(seen(), 0.0)
    meter.note(seen(short=4), 1.0)
    rates = meter.note(seen(), 2.0)
    assert rates == {"short": 2.0}
    assert Snapshot.of([], [], rates).totals.rate == 2.0
