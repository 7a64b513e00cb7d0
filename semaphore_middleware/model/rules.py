"""Operators' rules on the server, for a scope or a pattern. They win over all settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from semaphore_middleware.errors import SettingsError
from semaphore_middleware.model.hosts import (
    EVERY,
    is_pattern,
    parse_name,
    patterns_for,
)
from semaphore_middleware.model.limits import BY_NAME, PARTS, GivenLimit, parse_parts

LABELS_MAX = 10  # of the host in a pattern: as many patterns are looked up for each scope
RULE_PARTS = (*BY_NAME, "paused")
"""The parts of a rule; each is set by itself."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The parts set by operators for a name; the nodes' settings decide about all other parts.

    If several rules fit a scope, each part comes from the most exact name with that part.
    """

    name: str
    """A scope, or a pattern: `*.` and a host, a kind and `:*`, or `*` for every scope."""
    by: str
    """The last to set it: a user, or a node."""
    limit: Mapping[str, Any] = field(default_factory=dict)
    """Parts of a limit, by name. A 'concurrency' of 10**12: no limit; a 'rate' 'none': no rate."""
    paused: bool | None = None
    """True pauses, False exempts from a pattern's pause until its next one, None inherits."""

    @property
    def is_pattern(self) -> bool:
        """True for a pattern, false for one scope."""
        return is_pattern(self.name)

    def fits(self, scope: str) -> bool:
        """True if it applies to the scope, unless a more exact rule differs."""
        return self.name == scope or self.name in patterns_for(scope)


@dataclass(frozen=True, slots=True)
class LoggedChange:
    """An operator's change of the rule for a name, as kept in the log of changes."""

    at: float
    """Unix time, in seconds."""
    name: str
    by: str
    """Who made it: a user, or a node."""
    rule: Mapping[str, Any]
    """The parts of the rule from then on, by name, without `by`; empty: none is set."""

    def fits(self, scope: str) -> bool:
        """True if it applies to this scope."""
        return Rule(self.name, by="").fits(scope)


@dataclass(frozen=True, slots=True)
class RuleChange:
    """A change of the rule for one name: parts to set and to unset; all others stay as they are.

    Its constructors raise `SettingsError`, in the words of `SEMAPHORE_LIMITS`.
    """

    names: tuple[str, ...]
    """A scope, or a pattern; several only if all rules are removed."""
    by: str
    """Who makes it: a user, or a node."""
    set: Mapping[str, Any] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    forgets: Literal["", "backoff", "all"] = ""
    """A scope's state to forget: 'backoff' is the pause after refusals. 'all' is everything learned
    from the site's answers, and the limits of nodes without requests there.
    """
    text: str = ""
    """What its author has done, for the nodes' logs: paused example.com."""

    @classmethod
    def configure(cls, name: str, limit: GivenLimit, by: str) -> Self:
        """Set a limit, or parts of one. A rate of None lifts the rate of the nodes' settings."""
        parts = parse_parts(limit, f"the limit of {name!r}")
        lifted = [part for part, value in parts.items() if value is None]
        parts |= {part: BY_NAME[part].lifted for part in lifted}
        unset = tuple(part.name for part in PARTS if part.needs_it and part.of in lifted)
        names = _names(name)
        words = [part.word(parts[part.name]) for part in PARTS if part.name in parts]
        return cls(names, by, parts, unset, text=f"set {', '.join(words)} for {names[0]}")

    @classmethod
    def pause(cls, name: str, by: str) -> Self:
        """Pause: no request may start."""
        names = _names(name, may_be_every=True)
        return cls(names, by, {"paused": True}, text=f"paused {_named(names)}")

    @classmethod
    def resume(cls, name: str, by: str, is_pattern_paused: bool = False) -> Self:
        """End a pause. `is_pattern_paused`: a pattern pauses it, too, so exempt it from that."""
        names = _names(name, may_be_every=True)
        text = f"resumed {_named(names)}"
        if is_pattern_paused:
            return cls(names, by, {"paused": False}, forgets="backoff", text=text)
        return cls(names, by, unset=("paused",), forgets="backoff", text=text)

    @classmethod
    def end_exemption(cls, rule: Rule, by: str) -> Self:
        """Remove a name's exemption from paused patterns."""
        return cls((rule.name,), by, unset=("paused",))

    @classmethod
    def reset(cls, name: str, by: str) -> Self:
        """Remove the rule."""
        names = _names(name)
        return cls(names, by, unset=RULE_PARTS, forgets="all", text=f"reset {names[0]}")

    @classmethod
    def reset_all(cls, names: Iterable[str], by: str) -> Self:
        """Remove the rules of these names. Everything learned from sites' answers stays."""
        return cls(tuple(names), by, unset=RULE_PARTS, text="removed all rules")

    @property
    def is_pattern(self) -> bool:
        """True for a pattern, false for one scope."""
        return is_pattern(self.names[0])


def _named(names: tuple[str, ...]) -> str:
    return "all sites" if names == (EVERY,) else ", ".join(names)


def patterns_above(names: Iterable[str]) -> list[str]:
    """All patterns fitting one of these names, without the names themselves."""
    patterns: dict[str, None] = {}
    for name in names:
        patterns.update(dict.fromkeys(patterns_for(name)))
    return [pattern for pattern in patterns if pattern not in names]


def _names(name: str, may_be_every: bool = False) -> tuple[str, ...]:
    """The checked name of a scope or a pattern, as requests have it."""
    if may_be_every and name == EVERY:
        return (EVERY,)
    where = f"the limit of {name!r}"
    name = parse_name(name, where)
    if name.startswith("*.") and name.count(".") > LABELS_MAX:
        raise SettingsError(f"{where}: allowed are at most {LABELS_MAX} labels after '*.'")
    return (name,)
