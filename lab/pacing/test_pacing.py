"""The report is of the law as it is, and what must hold at every site holds."""

import pytest

from lab.pacing.__main__ import REPORT, SCENARIOS, written
from lab.pacing.crawl import Crawl, Scenario, refuses_by_chance, refuses_pages

MOST_S = 2.0
QUICK = [scenario for scenario in SCENARIOS if scenario.pages or "answers each" in scenario.name]


@pytest.mark.parametrize("scenario", QUICK, ids=lambda scenario: scenario.name)
def test_the_report_is_of_today(scenario: Scenario) -> None:
    assert written(scenario) in REPORT.read_text("utf-8"), "run `make pacing`"


@pytest.mark.parametrize("share", [0.15, 0.3, 0.4])
def test_a_site_that_refuses_by_chance_is_not_slowed_down(share: float) -> None:
    site = Scenario("", lambda: refuses_by_chance((0.0, share), seed=2), length=150.0)
    crawl = Crawl(site, seed=2)
    crawl.run()
    assert max(span.interval for span in crawl.spans) <= MOST_S
    assert crawl.spans[-1].is_off


def test_pages_that_are_always_refused_hold_up_no_others() -> None:
    crawl = Crawl(Scenario("", lambda: refuses_pages(0.3), limit=4, pages=300))
    crawl.run()
    assert crawl.ended_at is not None
