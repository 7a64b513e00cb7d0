"""No module imports itself by way of others: not lazily, and not for its types alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support.paths import PACKAGE, REPOSITORY

FOLDERS = sorted(path.parent for path in PACKAGE.glob("*/__init__.py"))


def modules_of(folder: Path) -> dict[str, Path]:
    return {
        ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted(folder.rglob("*.py"))
    }


def imported_by(path: Path) -> Iterator[str]:
    """Modules, and names in them that may be modules."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_imports_have_no_circle(folder: Path) -> None:
    modules = modules_of(folder)
    graph = {name: {*imported_by(path)} & modules.keys() for name, path in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))
