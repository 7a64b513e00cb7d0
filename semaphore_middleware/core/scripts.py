"""The scripts of the semaphore, and their words: names and numbers from Python.

`records.py` lists the words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from semaphore_middleware.core.keys import CONSTANTS
from semaphore_middleware.core.protocol import RECORDS
from semaphore_middleware.core.records import STATUSES, Record, sense_of_limit
from semaphore_middleware.link.scripts import Script, Words, assembled_file, read_file
from semaphore_middleware.politeness import ALL_REASONS, POLICIES

PACKAGE = "semaphore_middleware.core"
PACKAGE_OF_POLICIES = "semaphore_middleware.politeness"
SECTION = "-- Section"


def words_of(records: Mapping[str, Record]) -> Words:
    """The `words` of scripts with these records."""

    def text_of(what: str, name: str) -> str | Sequence[str]:
        match what:
            case "constant":
                return CONSTANTS[name]
            case "status":
                return str(STATUSES.index(name))
            case "sense":
                return sense_of_limit()
            case "reason":
                return str(1 + [reason.name for reason in ALL_REASONS].index(name))
            case "policies":
                return [
                    sections_of(assembled_file(PACKAGE_OF_POLICIES, each.name, text_of))[name]
                    for each in POLICIES
                ]
            case "hook":
                return calls_of(name)
            case _:
                return records[name].written_out(what)

    return text_of


def sections_of(policy: str) -> Mapping[str, str]:
    """The parts of a policy's file: functions that each call needs, and those for feedback."""
    always, _, feedback = policy.partition(f"{SECTION} feedback\n")
    return {"always": always, "feedback": feedback}


def calls_of(moment: str) -> list[str]:
    """A call of each function that a policy has for this moment."""
    return [
        call
        for policy in POLICIES
        for call in functions_in(read_file(PACKAGE_OF_POLICIES, policy.name))
        if call.startswith(f"{policy.name}_{moment}(")
    ]


@lru_cache(len(POLICIES))
def functions_in(text: str) -> list[str]:
    """The functions of a policy's file, each with its parameters."""
    return re.findall(r"^local function (.*\))$", text, re.MULTILINE)


WORDS = words_of(RECORDS)
BEGIN_EPOCH = Script("begin_epoch", PACKAGE, WORDS)
SYNC = Script("sync", PACKAGE, WORDS)
