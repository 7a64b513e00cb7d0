"""Runs pytest with the arguments given, and what fails once more, alone.

On a shared machine one of thousands of tests may fail by chance. One that fails beside others and
passes alone is flaky: it is listed in `FLAKY`, and fails nothing. A test that fails alone as well
fails the run, and so do a module that cannot be imported, and more failures than chance makes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MOST = 20  # failures: more are not chance
TRIES = 2  # of each, alone
ERROR = 400  # characters of an error that are listed
FLAKY = Path("build/flaky")
PLAIN = "--tb=native"  # Python 3.11 fails to parse some tracebacks, which would end pytest


class Failures:
    """A plugin that keeps the tests that failed, and the modules that could not be collected."""

    def __init__(self) -> None:
        self.tests: dict[str, str] = {}  # by id: its error, in one line
        self.modules: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            error = crash.message if crash else report.longreprtext
            self.tests.setdefault(report.nodeid, " ".join(error.split())[:ERROR])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.modules.append(report.nodeid)


def tries_alone(test: str) -> int:
    """Run a test alone; returns the try at which it passed, or 0."""
    command = (sys.executable, "-m", "pytest", "--quiet", PLAIN, test)
    for attempt in range(1, TRIES + 1):
        print(f"\n== {test}, alone, try {attempt} of {TRIES}", flush=True)
        if subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode == 0:
            return attempt
    return 0


def main(arguments: list[str]) -> int:
    """Returns pytest's exit status, or 0 if all that failed is flaky."""
    failures = Failures()
    status = int(pytest.main([PLAIN, *arguments], [failures]))
    is_chance = status == pytest.ExitCode.TESTS_FAILED and not failures.modules
    if not is_chance or not 0 < len(failures.tests) <= MOST:
        return status
    FLAKY.parent.mkdir(exist_ok=True)
    failed_alone = []
    for test, error in failures.tests.items():
        if attempt := tries_alone(test):
            with FLAKY.open("a", encoding="utf-8") as file:
                file.write(f"FLAKY: {test} (passed alone, try {attempt}): {error}\n")
        else:
            failed_alone.append(test)
    for test in failed_alone:
        print(f"FAILED beside others, and alone: {test}", flush=True)
    return status if failed_alone else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
