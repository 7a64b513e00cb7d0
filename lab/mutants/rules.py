"""What the rules for Python and those for Lua share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

WORD = re.compile(r"[\w.]+|[^\w\s]+")
MILLI = 1000  # without it milliseconds are taken for seconds, or the reverse
FEW = 4  # from here on one more or less is nobody's promise: a mistake is of another unit


@dataclass(frozen=True)
class Change:
    """One change of a file's text."""

    function: str
    """The qualified name of the one that it is in; "": in none."""
    line: int
    """The first line that it changes, counted from 1."""
    says: str
    instead: str
    """What the code says, and what it says instead; "" instead: it says nothing."""
    start: int
    end: int
    code: str
    """What stands in the file in place of its characters from `start` to `end`."""

    @property
    def difference(self) -> str:
        """The words that differ, such as `and -> or`."""
        says, instead = (WORD.findall(text) for text in (self.says, self.instead))
        while says and instead and says[0] == instead[0]:
            del says[0], instead[0]
        while says and instead and says[-1] == instead[-1]:
            del says[-1], instead[-1]
        return f"{' '.join(says)} -> {' '.join(instead)}"


def other_numbers(number: float) -> Iterator[float]:
    """What a number may be by mistake."""
    if number == MILLI:
        yield 1
    if abs(number) >= FEW:
        yield number * 10
    else:
        yield number + 1
        if number >= 1:
            yield number - 1
