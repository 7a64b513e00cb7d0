"""The features of lab/features.toml, which can be deleted, and their marks in files."""

from __future__ import annotations

import re

from lab.without import MARK, TABLE, WHOLE, found, marked_files, without
from tests.support.paths import REPOSITORY


def test_each_row_names_what_is_there() -> None:
    for pattern in sum(TABLE.values(), WHOLE):
        assert found(REPOSITORY, pattern)


def test_each_mark_names_a_row() -> None:
    texts = [path.read_text("utf-8") for path in marked_files(REPOSITORY)]
    marks = [name for text in texts for name in re.findall(rf"(?m){MARK}(\S+)$", text)]
    assert {*marks} == {*TABLE, "end"}


def test_a_marked_line_goes_with_its_body() -> None:
    mark = "  # feature: one\n"  # at the end of a line
    head = f"a = [\n    1,{mark}    2,\n]\n\n\n"
    body = f"def f() -> None:{mark}    if a:\n\n        g()\n\n\n"
    rest = f"b = 3  # feature: other\nif b:{mark}    f()\nc = 4\n"
    left = "a = [\n    2,\n]\n\n\nb = 3  # feature: other\nc = 4\n"
    assert without(head + body + rest, "one") == left
