"""Places in the source that have a name: a comment such as `# rule 18: deadline`, behind a
statement or alone above it. Found by its name, a place may move and its code be reworded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.support.paths import PACKAGE, REPOSITORY

NO_CODE = re.compile(r"\s*(#|--|$)")


class Place(NamedTuple):
    """Where a marker is."""

    name: str
    file: str
    """Below the repository's folder."""
    line: int
    """The first of its statement, counted from 1."""


def places(names: str) -> Iterator[Place]:
    """All places in the packages whose names match this expression."""
    for path in sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.lua")]):
        file = path.relative_to(REPOSITORY).as_posix()
        yield from places_in(file, path.read_text("utf-8"), names)


def places_in(file: str, text: str, names: str) -> Iterator[Place]:
    """Those of one file with this text."""
    lines = text.splitlines()
    for i, line in enumerate(lines):
        if marker := re.search(f"(?:#|--) ({names})$", line):
            below = next(j for j in range(i, len(lines)) if not NO_CODE.match(lines[j]))
            yield Place(marker[1], file, below + 1)
