"""Rules for each policy: no other file names it, and if two limit a site, the stricter counts."""

import re
from collections.abc import Sequence
from dataclasses import fields

import pytest

from semaphore_middleware.core.protocol import RECORDS, VERSION
from semaphore_middleware.core.scripts import WORDS
from semaphore_middleware.link.scripts import assembled_file
from semaphore_middleware.model.inspection import Finding
from semaphore_middleware.model.limits import PARTS
from semaphore_middleware.politeness import POLICIES
from semaphore_middleware.politeness.policy import Policy
from tests.support.nodes import Outside
from tests.support.paths import PACKAGE

OUTSIDE = {
    path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8")
    for path in PACKAGE.rglob("*")
    if path.suffix in (".py", ".lua", ".html", ".js") and path.parts[-2:-1] != ("politeness",)
}


def names_of(policy: Policy) -> set[str]:
    """The names that a policy owns."""
    parts = {part.name for part in PARTS}  # of limits: one may be for a policy
    return {
        *policy.learned,
        *policy.learned_texts,
        *(field.name for field in fields(policy.finding)),
        *(reason.name for reason in policy.reasons),
        *([policy.finding.__name__] if policy.finding is not Finding else []),
        *([policy.event.__name__, policy.event.counter] if policy.event else []),
        policy.name,
    } - parts


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: str(policy.name))
def test_a_policy_is_named_in_its_own_files_only(policy: Policy) -> None:
    own = f"politeness/lua/{policy.name}.lua"
    assert own in OUTSIDE
    names = names_of(policy) - RECORDS.keys()
    # A name of one word may be an ordinary word: then it counts as a field or as a text.
    words = [rf"(\.|['\"]){name}\b" for name in names]
    words += [rf"\b{name}\b" for name in names if "_" in name]
    words += [rf"@reason\({reason.name}\)" for reason in policy.reasons]
    words += [rf"politeness[.:/]{policy.name}\b"]
    named = re.compile("|".join(words))
    found = {file: hits[0] for file, text in OUTSIDE.items() if (hits := named.search(text))}
    found.pop(own)
    assert not found


def test_nodes_with_other_policies_do_not_share_a_server() -> None:
    assert VERSION.split("+")[1:] == [policy.name for policy in POLICIES]


@pytest.mark.parametrize(
    ("rooms", "room"),
    [("", [4, 1]), ("3, 2", [2, 8]), ("2, 3", [2, 7]), ("5, nil", [4, 1]), ("nil, 1", [1, 8])],
)
def test_of_several_rooms_the_smallest_counts(
    outside: Outside, rooms: str, room: list[int]
) -> None:

    def words(what: str, name: str) -> str | Sequence[str]:
        if what in ("policies", "hook"):
            return ["one()", "other()"] if name == "room" else []
        return WORDS(what, name)

    script = f"""
        local DAY, rooms = 0, {{ {rooms} }}
        local function one() return rooms[1], 7 end
        local function other() return rooms[2], 8 end
        {assembled_file("semaphore_middleware.core", "shared/policies", words)}
        return {{ least_room({{}}, 4, 1) }}
    """
    assert outside.client.eval(script, 0) == room


MOMENT = re.compile(r"^--     (\w+)\(", re.MULTILINE)
HOOK = re.compile(r"^[^-\n]*@hook\((\w+)\)", re.MULTILINE)
MOMENTS = set(MOMENT.findall(OUTSIDE["core/lua/shared/policies.lua"]))


def test_each_moment_that_the_core_names_is_one_that_it_calls() -> None:
    assert {name for text in OUTSIDE.values() for name in HOOK.findall(text)} == MOMENTS


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: str(policy.name))
def test_each_function_of_a_policy_is_called(policy: Policy) -> None:
    text = OUTSIDE[f"politeness/lua/{policy.name}.lua"]
    for name in re.findall(r"(?m)^local function (\w+)\(", text):
        is_called = len(re.findall(rf"\b{name}\(", text)) > 1
        assert is_called or name.removeprefix(f"{policy.name}_") in MOMENTS, name
