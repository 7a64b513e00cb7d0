"""What a policy is. The core knows the tuple of them, and none by name.

A policy is a Python file here, a Lua file of the same name in `lua/`, and a row in `POLICIES`. Its
Lua file has functions for some of the moments that `shared/policies.lua` of the core names, each
called `<policy>_<moment>`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from semaphore_middleware.model.events import CountedEvent, Emitter
from semaphore_middleware.model.inspection import Finding
from semaphore_middleware.model.reasons import Reason


def announce_nothing(*_: object) -> None:
    """For policies whose findings are no news."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy: a row of `POLICIES`."""

    name: str
    """That of its files, and of its messages to nodes: the numbers of its finding."""
    finding: type[Finding]
    """Its part of each reply and inspection."""
    learned: tuple[str, ...]
    """The numbers that the server keeps about a site for it; each is 0 while nothing is known."""
    reasons: tuple[Reason, ...] = ()
    """Why it holds starts back."""
    events: Mapping[type[CountedEvent], str] = field(default_factory=dict)
    """Its events, and what a metric of each counts."""
    announce: Callable[[Emitter, str, Any, Any, bool], None] = announce_nothing
    """Logs what a reply has changed, and notifies observers. It takes the node, the scope, the
    findings of the last reply and of this one, and whether feedback of this node has begun a pause.
    """
