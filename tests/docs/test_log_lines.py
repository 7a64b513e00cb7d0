"""Log lines that the page on troubleshooting quotes are in the source."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.docs.pages import page
from tests.support.paths import REPOSITORY

WORDS = 4  # in a row, of a quoted line: examples stand between them
GAP = "…"


def texts() -> Iterator[str]:
    """All texts in the source, with a gap for each value."""
    for path in (REPOSITORY / "semaphore_middleware").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield re.sub(r"%[-.\d]*[srdgf]", GAP, node.value)


def quoted_lines() -> list[str]:
    """The lines in the first columns of the tables of what the log says, and the like."""
    rows = re.findall(r"^\| (.*?) \|", page("docs/troubleshooting.md"), re.MULTILINE)
    lines = [line for row in rows for line in re.findall(r"`([^`]+)`", row)]
    return [line for line in lines if len(line.split()) >= WORDS]


SOURCE = "\n".join(texts())


@pytest.mark.parametrize("line", quoted_lines())
def test_a_quoted_line_is_logged(line: str) -> None:
    words = line.split()
    runs = [" ".join(words[n : n + WORDS]) for n in range(len(words) - WORDS + 1)]
    assert any(run in SOURCE for run in runs), "the log says something else"


def test_lines_are_found() -> None:
    assert len(quoted_lines()) > 20
