"""Plugin for `make mutants`: a table of how many mutants were planted, and what convicted them."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from tests.support.mutants import AREA, CONVICTED_BY, NAME


class MutantTable:
    """Counts the reports of mutants' tests."""

    def __init__(self) -> None:
        self._planted: defaultdict[str, set[str]] = defaultdict(set)
        self._killed: defaultdict[str, dict[str, str]] = defaultdict(dict)  # and by which module
        self._survivors: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties = dict(report.user_properties)
        if report.when != "call" or AREA not in properties:
            return
        area, name, by = (str(properties[key]) for key in (AREA, NAME, CONVICTED_BY))
        self._planted[area].add(name)
        if report.passed:
            self._killed[area][name] = by
        else:
            self._survivors.append(f"{area}: {name} (not seen by {by})")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        write = terminalreporter.write_line
        terminalreporter.section("mutants")
        write(f"{'area':12} {'planted':>7} {'killed':>6}  by")
        for area, planted in sorted(self._planted.items()):
            by = Counter(self._killed[area].values())
            modules = ", ".join(f"{module} {count}" for module, count in by.most_common())
            write(f"{area:12} {len(planted):7} {by.total():6}  {modules}")
        write(f"survivors: {len(self._survivors)}")
        for survivor in self._survivors:
            write(f"    {survivor}")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(MutantTable())
