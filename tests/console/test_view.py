"""The part of a snapshot that the page shows, filtered and cut on the server."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from semaphore_middleware import Inspection, Member, Rule, ServerState
from semaphore_middleware.console.view import MAX_NODES, MAX_ROWS, show, show_section
from semaphore_middleware.model.limits import LIMITLESS, Limit
from semaphore_middleware.model.reasons import BY_NAME
from semaphore_middleware.operators.snapshot import Snapshot, scope_id
from semaphore_middleware.politeness import NO_FINDINGS


def scope(name: str, held: int = 0, waiting: int = 0, **more: Any) -> Inspection:
    return Inspection(
        name, 4, (Member("n", held, waiting, 1.0, waiting - 0.5, 9.0, Limit(4)),), 4, **more
    )


def shown(*scopes: Inspection, **query: str) -> dict[str, Any]:
    return show(Snapshot.of(scopes, []), query)


SEEN = Snapshot.of([scope("b", 1, 2), scope("a", 3, 2), scope("C", 2, 0), scope("d", 0, 9)], [])


def values(row: dict[str, Any]) -> list[Any]:
    """The values in the order of the keys, which are those of docs/commands.md."""
    return list(row.values())


def test_a_row_has_all_that_there_is_to_see() -> None:
    n, other = (
        Member("n", 1, 2, 1.0, 7.25, 9.0, Limit(4)),
        Member("other", 1, 0, 0.0, 0.0, 8.5, Limit(4)),
    )
    effective = Limit(8, delay=0.5, rate="60/m", burst=10)
    spaced: dict[str, Any] = {"effective": effective, "next_start": 0.25}
    off: dict[str, Any] = {"backoff_left": 2.0, "backoff_last": 30.0}
    name = "www.example.org"
    set_by: dict[str, Any] = {"paused": True, "set_by": "boss", "started": 17}
    set_by |= {"reason": BY_NAME["backoff"], "wait": 2.0}
    of_site = {**spaced, **off, **set_by}
    one = Inspection(name, 3, (n, other), limit_max=8, **of_site, findings=NO_FINDINGS)
    set_ = {"concurrency": LIMITLESS, "delay": 0.5, "rate": "none"}
    rule = Rule("*.example.org", "boss", set_, paused=True)
    snapshot = Snapshot.of([one], [rule], {name: 3.5}, ServerState(9.0, 6.5))
    told = show(snapshot, {"open": scope_id(name)})
    assert values(told["totals"]) == [1, 2, 2, 2, 7.25, 3.5, 9.0, 6.5]
    (row,), (shown_rule,), opened = told["scopes"], told["rules"], told["opened"]
    assert values(row) == [
        *(scope_id(name), name, 2, 3, 8, False, 2, 7.25, 3.5, 0.5, 0.0, None, "60/m", 10, 0.25),
        *(None, 2.0, 30.0),
        *(value for finding in NO_FINDINGS for value in asdict(finding).values()),
        *(True, "backoff", "closed", 2.0),
        BY_NAME["backoff"].text(2.0),
        *("boss", [], 17),
    ]
    assert [values(node) for node in opened.pop("nodes")] == [
        ["n", "", 1, 2, 1.0, 7.25, 9.0, 0, 4, 0.0, 0.0, False, None, 1],
        ["other", "", 1, 0, 0.0, None, 8.5, 0, 4, 0.0, 0.0, False, None, 1],
    ]
    assert opened == {**row, "jobs": [], "more_nodes": 0}
    assert [values(node) for node in told["nodes"]] == [
        *(["n", 1, 2, 1, 1.0, 7.25, 9.0], ["other", 1, 0, 1, 0.0, None, 8.5])
    ]
    assert values(shown_rule) == [
        *("*.example.org", None, True, 0.5, None, None, "none", None, True, "boss")
    ]
    assert (told["matching"], told["more_nodes"], told["more_rules"]) == (1, 0, 0)
    assert show(Snapshot.of([], [Rule("*", "boss", paused=True)]), {})["notice"] == (
        "All sites are paused, by boss, until 'resume --all'."
    )


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        ({}, ["d", "a", "b", "C"]),  # waiting, the longest line first; equals by name
        ({"match": "c"}, ["C"]),
        ({"match": " A "}, ["a"]),
        ({"match": "nothing"}, []),
        ({"page": "0"}, ["d", "a", "b", "C"]),
        ({"page": "-x"}, ["d", "a", "b", "C"]),
        ({"page": "9" * 5000}, ["d", "a", "b", "C"]),
    ],
)
def test_a_view_finds(view: dict[str, str], expected: list[str]) -> None:
    assert [row["scope"] for row in show(SEEN, view)["scopes"]] == expected


def test_of_hundreds_each_is_on_one_page_and_the_filter_finds_all() -> None:
    scopes = [scope(f"{i}.example.org", waiting=i % 7) for i in range(2 * MAX_ROWS + 1)]
    pages = [shown(*scopes, page=page) for page in "123"]
    assert [(told["page"], told["pages"], told["first"]) for told in pages] == [
        *((1, 3, 1), (2, 3, MAX_ROWS + 1), (3, 3, 2 * MAX_ROWS + 1))
    ]
    seen = [row["scope"] for told in pages for row in told["scopes"]]
    assert sorted(seen) == sorted(one.scope for one in scopes)
    assert (pages[0]["matching"], pages[0]["scopes"][0]["waiting"]) == (len(scopes), 6)
    told = shown(*scopes, match="399.example")
    assert [row["scope"] for row in told["scopes"]] == ["399.example.org"]
    assert (told["matching"], told["totals"]["scopes"]) == (1, len(scopes))
    assert shown(*scopes, page="99") == pages[-1]


def test_a_spider_finds_its_nodes_and_scopes_and_a_scope_its_nodes() -> None:
    def at(name: str, *nodes: str) -> Inspection:
        return Inspection(name, 4, tuple(Member(n, 1, 0, 1.0, 0.0, 9.0, Limit(4)) for n in nodes))

    scopes = [at("a", "books-1-x", "news-7-y"), at("b", "books-2-z"), at("c", "shop-1-v")]
    for match, rows, nodes in (
        ("Books-", ["a", "b"], ["books-1-x", "books-2-z"]),
        ("news-7", ["a"], ["news-7-y"]),
        ("c", ["c"], ["shop-1-v"]),
    ):
        told = shown(*scopes, match=match)
        assert [row["scope"] for row in told["scopes"]] == rows
        assert [row["node"] for row in told["nodes"]] == nodes
        assert told["totals"]["nodes"] == 4


def test_of_many_nodes_the_first_are_told_and_the_rest_counted() -> None:
    nodes = tuple(Member(f"n{i}", 1, 1, 1.0, 1.0, 9.0, Limit(4)) for i in range(250))
    told = shown(Inspection("s", 4, nodes, 4), open=scope_id("s"))
    opened = told["opened"]
    assert [node["node"] for node in opened["nodes"]] == [f"n{i}" for i in range(MAX_NODES)]
    assert (opened["more_nodes"], opened["held"]) == (150, 250)
    assert (len(told["nodes"]), told["more_nodes"]) == (MAX_ROWS, 50)


def test_of_many_rows_of_a_section_the_first_are_told_and_the_rest_counted() -> None:
    rows = [{"name": str(i)} for i in range(MAX_ROWS + 3)]
    assert show_section("books", rows) == {"books": rows[:MAX_ROWS], "more_books": 3}


def test_a_scope_that_is_opened_is_told_though_the_filter_hides_it() -> None:
    told = show(SEEN, {"match": "b", "open": scope_id("d")})
    assert told["opened"]["waiting"] == 9
    assert show(SEEN, {"open": "d"})["opened"] == told["opened"]
    assert show(SEEN, {"open": "gone"})["opened"] is None
    assert shown(scope(""))["opened"] is None
