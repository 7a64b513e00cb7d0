"""What browsers are told: found, sorted and cut on the server, so that no scope is out of reach."""

from __future__ import annotations

import pytest

from semaphore_middleware import Inspection, Member, Rule, SettingsError
from semaphore_middleware.console.web.state import MEMBERS, SHOWN, Seen, View, scope_id, state


def member(number: int, age: float = 1.0, node: str = "n") -> Member:
    return Member(f"{node}:{number}", age, 9.0)


def scope(name: str, held: int = 0, waiting: int = 0, grants: int = 0) -> Inspection:
    holders = tuple(member(i) for i in range(held))
    waiters = tuple(member(100 + i, age=i + 0.5) for i in range(waiting))
    return Inspection(name, 4, holders, waiters, 4, grants=grants)


def names(seen: Seen, **view: str) -> list[str]:
    return [row["scope"] for row in state(seen, View.read(view))["scopes"]]


SEEN = Seen(0.0, [scope("b", 1, 2), scope("a", 3, 2), scope("C", 2, 0), scope("d", 0, 9)])


def test_a_row_has_all_that_there_is_to_see() -> None:
    one = Inspection(
        "www.example.org",
        3,
        (member(1), member(2, node="other")),
        (member(3, age=0.5), member(4, age=7.25)),
        limit_max=8,
        delay=0.5,
        next_start=0.25,
        backoff_left=2.0,
        backoff_last=30.0,
        paused=True,
        set_by="boss",
        grants=17,
    )
    rule = Rule("*.example.org", "boss", concurrency=8, delay=0.5, paused=True)
    opened = scope_id("www.example.org")
    row = {
        "id": opened,
        "scope": "www.example.org",
        "held": 2,
        "limit": 3,
        "most": 8,
        "waiting": 2,
        "longest": 7.25,
        "rate": 3.5,
        "delay": 0.5,
        "next": 0.25,
        "quiet": 2.0,
        "backoff": 30.0,
        "paused": True,
        "by": "boss",
    }
    before = Seen(8.0, [scope("www.example.org", grants=10)])
    assert state(Seen.after(before, 10.0, [one], [rule]), View(opened=opened)) == {
        "totals": {
            "scopes": 1,
            "nodes": 2,
            "held": 2,
            "waiting": 2,
            "longest": 7.25,
            "rate": 3.5,
        },
        "matching": 1,
        "scopes": [row],
        "opened": {
            **row,
            "holders": [
                {"node": "n", "age": 1.0, "left": 9.0},
                {"node": "other", "age": 1.0, "left": 9.0},
            ],
            "waiters": [
                {"node": "n", "age": 0.5, "left": 9.0},
                {"node": "n", "age": 7.25, "left": 9.0},
            ],
            "more_holders": 0,
            "more_waiters": 0,
        },
        "rules": [
            {
                "name": "*.example.org",
                "limit": 8,
                "delay": 0.5,
                "jitter": None,
                "adaptive": None,
                "paused": True,
                "by": "boss",
            }
        ],
        "more_rules": 0,
    }


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        ({}, ["d", "a", "b", "C"]),  # waiting, the longest line first; equals by name
        ({"sort": "waiting", "down": "0"}, ["C", "a", "b", "d"]),
        ({"sort": "held"}, ["a", "C", "b", "d"]),
        ({"sort": "longest"}, ["d", "a", "b", "C"]),
        ({"sort": "scope", "down": "0"}, ["C", "a", "b", "d"]),
        ({"match": "c"}, ["C"]),
        ({"match": " A "}, ["a"]),
        ({"match": "nothing"}, []),
    ],
)
def test_a_view_finds_and_sorts(view: dict[str, str], expected: list[str]) -> None:
    assert names(SEEN, **view) == expected


@pytest.mark.parametrize(
    ("view", "said"),
    [({"sort": "speed"}, "sort = 'speed': allowed is one of scope, "), ({"down": "x"}, "0 or 1")],
)
def test_a_view_that_there_is_not_is_refused(view: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        View.read(view)


def test_of_thousands_the_first_are_shown_and_the_filter_finds_all() -> None:
    seen = Seen(0.0, [scope(f"{i}.example.org", waiting=i % 7) for i in range(3000)])
    told = state(seen, View())
    assert (len(told["scopes"]), told["matching"]) == (SHOWN, 3000)
    assert {row["waiting"] for row in told["scopes"]} == {6}
    told = state(seen, View(match="2999.example"))
    assert [row["scope"] for row in told["scopes"]] == ["2999.example.org"]
    assert (told["matching"], told["totals"]["scopes"]) == (1, 3000)


def test_a_long_line_is_cut_and_counted() -> None:
    told = state(Seen(0.0, [scope("s", 1, 250)]), View(opened=scope_id("s")))["opened"]
    assert (len(told["waiters"]), told["more_waiters"]) == (MEMBERS, 150)
    assert (len(told["holders"]), told["more_holders"]) == (1, 0)


def test_a_scope_that_is_looked_into_is_told_though_the_filter_hides_it() -> None:
    told = state(SEEN, View(match="b", opened=scope_id("d")))
    assert told["opened"]["waiting"] == 9
    assert state(SEEN, View(opened="gone"))["opened"] is None


def test_the_rate_is_the_grants_since_the_survey_before() -> None:
    first = Seen.after(None, 10.0, [scope("s", grants=100), scope("idle", grants=7)], [])
    assert state(first, View())["scopes"][0]["rate"] is None
    assert state(first, View())["totals"]["rate"] is None
    # The first went on, the second was idle meanwhile and began anew, the third is new.
    now = [scope("s", grants=130), scope("idle", grants=3), scope("new", grants=5)]
    second = Seen.after(first, 12.0, now, [])
    assert second.rates == {"s": 15.0, "idle": 1.5, "new": 2.5}
    assert state(second, View())["totals"]["rate"] == 19.0
    assert names(second, sort="rate") == ["s", "new", "idle"]


def test_a_name_of_any_letters_has_an_id_fit_for_a_url() -> None:
    for name in ("", "ü" * 100_000, "\ud800", "<img src=x onerror=alert(1)>"):
        assert scope_id(name).isalnum()
