"""Each rule of the protocol, and each promise, switched off: which seeds see it, and which test?

`python -m lab.simulation.power [--seeds 1000] [--only TEXT]` notes the first seed that does.
"""

from __future__ import annotations

import argparse
import importlib
import math
import multiprocessing
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing.pool import Pool
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

from lab.markers import Place, places
from lab.simulation.__main__ import WORLDS
from lab.simulation.changes import Change, UnfitError
from lab.simulation.server import Server
from semaphore_middleware.link import scripts
from tests.support.paths import REPOSITORY

NAMES = r"(?:rule \d+|promise): .+"
"""A pattern for the names of the markers of rules and promises."""
TABLE = Path(__file__).with_suffix(".toml")
UNFIT = re.compile(r"(Name|UnboundLocal|Attribute)Error|\bglobal \w+")
"""Errors of code that lacks a name, in Python and in Lua."""


@dataclass(frozen=True, kw_only=True)
class Rule(Change):
    """A rule or a promise, and the change by which the code does not keep it."""

    name: str
    """The name in its marker."""
    seed: int = 0
    """A seed that fails when the rule is off; 0 if none is known."""
    test: str = ""
    """A test that fails then, if no seed is known."""

    @property
    def place(self) -> Place:
        """The place of its marker."""
        found = [place for place in _places() if place.name == self.name]
        if len(found) != 1:
            raise UnfitError(f"{len(found)} markers in the source, not one: {self.name}")
        return found[0]

    @property
    def world(self) -> str:
        """The world in which the seed is run."""
        return "shared_crawl" if "/shared_crawl/" in self.place.file else "semaphore"


@cache
def _places() -> tuple[Place, ...]:
    return tuple(places(NAMES))


RULES: Mapping[str, Rule] = {
    name: Rule(name=name, **row) for name, row in tomllib.loads(TABLE.read_text("utf-8")).items()
}


@contextmanager
def switched_off(rule: Rule) -> Iterator[None]:
    """The code without a rule, in this process."""
    _, file, line = rule.place
    source = (REPOSITORY / file).read_text("utf-8")
    if file.endswith(".lua"):
        with script_file(file, rule.in_lua(source, line)):
            yield
        return
    undo = _change_module(file, compile(rule.in_python(source, line), file, "exec"))
    try:
        yield
    finally:
        for thing, name, value in undo:
            setattr(thing, name, value)


@contextmanager
def script_file(file: str, text: str) -> Iterator[None]:
    """The scripts with another text of one of their files, in this process."""
    folder, _, name = file.removesuffix(".lua").partition("/lua/")
    changed_file = (folder.replace("/", "."), name)
    read_file, compare_every = scripts.read_file, Server.compare_every

    def read_changed(package: str, file: str) -> str:
        return text if (package, file) == changed_file else read_file(package, file)

    scripts.read_file = read_changed
    scripts.source_of.cache_clear()
    # A rule that is off in only one part of `sync` must be seen by its effects.
    Server.compare_every = math.inf
    try:
        yield
    finally:
        scripts.read_file, Server.compare_every = read_file, compare_every
        scripts.source_of.cache_clear()


Undo = list[tuple[Any, str, Any]]


def _change_module(file: str, code: Any) -> Undo:
    """Give a module's functions, and its constants everywhere, what they are by this code."""
    name = file.removesuffix(".py").replace("/", ".")
    module = importlib.import_module(name)
    changed = ModuleType(name)
    exec(code, vars(changed))
    undo: Undo = []
    for known, other in list(vars(changed).items()):
        own = getattr(module, known, None)
        if isinstance(own, float) and own != other:
            for user in list(sys.modules.values()):
                if getattr(user, known, None) is own and user.__name__.startswith("semaphore_"):
                    undo.append((user, known, own))
                    setattr(user, known, other)
        elif getattr(own, "__module__", None) == name:
            for function, instead in _functions(own, other):
                undo.append((function, "__code__", function.__code__))
                function.__code__ = instead.__code__
    if not undo:
        raise UnfitError("nothing has changed")
    return undo


def _functions(own: Any, other: Any) -> Iterator[tuple[FunctionType, FunctionType]]:
    if isinstance(own, type):
        for name, part in list(vars(own).items()):
            yield from _functions(part, vars(other).get(name))
    elif isinstance(own, property):
        yield from _functions(own.fget, other.fget)
    elif isinstance(own, FunctionType) and own.__code__ != other.__code__:
        yield own, other


def convicts(seed: int, rule: Rule) -> str | None:
    """The promises that a seed's run breaks without a rule."""
    plan_for, run = WORLDS[rule.world]
    with switched_off(rule):
        try:
            found = [text.split(" ", 1)[1] for text in run(plan_for(seed)).violations]
        except Exception as error:  # an endless loop, or an error that is not caught
            found = [repr(error)]
    if unfit := [text for text in found if UNFIT.search(text)]:
        raise UnfitError(unfit[0])
    return found[0] if found else None


def is_seen_by_test(rule: Rule) -> bool:
    """True if the rule's test fails without the rule."""
    plugin = ("-p", "lab.simulation.power", f"--without={rule.name}")
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", *plugin, rule.test)
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    errors = re.findall(r"^E .*", run.stdout, re.MULTILINE)
    has_run = run.returncode in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    if not has_run or any(map(UNFIT.search, errors)):
        raise UnfitError(run.stdout + run.stderr)
    return run.returncode == pytest.ExitCode.TESTS_FAILED


def pytest_addoption(parser: pytest.Parser) -> None:
    """As a plugin of pytest this module runs tests without a rule."""
    parser.addoption("--without", required=True, choices=RULES)


def pytest_configure(config: pytest.Config) -> None:
    """Switch the rule off."""
    stack = ExitStack()
    stack.enter_context(switched_off(RULES[config.getoption("--without")]))
    config.add_cleanup(stack.close)


def main() -> None:
    """Print of each rule how many seeds see that it is off, and as what; note the first of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--only", default="", help="rules with these words in their names")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    words, seeds = options.only.split(), range(1, options.seeds + 1)
    with multiprocessing.Pool(options.processes) as pool:
        for name, rule in RULES.items():
            if all(word in name for word in words):
                _run_seeds(rule, pool, seeds)


def _run_seeds(rule: Rule, pool: Pool, seeds: range) -> None:
    found = pool.map(partial(convicts, rule=rule), seeds, chunksize=10)
    as_what = Counter(text.split()[0] for text in found if text)
    words = ", ".join(word for word, _ in as_what.most_common())
    sys.stdout.write(f"| {rule.name} | {as_what.total()} | {words} |\n")
    sys.stdout.flush()
    if first := next((seed for seed, text in zip(seeds, found, strict=True) if text), 0):
        _note_seed(rule.name, first)


def _note_seed(name: str, seed: int) -> None:
    says = rf'(\["{re.escape(name)}"\]\n)((seed|test) = .+\n)?'
    text = TABLE.read_text("utf-8")
    TABLE.write_text(re.sub(says, rf"\g<1>seed = {seed}\n", text), "utf-8")


if __name__ == "__main__":
    main()
