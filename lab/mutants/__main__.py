"""`make mutants`: tries mutants, and lists those that nobody sees."""

from __future__ import annotations

import argparse
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

from lab.mutants.generate import Mutant, files, mutants
from lab.mutants.run import HOWS, SURVIVED, Result, Worker
from tests.support.paths import PACKAGE, REPOSITORY

HUNK = re.compile(r"^(?:\+\+\+ b/(.*)|@@ \S+ \+(\d+)(?:,(\d+))? @@.*)", re.MULTILINE)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--base", help="only in lines that changed since this revision")
    parser.add_argument("--only", default="", help="only those with this in their names")
    parser.add_argument("--sample", type=int, help="so many of them, drawn by name")
    parser.add_argument("--seed", default="0", help="of the sample")
    parser.add_argument("-n", "--workers", type=int, default=2)
    return parser.parse_args()


def chosen(given: argparse.Namespace, found: list[Mutant]) -> list[Mutant]:
    found = [one for one in found if given.only in one.name]
    if given.base:
        lines = changed_lines(given.base)
        found = [one for one in found if one.change.line in lines[one.file]]
    if given.sample:
        drawn = {one.name: random.Random(f"{given.seed} {one.name}").random() for one in found}
        found = sorted(found, key=lambda one: drawn[one.name])[: given.sample]
    return found


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
    return results


def main() -> int:
    given, generated = arguments(), list(mutants(files()))
    wanted = chosen(given, generated)
    to_run = [one for one in wanted if not one.accepted]
    results = try_all(given, to_run)
    survivors = sorted(
        (one.mutant for one in results if one.how == SURVIVED),
        key=lambda one: (one.file, one.change.line),
    )
    print("", *(f"survived, line {one.change.line}: {one.name}" for one in survivors), sep="\n")
    counts = Counter(one.how for one in results)
    print("", f"{len(generated)} generated, {len(wanted) - len(to_run)} accepted", sep="\n")
    print(*(f"{counts[how]} {how}" for how in HOWS), sep=", ")
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main())
