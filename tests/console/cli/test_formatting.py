"""Times, names and limits as people read them, and tables that fit."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from semaphore_middleware.console.cli.formatting import (
    count,
    held_of,
    rate_word,
    set_time,
    time_of,
    without_letters,
)
from semaphore_middleware.console.cli.output import Column, shortened, table
from semaphore_middleware.console.snapshot import ScopeRow
from semaphore_middleware.model.inspection import Inspection
from semaphore_middleware.model.limits import LIMITLESS


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        *((0, "0 s"), (-1, "0 s"), (0.0001, "1 ms"), (0.05, "50 ms"), (0.0994, "99 ms")),
        *((0.1, "0.1 s"), (0.34, "0.3 s"), (9.94, "9.9 s"), (9.96, "10 s"), (119.4, "119 s")),
        *((120, "2 min"), (7199, "120 min"), (7200, "2 h"), (172800, "2 d"), (1e7, "116 d")),
    ],
)
def test_times_are_short(seconds: float, shown: str) -> None:
    assert time_of(seconds) == shown


def test_what_was_set_is_shown_as_it_was_set() -> None:
    assert [set_time(s) for s in (0.25, 1.0, 90.0, 0.001)] == ["0.25 s", "1 s", "90 s", "0.001 s"]


def test_the_random_letters_of_a_name_can_be_left_out() -> None:
    assert without_letters("alice@desk-0123456789ab") == "alice@desk"
    assert without_letters("node-12") == "node-12"


def test_one_is_not_many() -> None:
    assert [count(n, "permit") for n in (0, 1, 2000)] == ["0 permits", "1 permit", "2,000 permits"]


@pytest.mark.parametrize(
    ("limit", "most", "shown"),
    [
        (None, None, "0/-"),
        (3, 3, "0/3"),
        (2, 8, "0/2 (8)"),
        (5, LIMITLESS, "0/5 (∞)"),
        (LIMITLESS, LIMITLESS, "0/∞"),
    ],
)
def test_a_limit_that_adapts_shows_what_it_may_grow_to(
    limit: int | None, most: int | None, shown: str
) -> None:
    assert held_of(ScopeRow.of(Inspection("s", limit, (), most))) == shown


def test_a_rate_shows_how_many_may_start_at_once() -> None:
    words = [rate_word(*rate) for rate in ((None, None), ("60/m", 1), ("60/m", 10), ("none", None))]
    assert words == ["-", "60/m", "60/m (10)", "none"]


@pytest.mark.parametrize("width", range(3, 40))
def test_names_are_shortened_in_the_middle(width: int) -> None:
    for name in ("www.a-long-name.example.org", "日本語.日本語.example", "x"):
        short = shortened(name, width)
        assert cell_len(short) <= width
        if cell_len(name) <= width:
            assert short == name
        else:
            head, tail = short.split("…")
            assert name.startswith(head)
            assert name.endswith(tail)
            assert abs(cell_len(head) - cell_len(tail)) <= 3


def test_columns_with_nothing_in_them_go_first_and_then_names_are_shortened() -> None:
    columns = [
        Column("name", is_name=True),
        Column("number", right=True),
        Column("spare", is_spare=True),
        Column("kept", is_spare=True),
    ]
    rows = [("www.a-long-name.example.org", "1", "-", "-"), ("b", "22", "-", "here")]

    def lines(width: int) -> list[str]:
        return [line.plain for line in table(columns, rows, width)]

    assert lines(60) == [
        "name                         number  spare  kept",
        "www.a-long-name.example.org       1  -      -",
        "b                                22  -      here",
    ]
    assert lines(36) == [
        "name                    number  kept",
        "www.a-long-…xample.org       1  -",
        "b                           22  here",
    ]
    # However little room there is, a name can still be told.
    assert lines(10)[1] == "www.a-lo…ple.org       1  -"
