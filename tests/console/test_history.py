"""The figures of a scope's last hour, for the page."""

from __future__ import annotations

import pytest

from semaphore_middleware.console import poller
from semaphore_middleware.console import server as web
from semaphore_middleware.console.poller import LAST_HOUR_MINUTES, LastHour
from semaphore_middleware.model.inspection import Inspection, Member
from semaphore_middleware.model.limits import Limit
from tests.console.pages import serving, survey_at_each_visit
from tests.support.nodes import Caller, calls_of, eventually
from tests.support.servers import RedisServer


def row(scope: str, wait: float = 0.0, left: float = 0.0, last: float = 0.0) -> Inspection:
    member = Member("n", 1, int(wait > 0), 1.0, wait, 9.0, Limit(4))
    return Inspection(scope, 4, (member,), backoff_left=left, backoff_last=last)


def test_a_minute_has_its_starts_a_second_its_longest_wait_and_its_longest_backoff() -> None:
    history = LastHour()
    assert set(map(tuple, history.figures_of("x").values())) == {()}
    history.add_survey([row("a")], 0.0, {}, now=60.0)
    history.add_survey([row("a", wait=3.0, left=8.0)], 10.0, {"a": 30}, now=125.0)
    history.add_survey([row("a", wait=2.0, last=9.0)], 10.0, {"a": 10}, now=179.0)
    history.add_survey([row("b"), row("a")], 30.0, {"b": 6}, now=241.0)
    assert history.figures_of("a") == {
        "starts_per_second": [None, 2.0, None, 0.0],
        "longest_wait": [0.0, 3.0, None, 0.0],
        "backoff": [0.0, 9.0, None, 0.0],
    }
    assert history.figures_of("b")["starts_per_second"][-1] == 0.2


def test_an_hour_is_kept_of_no_more_than_so_many_scopes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "LAST_HOUR_SCOPES_MAX", 2)
    history = LastHour()
    rows = [row(name, wait=1.0) for name in "abc"]
    for minute in range(100):
        history.add_survey(rows, 60.0, {}, now=60.0 * minute)
    told = [history.figures_of(name)["longest_wait"] for name in "abc"]
    assert told == [[1.0] * LAST_HOUR_MINUTES, [1.0] * LAST_HOUR_MINUTES, [0.0] * LAST_HOUR_MINUTES]
    history.add_survey(rows, 60.0, {}, now=60.0 * 130)
    assert history.figures_of("a")["longest_wait"] == [1.0] * 29 + [None] * 30 + [1.0]


async def test_the_history_goes_on_while_no_browser_is_open(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    survey_at_each_visit(monkeypatch)
    monkeypatch.setattr(web, "UNSEEN_INTERVAL_S", 0.01)
    notes = calls_of(monkeypatch, LastHour, "add_survey")
    async with serving(server) as page:
        caller = await Caller.join(server, "n")
        await caller.take("www.example.org", 2, limit=1)
        await eventually(lambda: any(one.waiting for _, rows, *_ in notes for one in rows))
        told = (await page.state(open="www.example.org"))["opened"]["history"]
        assert max(value for value in told["longest_wait"] if value) > 0
