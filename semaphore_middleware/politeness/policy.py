"""The parts of a policy. The core uses the tuple of all policies, and names none of them.

A policy is a Python file here, a Lua file of the same name in `lua/`, and a row in `POLICIES`. Its
Lua file has functions for some of the moments that `shared/policies.lua` of the core names, each
called `<policy>_<moment>`.
"""

from __future__ import annotations

from dataclasses import dataclass

from semaphore_middleware.model.events import CountedEvent
from semaphore_middleware.model.inspection import Finding
from semaphore_middleware.model.reasons import Reason


@dataclass(frozen=True, slots=True)
class SiteShut(CountedEvent):
    """This node's report has shut a site: from now on its requests fail at once."""

    scope: str
    seconds: float
    """`Finding.shut_for`."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy: a row of `POLICIES`."""

    name: str
    """Also the name of its files, and of the notifications with its finding."""
    learned: tuple[str, ...]
    """The numbers that the server keeps about a site for it; each is 0 while nothing is known."""
    finding: type[Finding] = Finding
    """Its part of each reply and inspection; by default it has none."""
    learned_texts: tuple[str, ...] = ()
    """The texts that it keeps; each is empty while nothing is known."""
    reasons: tuple[Reason, ...] = ()
    """The reasons for which it holds starts back."""
    event: type[SiteShut] | None = None
    """The event of a site that it has shut; None: it shuts none."""
