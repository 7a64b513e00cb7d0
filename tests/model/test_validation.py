"""Checks of numbers, truth values and choices: what they take, and how they refuse the rest."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from semaphore_middleware.errors import SettingsError
from semaphore_middleware.model.validation import (
    check_choice,
    check_integer,
    check_number,
    check_truth,
)


@pytest.mark.parametrize("value", [0, 1.5, 1e9])
def test_number_within_bounds(value: float) -> None:
    assert check_number(value, "x") == value


@pytest.mark.parametrize("value", [-1, 2e9, math.nan, math.inf, "1", None, True, []])
def test_number_refused(value: Any) -> None:
    message = re.escape(f"x = {value!r}: allowed is a number >= 0 and <= 1e9")
    with pytest.raises(SettingsError, match=message):
        check_number(value, "x")


def test_number_as_text() -> None:
    assert check_number("1.5", "x", text=True) == 1.5
    for value in ("", "a", "nan", "-1", "1 s"):
        with pytest.raises(SettingsError, match=re.escape(f"x = {value!r}: allowed is")):
            check_number(value, "x", text=True)


@pytest.mark.parametrize("value", [0, 1.0, "1", True, None, 10])
def test_integer_refused(value: Any) -> None:
    message = re.escape(f"x = {value!r}: allowed is an integer >= 1 and <= 9")
    with pytest.raises(SettingsError, match=message):
        check_integer(value, "x", least=1, most=9)


def test_integer_as_text_may_be_a_whole_float() -> None:
    good: tuple[Any, ...] = (3, 3.0, "3", "3.0")
    for value in good:
        assert check_integer(value, "x", least=1, text=True) == 3
    bad: tuple[Any, ...] = (3.5, "3.5", "inf", "x", True, [3])
    for value in bad:
        with pytest.raises(SettingsError, match=r"allowed is an integer >= 1$"):
            check_integer(value, "x", least=1, text=True)


def test_truth() -> None:
    assert check_truth(True, "x")
    assert not check_truth(False, "x")
    for value in (1, 0, "true", None):
        with pytest.raises(SettingsError, match=re.escape(f"x = {value!r}: allowed is True or")):
            check_truth(value, "x")


def test_truth_as_text() -> None:
    assert all(check_truth(value, "x", text=True) for value in (True, 1, "1", "true", "True"))
    assert not any(check_truth(value, "x", text=True) for value in (False, 0, "0", "false"))
    with pytest.raises(SettingsError, match="x = 'maybe': allowed is True or False"):
        check_truth("maybe", "x", text=True)


def test_choice() -> None:
    assert check_choice("a", "x", ("a", "b")) == "a"
    for value in ("c", 1, ["a"]):
        with pytest.raises(SettingsError, match=re.escape(f"x = {value!r}: allowed is 'a' or 'b'")):
            check_choice(value, "x", ("a", "b"))


def test_an_option_is_shown_as_typed() -> None:
    with pytest.raises(SettingsError, match=r"^--port x: allowed is a port$"):
        check_integer("x", "--port", least=0, allowed="a port", text=True)
