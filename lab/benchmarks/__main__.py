"""`python -m lab.benchmarks [NAME ...] [--quick]`: exit 1 if a goal is missed."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

from rich.console import Console

from lab.benchmarks import NAMES
from lab.benchmarks.harness.report import Report


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="small: to see that it works")
    options = parser.parse_args()
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    console = Console()
    is_missed = False
    for name in options.names or NAMES:  # one at a time: two would measure each other
        report: Report = import_module(f"lab.benchmarks.cases.{name}").measure(options.quick)
        report.show(console)
        is_missed |= not all(goal.met for goal in report.goals)
    return 1 if is_missed and not options.quick else 0


if __name__ == "__main__":
    sys.exit(main())
