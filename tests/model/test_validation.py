"""Checks of numbers, truth values and choices: what they take, and how they refuse the rest."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from semaphore_middleware.errors import SettingsError
from semaphore_middleware.model.validation import (
    check_choice,
    check_integer,
    check_number,
    check_period,
    check_truth,
)

INTEGER = partial(check_integer, least=1, most=9)
PERIOD = partial(check_period, allowed="a period", most=604_800)


@pytest.mark.parametrize(
    ("check", "taken"),
    [
        (check_number, {0: 0.0, 1.5: 1.5, 1e9: 1e9}),
        (partial(check_number, text=True), {"1.5": 1.5, 2: 2.0}),
        (INTEGER, {1: 1, 9: 9}),
        (partial(INTEGER, text=True), {3: 3, "3": 3, "3.0": 3, 4.0: 4}),
        (check_truth, {True: True, False: False}),
        (partial(check_truth, text=True), dict.fromkeys((True, "1", "true", "True"), True)),
        (partial(check_truth, text=True), dict.fromkeys((False, "0", "false"), False)),
        (PERIOD, {"7d": 604_800.0, "1.5h": 5400.0, " 2m ": 120.0, "9s": 9.0, "9": 9.0, 9.5: 9.5}),
        (partial(PERIOD, needs_unit=True), {"7d": 604_800.0, "0": 0.0, 0: 0.0}),
        (partial(check_choice, choices=("a", "b")), {"a": "a"}),
    ],
)
def test_what_is_allowed_is_taken(check: Callable[..., Any], taken: dict[Any, Any]) -> None:
    for value, result in taken.items():
        assert check(value, "x") == result
        assert type(check(value, "x")) is type(result)


@pytest.mark.parametrize(
    ("check", "values", "allowed"),
    [
        (check_number, [-1, 2e9, math.nan, "1", None, True, []], "a number >= 0 and <= 1e9"),
        (partial(check_number, text=True), ["", "nan", "-1", "1 s"], "a number >= 0 and <= 1e9"),
        (INTEGER, [0, 1.0, "1", True, None, 10], "an integer >= 1 and <= 9"),
        (partial(INTEGER, text=True), [3.5, "inf", "x", True, [3]], "an integer >= 1 and <= 9"),
        (check_truth, [1, 0, "true", None], "True or False"),
        (partial(check_truth, text=True), ["maybe", 2], "True or False"),
        (PERIOD, ["8d", "-1s", "d", "a week", "7 days", "nan", True, None, ["7d"]], "a period"),
        (partial(PERIOD, needs_unit=True), ["7", 7, "a week"], "a period"),
        (partial(check_choice, choices=("a", "b")), ["c", 1, ["a"]], "'a' or 'b'"),
    ],
)
def test_all_else_is_refused(check: Callable[..., Any], values: list[Any], allowed: str) -> None:
    for value in values:
        with pytest.raises(SettingsError) as error:
            check(value, "x")
        assert str(error.value) == f"x = {value!r}: allowed is {allowed}"


def test_an_option_is_shown_as_typed() -> None:
    with pytest.raises(SettingsError, match=r"^--port x: allowed is a port$"):
        check_integer("x", "--port", least=0, allowed="a port", text=True)
