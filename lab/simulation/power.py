"""Each rule of the protocol, and each promise, switched off: which seeds see it?

python -m lab.simulation.power [--seeds 1000] [--only TEXT]
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import math
import multiprocessing
import os
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from lab.simulation.__main__ import WORLDS
from lab.simulation.server import Server
from semaphore_middleware.redis import scripts


@dataclass(frozen=True)
class Rule:
    """What the code says where a rule is kept, and what it says where it is not."""

    file: str
    """Of a script, or of a module."""
    says: str
    instead: str = ""
    seed: int = 0
    """One that sees when it is not kept; 0: none is known."""

    @property
    def is_of_annex(self) -> bool:
        """Whether `file` begins with the name of a package; else it is one of the kernel's."""
        return self.file.startswith(("semaphore_report/", "shared_crawl/"))

    @property
    def world(self) -> str:
        """In which the seed is run."""
        return "shared_crawl" if self.file.startswith("shared_crawl/") else "semaphore"


TABLE = Path(__file__).with_suffix(".toml")
RULES: Mapping[str, Rule] = {
    name: Rule(**rule) for name, rule in tomllib.loads(TABLE.read_text("utf-8")).items()
}


@contextmanager
def switched_off(rule: Rule) -> Iterator[None]:
    """The code without a rule, in this process."""
    undo = _change_script(rule) if rule.file.endswith(".lua") else _change_module(rule)
    try:
        yield
    finally:
        for thing, name, value in undo:
            setattr(thing, name, value)
        scripts.source_of.cache_clear()


Undo = list[tuple[Any, str, Any]]


def _change_script(rule: Rule) -> Undo:
    read_file = scripts.read_file
    package, name = scripts.SYNC.package, rule.file.removesuffix(".lua")
    if rule.is_of_annex:
        package, _, name = name.partition("/")
    changed_file = (package, name)
    text = read_file(*changed_file)
    assert text.count(rule.says) == 1, f"{rule.file} does not say once: {rule.says}"
    changed = text.replace(rule.says, rule.instead)

    def read_changed(package: str, file: str) -> str:
        return changed if (package, file) == changed_file else read_file(package, file)

    scripts.read_file = read_changed
    scripts.source_of.cache_clear()
    # A rule that is off in one part of `sync` only is to be seen by what comes of it.
    compare_every, Server.compare_every = Server.compare_every, math.inf
    return [(scripts, "read_file", read_file), (Server, "compare_every", compare_every)]


def _change_module(rule: Rule) -> Undo:
    """Give a module's functions, and its constants everywhere, what they are without a rule."""
    name = rule.file.removesuffix(".py").replace("/", ".")
    if not rule.is_of_annex:
        name = f"semaphore_middleware.{name}"
    module = importlib.import_module(name)
    text = inspect.getsource(module)
    assert text.count(rule.says) == 1, f"{rule.file} does not say once: {rule.says}"
    changed = ModuleType(name)
    exec(compile(text.replace(rule.says, rule.instead), rule.file, "exec"), vars(changed))
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
    """What the judge says of a seed's run without a rule."""
    plan_for, run = WORLDS[rule.world]
    with switched_off(rule):
        try:
            result = run(plan_for(seed))
        except Exception as error:  # a loop that spins, an error that nobody catches
            return repr(error)
    return result.violations[0].split(" ", 1)[1] if result.violations else None


def main() -> None:
    """Print of each rule how many seeds see that it is off, and as what; note the first of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--only", default="")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    seeds = range(1, options.seeds + 1)
    with multiprocessing.Pool(options.processes) as pool:
        for name, rule in RULES.items():
            if options.only in name:
                found = pool.map(partial(convicts, rule=rule), seeds, chunksize=10)
                as_what = Counter(text.split()[0] for text in found if text)
                words = ", ".join(word for word, _ in as_what.most_common())
                sys.stdout.write(f"| {name} | {as_what.total()} | {words} |\n")
                sys.stdout.flush()
                first = next((seed for seed, text in zip(seeds, found, strict=True) if text), 0)
                _note_seed(name, first)


def _note_seed(name: str, seed: int) -> None:
    text = TABLE.read_text("utf-8")
    says = rf'(\["{re.escape(name)}"\]\n)(seed = \d+\n)?'
    noted = f"seed = {seed}\n" if seed else ""
    TABLE.write_text(re.sub(says, rf"\g<1>{noted}", text), "utf-8")


if __name__ == "__main__":
    main()
