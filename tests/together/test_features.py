"""Features that can be deleted have what lab/features.toml and the marks in files name."""

from __future__ import annotations

import re

from lab.without import MARK, TABLE, WHOLE, found, marked_files
from tests.support.paths import REPOSITORY


def test_each_row_names_what_is_there() -> None:
    for pattern in sum(TABLE.values(), WHOLE):
        assert found(REPOSITORY, pattern)


def test_each_mark_names_a_row() -> None:
    texts = [path.read_text("utf-8") for path in marked_files(REPOSITORY)]
    marks = [name for text in texts for name in re.findall(rf"(?m){MARK}(\S+)$", text)]
    assert {*marks} == {*TABLE, "end"}
