"""Each rule and promise has its place in the source, and a seed or a test that sees it."""

from __future__ import annotations

import ast
import re

import pytest

from lab.markers import places
from lab.simulation.changes import Change, UnfitError
from lab.simulation.power import NAMES, RULES, convicts, is_seen_by_test, switched_off
from tests.support.paths import REPOSITORY

WITH_SEED = [name for name, rule in RULES.items() if rule.seed]
WITH_TEST = [name for name, rule in RULES.items() if rule.test]

PYTHON = """
def of(one, other):
    if one and other(1) and not one.is_over:
        return one or other
    one.count += (
        other(one)
    )
    return max(one, other)
"""
IN_PYTHON = [
    (3, Change(condition="False"), "one and other(1) and not one.is_over", "False"),
    (3, Change(without=2), "other(1) and ", ""),
    (4, Change(without=1), "one or ", ""),
    (4, Change(value="one"), "one or other", "one"),
    (5, Change(value="other"), "other(one)", "other"),
    (6, Change(drop=True), "one.count += (\n        other(one)\n    )", "pass"),
    (8, Change(drop=True), "return max(one, other)", "pass"),
]
LUA = """
local function of(one, other)
  if one and (other(1) or one.a)
    and not one.is_over then
    return one or other, '-- no comment'
  elseif other(one, 2) == 2 then
    one.count = one.count
      + other(one) -- how many
  end
  if one == other then return one and other end
  of(one, function()
    return other
  end)
end
"""
IN_LUA = [
    (3, Change(condition="false"), "one and (other(1) or one.a)\n    and not one.is_over", "false"),
    (3, Change(without=2), "(other(1) or one.a)\n    and ", ""),
    (5, Change(value="one, other"), "one or other, '-- no comment'", "one, other"),
    (6, Change(condition="true"), "other(one, 2) == 2", "true"),
    (7, Change(value="one.count"), "one.count\n      + other(one)", "one.count"),
    (7, Change(drop=True), "one.count = one.count\n      + other(one)", ""),
    (10, Change(condition="one"), "one == other", "one"),
    (10, Change(value="one"), "one and other", "one"),
    (10, Change(drop=True), "if one == other then return one and other end", ""),
    (11, Change(value="of(one)"), "of(one, function()\n    return other\n  end)", "of(one)"),
    (11, Change(drop=True), "of(one, function()\n    return other\n  end)", ""),
]
UNFIT = [
    (4, 5, Change(value="nobody")),
    (4, 5, Change(without=3)),
    (5, 7, Change(without=1)),
    (5, 7, Change(condition="one")),
]


def test_each_rule_has_one_marker_and_each_marker_a_rule() -> None:
    assert sorted(place.name for place in places(NAMES)) == sorted(RULES)


def test_each_rule_can_be_switched_off() -> None:
    for rule in RULES.values():
        with switched_off(rule):
            pass


def test_each_rule_names_a_seed_or_a_test() -> None:
    assert len(WITH_SEED) + len(WITH_TEST) == len(RULES)
    for name in WITH_TEST:
        file, _, test = RULES[name].test.partition("::")
        text = (REPOSITORY / file).read_text("utf-8")
        assert re.search(rf"^(async )?def {test}\(", text, re.MULTILINE), name


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_SEED)
def test_a_rule_that_is_switched_off_is_seen_by_its_seed(name: str) -> None:
    """If plans have changed: `python -m lab.simulation.power --only` and words of the name."""
    assert convicts(RULES[name].seed, RULES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_TEST)
def test_a_rule_that_is_switched_off_is_seen_by_its_test(name: str) -> None:
    assert is_seen_by_test(RULES[name])


@pytest.mark.parametrize(("line", "change", "says", "instead"), IN_PYTHON)
def test_a_statement_in_python_is_changed(
    line: int, change: Change, says: str, instead: str
) -> None:
    assert PYTHON.count(says) == 1
    wanted = ast.parse(PYTHON.replace(says, instead))
    assert ast.unparse(change.in_python(PYTHON, line)) == ast.unparse(wanted)


@pytest.mark.parametrize(("line", "change", "says", "instead"), IN_LUA)
def test_a_statement_in_lua_is_changed(line: int, change: Change, says: str, instead: str) -> None:
    assert LUA.count(says) == 1
    assert change.in_lua(LUA, line) == LUA.replace(says, instead)


@pytest.mark.parametrize(("in_python", "in_lua", "change"), UNFIT)
def test_what_does_not_fit_is_an_error(in_python: int, in_lua: int, change: Change) -> None:
    with pytest.raises(UnfitError):
        change.in_python(PYTHON, in_python)
    with pytest.raises(UnfitError):
        change.in_lua(LUA, in_lua)
