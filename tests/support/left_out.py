"""A short list at the end of a session: which tests did not run, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

LEFT_OUT_MARKERS = ("slow", "compose")  # markers; pyproject.toml says what they mean


class LeftOut:
    """Plugin that counts the tests that were deselected or skipped, by reason."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._meanings = dict(line.split(": ", 1) for line in config.getini("markers"))
        self._deselected: Counter[str] = Counter()
        self._skipped: Counter[str] = Counter()

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        for item in items:
            marker = next(filter(item.get_closest_marker, LEFT_OUT_MARKERS), "")
            self._deselected[self._meanings.get(marker, "deselected by a filter")] += 1

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            self._skipped[report.longrepr[2].removeprefix("Skipped: ")] += 1

    def pytest_sessionfinish(self) -> None:
        if hasattr(self._config, "workeroutput"):  # a worker of xdist, which has no terminal
            self._config.workeroutput["deselected"] = dict(self._deselected)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Each worker of xdist has collected, and deselected, the same tests."""
        self._deselected |= Counter(getattr(node, "workeroutput", {}).get("deselected", {}))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        reasons = self._deselected + self._skipped
        if reasons:
            terminalreporter.section("not run")
        for reason, count in reasons.most_common():
            terminalreporter.write_line(f"{count:5} {reason}")
