"""The benchmarks run, and find what does not depend on the machine. What they measure is not for a
test to say.
"""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

import pytest
from rich.console import Console

from lab.benchmarks import NAMES, rivals
from lab.benchmarks.cases import use
from lab.benchmarks.harness.report import Report
from tests.support.paths import REPOSITORY

NOT_QUICK = {"freesite", "pictures"}
RIVALS = {"contest": rivals.SEMAPHORE, "frontier": rivals.FRONTIER}


def measured(name: str) -> Report:
    """Its small version, in a thread: the main thread's event loop belongs to pytest-twisted."""
    module = import_module(f"lab.benchmarks.cases.{name}")
    with ThreadPoolExecutor(1) as thread:
        report: Report = thread.submit(module.measure, True).result()
    return report


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in NOT_QUICK])
def test_a_benchmark_runs_to_its_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if (rival := RIVALS.get(name)) and not rivals.is_installed(rival):
        pytest.skip(f"{rival} is in the group 'bench' only")
    monkeypatch.chdir(REPOSITORY)  # where its processes find the benchmarks
    report = measured(name)
    assert report.rows
    assert report.goals
    assert report.notes
    assert {len(row) for row in report.rows} == {len(report.columns)}
    text = io.StringIO()
    report.show(Console(file=text))
    assert report.title in text.getvalue()
    assert_certain(name, report)


def assert_certain(name: str, report: Report) -> None:
    """What a benchmark finds on any machine."""
    match name:
        case "frontier":
            missed = [one.value for one in report.goals if one.what.startswith("a node killed")]
            assert missed == [0]
        case "use":
            assert report.rows[0][-1] == use.LIMIT  # at once
