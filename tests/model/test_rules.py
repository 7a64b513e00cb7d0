"""Changes of rules: which parts they set, and which they leave."""

from typing import Any

import pytest

from semaphore_middleware import Limit
from semaphore_middleware.model.limits import BY_NAME, LIMITLESS
from semaphore_middleware.model.rules import RULE_PARTS, RuleChange

HOST = "www.example.org"


def parts_set(limit: Any) -> dict[str, Any]:
    """What a change of the limit sets."""
    return dict(RuleChange.configure(HOST, limit, "me").set)


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


def test_whole_changes_and_rules() -> None:
    whole = {"concurrency": 2, "delay": 1, "jitter": 0, "adaptive": False}
    assert parts_set(Limit(2, delay=1)) == {**whole, "rate": "none", "burst": 1}
    assert parts_set(Limit(2, rate="10/m", burst=3))["rate"] == "10/m"
    assert set(RuleChange.reset(HOST, "me").unset) == set(RULE_PARTS) == {"paused", *BY_NAME}
    assert RuleChange.configure("127.1", 2, "me").names == ("127.0.0.1",), "as URLs have it"
    assert RuleChange.configure("API-A", 2, "me").names == ("API-A",)
