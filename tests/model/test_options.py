"""The options of a node: the rows, and the keyword arguments that programs are checked against."""

import math
import re
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from semaphore_middleware import FairSemaphore, SettingsError
from semaphore_middleware.model.options import GivenOptions, NodeOptions


def test_the_keyword_arguments_are_the_rows() -> None:
    assert get_type_hints(GivenOptions) == get_type_hints(NodeOptions)
    assert all(row.metadata["check"](row.default, "") == row.default for row in fields(NodeOptions))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("lease", [0, -1, math.nan, math.inf, 86401]),
        ("recovery_wait", [-1, math.inf]),
        ("reuse_window", [-1, math.nan, "1"]),
        ("prefix", ["", "a{b}"]),
        *(("job", [7]), ("backoff", [5]), ("history", [None])),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(name: str, values: list[Any]) -> None:
    assert name in {row.name for row in fields(NodeOptions)}
    for value in values:
        with pytest.raises(SettingsError, match=f"^{re.escape(f'{name} = {value!r}')}: allowed is"):
            FairSemaphore("redis://localhost", **{name: value})
