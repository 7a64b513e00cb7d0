"""`make mutants`: tries mutants, and lists those that nobody sees."""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.mutants.generate import Mutant, accepted, files, mutants, names_of
from tests.mutants.rules import Change
from tests.mutants.run import HOWS, SURVIVED, Result, Worker
from tests.support.paths import PACKAGE, REPOSITORY

HUNK = re.compile(
    r"^(?:\+\+\+ b/semaphore_middleware/(.*)|@@ \S+ \+(\d+)(?:,(\d+))? @@.*)", re.MULTILINE
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--base", help="only in lines that changed since this revision")
    parser.add_argument("--only", default="", help="only those with this in their names")
    parser.add_argument("--names", type=Path, help="only those that this file lists (JSON)")
    parser.add_argument("--sample", type=int, help="so many of them, at random")
    parser.add_argument("--seed", default="0", help="of the sample")
    parser.add_argument("--json", type=Path, help="write here what became of each")
    parser.add_argument("--plant", nargs=3, metavar=("FILE", "SAYS", "INSTEAD"), help="try this")
    parser.add_argument("-n", "--workers", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="list them, and try none")
    return parser.parse_args()


def chosen(given: argparse.Namespace, found: list[Mutant]) -> list[Mutant]:
    """Those to try."""
    found = [one for one in found if given.only in one.name]
    if given.base:
        lines = changed_lines(given.base)
        found = [one for one in found if one.change.line in lines[one.file]]
    if given.names:
        names = set(json.loads(given.names.read_text()))
        found = [one for one in found if one.name in names]
        for name in sorted(names - {one.name for one in found}):
            print(f"there is no such mutant: {name}")
    if given.sample:
        found = random.Random(given.seed).sample(found, min(given.sample, len(found)))
    return found


def planted(file: str, says: str, instead: str) -> Mutant:
    """One that is made by hand."""
    before, _, _ = (PACKAGE / file).read_text("utf-8").partition(says)
    line, end = before.count("\n") + 1, len(before) + len(says)
    change = Change("", line, says, instead, len(before), end, instead)
    return Mutant(f"{file}: {says} -> {instead}", file, change)


def changed_lines(base: str) -> defaultdict[str, set[int]]:
    """By file: the lines of the working tree that are not in that revision."""
    command = ["git", "diff", "-U0", "--no-color", base, "--", str(PACKAGE)]
    diff = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True)
    lines, file = defaultdict[str, set[int]](set), ""
    for name, first, count in HUNK.findall(diff.stdout):
        file = name or file
        if first:
            lines[file] |= set(range(int(first), int(first) + int(count or 1)))
    return lines


@cache
def worker(folder: Path) -> Worker:
    """Each process of the pool has one."""
    return Worker(folder)


def try_out(folder: Path, mutant: Mutant) -> Result:
    return worker(folder).try_out(mutant)


def try_all(given: argparse.Namespace, found: Sequence[Mutant]) -> list[Result]:
    results: list[Result] = []
    with (
        TemporaryDirectory(prefix="mutants-") as folder,
        ProcessPoolExecutor(given.workers, get_context("fork")) as pool,
        ExitStack() as stack,
    ):
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        for done in as_completed([pool.submit(try_out, Path(folder), one) for one in found]):
            result = done.result()
            results.append(result)
            print(
                f"{len(results)}/{len(found)} {result.how} {result.by} ({result.seconds:.1f} s): "
                f"{result.mutant.name}",
                flush=True,
            )
            if given.json:
                outcome = {one.mutant.name: [one.how, one.by] for one in results}
                given.json.write_text(json.dumps(outcome, indent=1))
    return results


def summary(columns: dict[str, list[Mutant]]) -> str:
    """A table by room."""
    counts = {title: Counter(one.room for one in column) for title, column in columns.items()}
    lines = ["".join(f"{title:>12}" for title in ("room", *counts))]
    for room in [*counts["generated"], ""]:
        numbers = (count[room] if room else count.total() for count in counts.values())
        lines.append(f"{room:>12}" + "".join(f"{number:12}" for number in numbers))
    return "\n".join(lines)


def main() -> int:
    given, reasons, generated = arguments(), accepted().keys(), list(mutants(files()))
    if unknown := reasons - set().union(*map(names_of, generated)):
        sys.exit("\n".join(["accepted.toml names what is no mutant any more:", *sorted(unknown)]))
    wanted = [planted(*given.plant)] if given.plant else chosen(given, generated)
    if given.list:
        print(*(one.name for one in wanted), sep="\n")
        return 0
    to_run = [one for one in wanted if not reasons & names_of(one)]
    results = try_all(given, to_run)
    survivors = sorted(
        (one.mutant for one in results if one.how == SURVIVED),
        key=lambda one: (one.file, one.change.line),
    )
    columns = {"generated": generated, "run": to_run}
    for how in HOWS:
        columns[how] = [one.mutant for one in results if one.how == how]
    columns["accepted"] = [one for one in wanted if reasons & names_of(one)]
    print("", *(f"survived, line {one.change.line}: {one.name}" for one in survivors), sep="\n")
    print("", summary(columns), sep="\n")
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main())
