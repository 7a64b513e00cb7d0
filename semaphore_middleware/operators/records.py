"""Reads the records that operators see: scopes as the script `inspect` replies, rules, and the log
of rule changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any

from semaphore_middleware.core import protocol
from semaphore_middleware.core.records import OF_KEYS, Record, numbers_of
from semaphore_middleware.link.text import decoded
from semaphore_middleware.model.inspection import Inspection, JobShare, Member, ServerState
from semaphore_middleware.model.limits import PARTS, Limit
from semaphore_middleware.model.rules import LoggedChange, Rule

_LIMIT = OF_KEYS["limit"]
_TIMES = Struct(">2d")
INSPECTION, MEMBER = Record(numbers_of(Inspection)), Record(numbers_of(Member))
RECORDS: Mapping[str, Record] = {
    **protocol.RECORDS,
    "inspection": INSPECTION,
    "member": MEMBER,
}
"""Records by their names in scripts."""


def read_server_state(times: bytes) -> ServerState:
    """The server's state, from the first part of the script `inspect`'s reply."""
    return ServerState(*_TIMES.unpack(times))


def read_inspection(scope: str, reply: tuple[bytes, bytes, Sequence[Any]]) -> Inspection:
    """A scope, from the reply of the script `inspect`."""
    packed, set_by, rows = reply
    members = tuple(_read_member(*row) for row in rows)
    return Inspection(
        scope,
        members=members,
        effective=Limit.unpack(*_LIMIT.unpack_from(packed, INSPECTION.size)),
        set_by=set_by.decode("utf-8", "replace") or None,
        jobs=JobShare.of(members),
        findings=protocol.read_findings(packed[INSPECTION.size + _LIMIT.size :]),
        **INSPECTION.fields(packed),
    )


def _read_member(node: bytes, job: bytes, packed: bytes) -> Member:
    asks_for = Limit.unpack(*_LIMIT.unpack_from(packed, MEMBER.size))
    return Member(decoded(node), asks_for=asks_for, job=decoded(job), **MEMBER.fields(packed))


def read_rule(name: str, text: bytes) -> Rule | None:
    """The rule for one name; None: the text is not a JSON object, and the server ignores it."""
    try:
        read = json.loads(text)
    except ValueError:
        return None
    if not isinstance(read, dict):
        return None
    limit = {part.name: part.type(read[part.name]) for part in PARTS if part.name in read}
    return Rule(name, read.get("by", ""), limit, read.get("paused"))


def read_change(text: bytes) -> LoggedChange:
    """An entry of the log of rule changes."""
    at, _, rest = text.decode("utf-8", "replace").partition(" ")
    name, _, parts = rest.rpartition("\n")  # the JSON has no line feed; a name may
    rule = json.loads(parts)
    return LoggedChange(int(at) / 1000, name, rule.pop("by", ""), rule)
