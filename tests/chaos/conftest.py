"""Mutants take minutes: they run in `make chaos`, or with `-m mutants`."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "mutants: whole crawls with something wrong in the scripts")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.option.markexpr:
        for item in items:
            if item.get_closest_marker("mutants"):
                item.add_marker(pytest.mark.skip(reason="a slow mutant; run it with -m mutants"))
