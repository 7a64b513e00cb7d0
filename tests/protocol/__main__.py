"""Prints the table of searches: python -m tests.protocol [--states 1000000] [--trace NAME]."""

from __future__ import annotations

import argparse
import sys

from tests.protocol.runs import OPEN, WITHOUT, Run, runs_as_built

HEAD = ("searched", "states", "steps", "drained", "seconds", "extent", "found")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.protocol")
    parser.add_argument("--states", type=int, default=1_000_000, help="the most to see in a search")
    parser.add_argument("--trace", help="search only this one, and tell how it came to that")
    arguments = parser.parse_args()
    tables = {
        "The protocol as built": tuple(runs_as_built()),
        "Without a rule": WITHOUT,
        "What stays open": OPEN,
    }
    for title, runs in tables.items():
        wanted = [run for run in runs if arguments.trace in (None, run.name)]
        if wanted:
            say(f"\n{title}\n")
            say(row(*HEAD))
            say(row(*["---"] * len(HEAD)))
        for run in wanted:
            tell(run, arguments.states, trace=bool(arguments.trace))


def tell(run: Run, states: int, *, trace: bool) -> None:
    verdict = run.search(states=states)
    found = verdict.violation or "holds"
    as_expected = "" if verdict.violation == run.finds else " (UNEXPECTED)"
    say(
        row(
            run.name,
            f"{verdict.states:,}",
            f"{verdict.steps:,}",
            f"{verdict.drained:,}" if run.drain_every else "",
            f"{verdict.seconds:.0f}",
            verdict.extent,
            found + as_expected,
        )
    )
    for step in verdict.trace if trace else ():
        say(step)


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
