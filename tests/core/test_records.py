"""What goes on the wire: the fields of records that are marked, each by its type."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from semaphore_middleware.core.records import Record, Status, numbers_of
from semaphore_middleware.model.reasons import REASONS, Reason
from semaphore_middleware.model.wire import Wire


@dataclass
class Marked:
    status: Wire[Status]
    count: Wire[int]
    most: Wire[int | None]
    left: Wire[float | None]
    is_open: Wire[bool]
    reason: Wire[Reason | None]
    unmarked: int = 0
    text: str = ""


@dataclass
class Broken:
    text: Wire[str]


RECORD = Record(numbers_of(Marked))


def test_what_is_not_marked_is_not_sent() -> None:
    assert RECORD.names == ("status", "count", "most", "left", "is_open", "reason")


def test_each_field_has_the_value_of_its_type() -> None:
    packed = RECORD.pack(1, 2, 3, 4500, 1, 1)
    assert RECORD.values(packed) == ["lost", 2, 3, 4.5, True, REASONS[0]]
    nothing = RECORD.pack(0, 0, 0, -1, 0, 0)
    assert RECORD.values(nothing) == ["ok", 0, None, None, False, None]
    assert RECORD.written_out("zeros") == "0, 0, 0, -1, 0, 0"


def test_a_type_that_is_no_number_cannot_be_marked() -> None:
    with pytest.raises(KeyError):
        numbers_of(Broken)
