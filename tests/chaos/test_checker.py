"""The checker convicts the guilty, each of what it has done, and acquits the innocent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.chaos.checker import Verdict, check
from tests.chaos.history import Event, History, What

LIMIT, LEASE = 2, 2.0
HOST = "example.com"


def at(when: float, what: What, node: str = "a", id: object = 1, **facts: Any) -> Event:
    return Event(when, what, node, HOST, str(id), **facts)


def visit(start: float, end: float, node: str = "a", id: int = 1) -> list[Event]:
    """A request with its permit, as both witnesses see it."""
    return [
        at(start, "grant", node, id),
        at(start + 0.01, "start", node, f"{node}{id}", permit=str(id)),
        at(end, "end", node, f"{node}{id}"),
        at(end + 0.01, "release", node, id),
    ]


def verdict(*parts: Event | list[Event]) -> Verdict:
    events = [event for part in parts for event in (part if isinstance(part, list) else [part])]
    return check(History(events), LIMIT, LEASE)


def known(path: str) -> Event:
    return Event(0, "known", host=HOST, path=path)


def arrived(path: str) -> Event:
    return Event(1, "page", "a", HOST, path=path)


INNOCENT: dict[str, list[Event]] = {
    "nothing": [],
    "full use": [*visit(1, 3), *visit(1, 2, "b"), *visit(2.1, 3, "b", 2)],
    "one node after the other": [*visit(1, 2), *visit(2.02, 3, "b"), *visit(2.02, 3, "b", 2)],
    "killed": [
        *visit(1, 9)[:2],
        *visit(1, 9, "b"),
        at(2, "killed", id=""),
        at(2, "end", id="a1"),
        *visit(4.1, 5, "c"),
    ],
    "lost in time": [
        *visit(1, 2)[:2],
        at(2.3, "lost"),
        at(2.31, "end", id="a1"),
        *visit(3, 4, "b"),
        *visit(3, 4, "c"),
        at(2.4, "release"),
    ],
    "frozen between its grant and its request, which is ended at once as it wakes": [
        at(1.9, "grant"),
        at(2, "frozen"),
        at(6, "woken"),
        at(6.1, "blocked", seconds=4.1),
        at(6.003, "start", id="a1", permit="1"),
        at(6.007, "lost"),
        at(6.011, "end", id="a1"),
        *visit(4.5, 7, "b"),
        *visit(4.5, 7, "b", 2),
        at(8, "closed", count=1),
    ],
    "computing for longer than its lease": [
        *visit(1, 6.02)[:3],
        at(6, "computed", seconds=4.0),
        at(6.01, "lost"),
        *visit(4.5, 5, "b"),
        *visit(4.5, 5, "b", 2),
        at(8, "closed", count=1),
    ],
    "frozen with what it held": [
        at(2, "frozen"),
        *visit(1, 7)[:3],
        at(6, "woken"),
        at(6.1, "blocked", seconds=4.1),
        at(7.01, "lost"),
        *visit(4.5, 5, "b"),
        *visit(4.5, 5, "b", 2),
        at(8, "closed", count=1),
    ],
    "every page arrived, one twice": [known("/1"), arrived("/1"), arrived("/1")],
    "in time": [
        at(5, "recovered", seconds=2.0, promise=2.7),
        at(6, "exited", seconds=1, promise=2, count=1),
    ],
    "nothing left": [at(9, "left", id="semaphore", count=0)],
    "clean end": [*visit(1, 2), at(3, "closed")],
}

BOTH = "the site had 3 open", "nodes held 3"
GUILTY: dict[str, tuple[tuple[str, ...], list[Event]]] = {
    "one too many at the site": (
        ("the site had 3 open",),
        [
            *visit(1, 3),
            *visit(1, 3, "b"),
            at(0.5, "grant", "c"),
            at(0.9, "release", "c"),
            at(2, "start", "c", permit="1"),
            at(3, "end", "c"),
        ],
    ),
    "one too many by the nodes' account": (
        ("nodes held 3",),
        [*visit(1, 3), *visit(1, 3, "b"), at(2, "grant", "c"), at(2.5, "release", "c")],
    ),
    "a frozen node frozen too briefly for an excuse": (
        BOTH,
        [*visit(1, 5), at(2, "frozen"), at(2.5, "woken"), *visit(3, 4, "b"), *visit(3, 4, "b", 2)],
    ),
    "a woken node begins a request after it has found its permit lost": (
        ("the site had 3 open",),
        [
            at(1.9, "grant"),
            at(2, "frozen"),
            at(6, "woken"),
            at(6.01, "lost"),
            at(6.3, "start", id="a1", permit="1"),
            at(6.4, "end", id="a1"),
            *visit(5, 7, "b"),
            *visit(5, 7, "b", 2),
        ],
    ),
    "a woken node goes on under a lost permit": (
        ("the site had 3 open",),
        [
            *visit(1, 6.5)[:3],
            at(2, "frozen"),
            at(6, "woken"),
            at(6.01, "lost"),
            *visit(5, 7, "b"),
            *visit(5, 7, "b", 2),
        ],
    ),
    "a woken node begins with another permit than it held": (
        ("the site had 3 open", "without a permit"),
        [
            at(1.9, "grant"),
            at(2, "frozen"),
            at(6, "woken"),
            at(6.003, "start", id="a1", permit="2"),
            at(6.007, "lost"),
            at(6.011, "end", id="a1"),
            *visit(5, 7, "b"),
            *visit(5, 7, "b", 2),
        ],
    ),
    "the others have too many while one is frozen": (
        BOTH,
        [
            *visit(1, 7),
            at(2, "frozen"),
            at(6, "woken"),
            *visit(4.5, 5, "b"),
            *visit(4.5, 5, "b", 2),
            *visit(4.5, 5, "c"),
        ],
    ),
    "a woken node begins with what is no longer its own": (
        BOTH,
        [
            at(2, "frozen"),
            at(6, "woken"),
            *visit(6.05, 7),
            *visit(5, 7, "b"),
            *visit(5, 7, "b", 2),
        ],
    ),
    "a frozen node with more than the limit": (
        ("frozen nodes had 3",),
        [*visit(1, 7), *visit(1, 7, "a", 2), *visit(1, 7, "a", 3), at(2, "frozen"), at(6, "woken")],
    ),
    "a visit without a permit": (("without a permit",), visit(1, 2)[1:3]),
    "two visits with one permit": (
        ("without a permit",),
        [*visit(1, 2), at(1.5, "start", id="a2", permit="1"), at(1.6, "end", id="a2")],
    ),
    "a permit that was never given back": (
        ("never gave back",),
        [at(1, "grant"), at(2, "closed"), at(3, "killed", "b", "")],
    ),
    "a lost page": (
        ("1 pages lost, such as example.com/2",),
        [known("/1"), known("/2"), arrived("/1")],
    ),
    "never back to full use": (("problem",), [at(9, "problem", "", "problem: waited 60 s")]),
    "late back to full use": (("recovered after",), [at(99, "recovered", seconds=60, promise=2.7)]),
    "a late exit": (("exited after",), [at(99, "exited", seconds=10, promise=2, count=1)]),
    "an exit as if all were done": (("exited with status 0",), [at(9, "exited", count=0)]),
    "keys that nobody came for": (("2 keys left",), [at(9, "left", id="semaphore", count=2)]),
    "a node that hides that it was blocked": (
        ("does not say that it was blocked",),
        [at(5, "blocked", seconds=3), at(6, "closed")],
    ),
}


@pytest.mark.parametrize("name", INNOCENT)
def test_the_innocent_are_acquitted(name: str) -> None:
    assert verdict(INNOCENT[name]).violations == []


@pytest.mark.parametrize("name", GUILTY)
def test_the_guilty_are_convicted_of_what_they_did(name: str) -> None:
    crimes, events = GUILTY[name]
    for crime, violation in zip(crimes, verdict(events).violations, strict=True):
        assert crime in violation


def test_a_fault_that_does_nothing_is_told_from_a_broken_promise() -> None:
    found = verdict(at(1, "proof", id="data were lost", count=1), at(2, "proof", id="no data were"))
    assert (found.violations, found.not_done, found.is_bad) == ([], ["no data were"], True)
    found.kept_in = "/there"
    assert str(found) == "FAULT NOT DONE, see /there"


def test_the_figures_of_the_table_are_counted() -> None:
    found = verdict(
        INNOCENT["frozen with what it held"],
        [known("/1"), known("/2"), arrived("/1"), arrived("/1")],
        at(7, "recovered", seconds=1.0, promise=2.0),
        at(8, "recovered", seconds=3.0, promise=4.0),
        at(8, "exited", seconds=0.5, promise=2.0, count=1),
    )
    assert (found.requests, found.most, found.most_held, found.excess) == (3, 2, 2, 1)
    assert (found.lost, found.twice) == (["example.com/2"], 1)
    assert (found.recovery, found.promise, found.exit) == (3.0, 4.0, 0.5)


def test_a_history_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    history, again = History(visit(1, 2)), History()
    history.note("known", host=HOST, path="/1")
    history.write(tmp_path / "history")
    again.read(tmp_path / "history")
    assert list(again) == list(history)
