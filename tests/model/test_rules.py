"""Changes of rules: which parts they set, and which they leave."""

from __future__ import annotations

from typing import Any

import pytest

from semaphore_middleware import Limit, Rule
from semaphore_middleware.model.limits import LIMITLESS
from semaphore_middleware.model.rules import PARTS, RuleChange

HOST = "www.example.org"


def parts_set(limit: Any) -> dict[str, Any]:
    """What a change of the limit sets, besides who made it."""
    parts = dict(RuleChange.configure(HOST, limit, "me").set)
    assert parts.pop("by") == "me"
    return parts


@pytest.mark.parametrize(
    ("limit", "parts"),
    [
        (3, {"concurrency": 3}),
        (None, {"concurrency": LIMITLESS}),
        ({"delay": 1}, {"delay": 1}),
        ({"rate": "60/m"}, {"rate": "60/m"}),
        ({"rate": "60/m", "burst": 5}, {"rate": "60/m", "burst": 5}),
        ({"burst": 5}, {"burst": 5}),
        ({"rate": None}, {"rate": "none"}),  # lifts the rate that the nodes ask for
        ({"concurrency": None, "rate": "60/m"}, {"concurrency": LIMITLESS, "rate": "60/m"}),
    ],
)
def test_a_change_sets_the_parts_it_names(limit: Any, parts: dict[str, Any]) -> None:
    assert parts_set(limit) == parts


def test_a_change_is_made_for_a_host_as_it_was_written_and_as_urls_have_it() -> None:
    assert RuleChange.configure("127.1", 2, "me").names == ("127.1", "127.0.0.1")


def test_a_whole_limit_sets_every_part() -> None:
    whole = {"concurrency": 2, "delay": 1, "jitter": 0, "adaptive": False}
    assert parts_set(Limit(2, delay=1)) == {**whole, "rate": "none", "burst": 1}
    assert parts_set(Limit(2, rate="10/m", burst=3))["rate"] == "10/m"


def test_reset_unsets_every_part() -> None:
    change = RuleChange.reset(HOST)
    assert set(change.unset) == set(PARTS) == {*Rule.__slots__} - {"name"}


def test_a_rule_that_only_pauses_sets_no_limit() -> None:
    assert not Rule(HOST, "me", paused=True).sets_limit
    for rule in (
        Rule(HOST, "me", concurrency=1),
        Rule(HOST, "me", rate="none"),
        Rule(HOST, "me", burst=2, paused=True),
    ):
        assert rule.sets_limit
