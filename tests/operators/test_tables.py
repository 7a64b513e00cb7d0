"""Times, names and limits as text, and tables that fit the terminal."""

from collections.abc import Sequence
from typing import Any

import pytest
from rich.console import Console

from semaphore_middleware.link.text import time_of
from semaphore_middleware.model.inspection import Inspection, Member, ServerState
from semaphore_middleware.model.limits import LIMITLESS, Limit
from semaphore_middleware.model.reasons import BY_NAME
from semaphore_middleware.operators import formatting
from semaphore_middleware.operators.snapshot import Snapshot
from semaphore_middleware.operators.tables import Column, Output, table, tables_of

WAIT = "The server is new, or may have lost its data. Nothing starts for another 9.2 s."


def test_times_are_short() -> None:
    for seconds, shown in (
        *((0, "0 s"), (-1, "0 s"), (0.0001, "1 ms"), (0.0994, "99 ms"), (0.1, "0.1 s")),
        *((9.94, "9.9 s"), (9.96, "10 s"), (119.4, "119 s"), (120, "2 min"), (7199, "120 min")),
        *((7200, "2 h"), (172800, "2 d"), (1e7, "116 d")),
    ):
        assert time_of(seconds) == shown


def test_what_was_set_is_shown_as_it_was_set_and_one_is_not_many() -> None:
    delays = [(0.25, 0.0), (90.0, None), (0.001, 1.0), (1.4, 0.892857), (0.0, 0.5), (None, 0.5)]
    assert [formatting.delay_word(*delay) for delay in delays] == [
        *("0.25 s", "90 s", "0.001 s ±100 %", "1.4 s ±89.3 %", "0 s", "-")
    ]
    rates = [("60/m", 1), ("60/m", 10), ("none", None), (None, None)]
    assert [formatting.rate_word(*rate) for rate in rates] == ["60/m", "60/m (10)", "none", "-"]
    assert [formatting.count(n, "permit") for n in (0, 1, 2000)] == [
        "0 permits",
        "1 permit",
        "2,000 permits",
    ]
    names = ("alice@desk-0123456789ab", "node-12")
    assert [formatting.short_name(name) for name in names] == ["alice@desk", "node-12"]


def test_a_limit_that_adapts_shows_what_it_may_grow_to() -> None:
    for limit, most, shown in (
        *((None, None, "0/-"), (3, 3, "0/3"), (2, 8, "0/2 (8)"), (5, LIMITLESS, "0/5 (∞)")),
        (LIMITLESS, LIMITLESS, "0/∞"),
    ):
        assert formatting.held_of(Inspection("s", limit, (), most)) == shown


Row = tuple[str, ...]


def lines(columns: Sequence[Column[Row]], rows: Sequence[Row], width: int) -> list[str]:
    out = Console(width=width, soft_wrap=True)
    with out.capture() as shown:
        out.print(table(columns, rows))
    return [line.rstrip() for line in shown.get().splitlines()]


def test_columns_with_nothing_in_them_are_left_out_and_long_names_are_cut() -> None:
    columns: list[Column[Row]] = [
        Column("name", lambda row: row[0], right=False, is_name=True),
        Column("number", lambda row: row[1]),
        Column("spare", lambda row: row[2], right=False, is_spare=True),
        Column("kept", lambda row: row[3], right=False, is_spare=True),
    ]
    rows = [("www.a-long-name.example.org", "1", "-", "-"), ("b", "22", "-", "here")]
    assert lines(columns, rows, 60) == [
        "name                         number  kept",
        "www.a-long-name.example.org       1  -",
        "b                                22  here",
    ]
    assert lines(columns, rows, 36) == [
        "name                    number  kept",
        "www.a-long-name.examp…       1  -",
        "b                           22  here",
    ]
    # However narrow the terminal, names can still be told apart.
    two_names = [columns[0], columns[0], *columns[1:]]
    shown = lines(two_names, rows, 54)[1]
    assert shown == "www.a-long-name.ex…  www.a-long-name.ex…       1  -"
    assert lines(columns, rows, 20)[1] == "www.a-long-name…       1  -"
    many = [*columns[:2], *[columns[1]] * 4]  # the numbers alone are wider than the terminal
    assert lines(many, rows, 30) == [
        "name              number  number  number  number  number",
        "www.a-long-name…       1       1       1       1       1",
        "b                     22      22      22      22      22",
    ]


def seen(held: int = 0, **more: Any) -> Inspection:
    nodes = (Member("n", held, 0, 1.0, 0.0, 15.0, Limit(4)),) if held else ()
    return Inspection("a", 4, nodes, 4, **more)


def test_a_state_has_its_time_if_that_is_known() -> None:
    for row, shown in (
        (seen(), "idle"),
        (seen(reason=BY_NAME["paused"]), "paused"),
        (seen(held=1), "open"),
        (seen(held=4, reason=BY_NAME["full"]), "full"),
        (seen(held=4, reason=BY_NAME["backoff"], wait=30.0), "backoff, 30 s"),
    ):
        assert formatting.state_of(row) == shown


def test_a_pause_and_a_wait_are_seen(capsys: pytest.CaptureFixture[str]) -> None:
    pausing = seen(reason=BY_NAME["backoff"], wait=30.0)
    snapshot = Snapshot.of([pausing], [], server=ServerState(recovery_left=9.2))
    Output().print(tables_of(snapshot, "there", members=False, nodes=False))
    wait, empty, _, row = capsys.readouterr().out.splitlines()
    assert (wait, empty) == (WAIT, "")
    assert row.endswith("  backoff, 30 s")
    assert Snapshot.of([], []).notice == ""


def test_names_become_no_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    names = "2a01:4f8:10:b::2 crawl:books:daily"
    Output().print(names, markup=False)
    Output().print(table([Column("name", str)], [names]))
    line, _, cell = capsys.readouterr().out.splitlines()
    assert (line, cell) == (names, names)


def test_a_stricter_limit_and_that_none_calls_are_seen(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [("host-1-90be77aa01f2", 1), ("host-2-90be77aa01f3", 1), ("fleet", 8)]
    members = [Member(node, 1, 0, 1.0, 0.0, 9.0, Limit(limit)) for node, limit in asked]
    snapshot = Snapshot.of([Inspection("a", 1, tuple(members))], [], server=ServerState(0.0, 90.0))
    Output().print(tables_of(snapshot, "there", members=False, nodes=False))
    notice, _, _, row = capsys.readouterr().out.splitlines()
    assert notice == (
        "No node has called for 90 s. Held permits are free within a lease after the next call."
    )
    assert row.rstrip().endswith("host-1 +1")
    assert Snapshot.of(snapshot.scopes, [], server=ServerState(0.0, 8.9)).notice == ""
