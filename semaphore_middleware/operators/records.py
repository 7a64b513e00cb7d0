"""Rules and the log of their changes, as the server keeps them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from semaphore_middleware.model.limits import PARTS
from semaphore_middleware.model.rules import LoggedChange, Rule


def pack_parts(parts: Mapping[str, Any]) -> bytes:
    """Parts of a rule as the server keeps them: a JSON object."""
    return json.dumps(parts, default=str).encode()


def read_rule(name: str, text: bytes) -> Rule | None:
    """The rule for one name; None: the text is no JSON object, and the server ignores it."""
    try:
        read = json.loads(text)
    except ValueError:
        return None
    if not isinstance(read, dict):
        return None
    limit = {part.name: part.type(read[part.name]) for part in PARTS if part.name in read}
    return Rule(name, read.get("by", ""), limit, read.get("paused"))


def read_change(text: bytes) -> LoggedChange:
    """An entry of the log of what operators have set."""
    at, _, rest = text.decode("utf-8", "replace").partition(" ")
    name, _, rule = rest.rpartition("\n")  # JSON has none, a name from elsewhere may
    return LoggedChange(int(at) / 1000, name, json.loads(rule) if rule else {})
