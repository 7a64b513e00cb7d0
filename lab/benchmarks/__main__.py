"""`python -m lab.benchmarks [NAME ...] [--quick] [--json FILE]`: exit 1 if a goal is missed."""

from __future__ import annotations

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path

from rich.console import Console

from lab.benchmarks import NAMES
from lab.benchmarks.harness.report import Report


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="small: to see that it works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    console = Console()
    reports: dict[str, Report] = {}
    for name in options.names or NAMES:  # one at a time: two would measure each other
        reports[name] = import_module(f"lab.benchmarks.cases.{name}").measure(options.quick)
        reports[name].show(console)
        if options.json:
            figures = {name: report.as_json() for name, report in reports.items()}
            options.json.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
    missed = [goal for report in reports.values() for goal in report.goals if not goal.met]
    return 1 if missed and not options.quick else 0


if __name__ == "__main__":
    sys.exit(main())
