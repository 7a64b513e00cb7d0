"""All mutants of the package: where each is, what it changes, and its name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lab.markers import Place, places_in
from lab.mutants import in_lua, in_python
from lab.mutants.rules import Change
from tests.support.paths import REPOSITORY

FILES = (
    "semaphore_middleware/core/*.py",
    "semaphore_middleware/link/*.py",
    "semaphore_middleware/link/lua/**/*.lua",
    "semaphore_middleware/core/lua/**/*.lua",
    "semaphore_middleware/model/*.py",
    "semaphore_middleware/operators/admin.py",
    "semaphore_middleware/operators/lua/*.lua",
    "semaphore_middleware/politeness/*.py",
    "semaphore_middleware/politeness/lua/*.lua",
    "semaphore_middleware/scrapy/*.py",
    "semaphore_middleware/shared_crawl/*.py",
    "semaphore_middleware/shared_crawl/lua/**/*.lua",
)
"""The files that keep promises."""
ACCEPTED = r"mutant \S+ -> \S+: .+"
"""A comment beside what nobody needs to see, since it changes nothing that anybody could: the words
of a line, what they are instead, and why.
"""


@dataclass(frozen=True)
class Mutant:
    """One file of the package with one change."""

    name: str
    """File, function, what the code says and what instead; a number tells equals apart. It stays
    the same when code is moved or reformatted.
    """
    file: str
    """Below the repository's folder."""
    change: Change
    accepted: Place | None
    """The comment that accepts it."""

    @property
    def place(self) -> str:
        """The file and the function."""
        return f"{self.file}:{self.change.function}"

    def apply(self, source: str) -> str:
        return source[: self.change.start] + self.change.code + source[self.change.end :]


def files() -> Iterator[str]:
    """Those that are mutated."""
    for pattern in FILES:
        yield from sorted(
            path.relative_to(REPOSITORY).as_posix() for path in REPOSITORY.glob(pattern)
        )


def mutants(of: Iterable[str]) -> Iterator[Mutant]:
    for file in of:
        yield from mutants_of(file, (REPOSITORY / file).read_text("utf-8"))


def mutants_of(file: str, source: str) -> Iterator[Mutant]:
    changes = in_lua.changes(source) if file.endswith(".lua") else in_python.changes(source)
    comments = {
        (place.line, place.name.split(":")[0]): place for place in places_in(file, source, ACCEPTED)
    }
    changed, names = set[tuple[int, int, str]](), Counter[str]()
    for change in changes:
        what = change.start, change.end, change.code
        if what in changed or change.says == change.instead:
            continue  # two rules may make the same, and equal arguments may be swapped
        changed.add(what)
        name = f"{file}:{change.function}: {change.says} -> {change.instead or 'nothing'}"
        names[name] += 1
        number = f" #{names[name]}" if names[name] > 1 else ""
        accepted = comments.get((change.line, f"mutant {change.difference}"))
        yield Mutant(name + number, file, change, accepted)
