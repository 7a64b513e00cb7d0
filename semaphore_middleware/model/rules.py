"""Rules: what operators set on the server, for a scope or a pattern. They win over all settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from semaphore_middleware.errors import SettingsError
from semaphore_middleware.model.hosts import (
    EVERY,
    is_pattern,
    normal_name,
    parse_name,
    patterns_for,
)
from semaphore_middleware.model.limits import CHECKS, LIMITLESS, Limit, parse_parts

NO_RATE = "none"  # a rate that stands for no rate, whatever the nodes ask for
LABELS_MAX = 10  # of the host in a pattern: for each scope so many patterns are looked up
LIMIT_PARTS = tuple(CHECKS)
PARTS = ("by", *LIMIT_PARTS, "paused")
"""The parts of a rule besides its name; each is set by itself."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What operators have set for a name; None: nothing, so what nodes ask for holds.

    Where several fit a scope, each part is that of the most exact name which sets it.
    """

    name: str
    """A scope, or a pattern: `*.` and a host, a kind and `:*`, or `*` for every scope."""
    by: str
    """Who set it last: a user, or a node."""
    concurrency: int | None = None
    """Requests at once; 10**12 stands for no limit."""
    delay: float | None = None
    """Seconds from one start to the next."""
    jitter: float | None = None
    """Share of the delay by which it varies either way: 0 to 1."""
    adaptive: bool | None = None
    """Whether the number adapts to the site, up to `concurrency`."""
    rate: str | None = None
    """Starts per s, m, h or d, like '60/m'; 'none' stands for no rate."""
    burst: int | None = None
    """How many may start at once after idle time, at that rate."""
    paused: bool | None = None
    """True pauses. False exempts from a paused pattern, until the pattern is paused again. None
    inherits."""

    @property
    def is_pattern(self) -> bool:
        """Whether it is for each scope that a pattern fits, not for one."""
        return is_pattern(self.name)

    @property
    def sets_limit(self) -> bool:
        """Whether it sets a part of the limit: it does more than pause or resume."""
        return any(getattr(self, part) is not None for part in LIMIT_PARTS)

    def fits(self, scope: str) -> bool:
        """Whether it holds for the scope, unless a more exact one says otherwise."""
        return self.name == scope or self.name in patterns_for(scope)


@dataclass(frozen=True, slots=True)
class RuleChange:
    """A change of the rule for one name: parts that are set or unset; all others stay as they are.

    Its constructors raise `SettingsError`, in the words of `SEMAPHORE_LIMITS`.
    """

    names: tuple[str, ...]
    """Spellings of a scope; or a pattern."""
    set: Mapping[str, Any]
    unset: tuple[str, ...] = ()
    forgets: Literal["", "backoff", "all"] = ""
    """Of a scope: the pause that its site's refusals have caused; or all that its answers have
    taught, and the limits of nodes that have no request there any more.
    """

    @classmethod
    def configure(cls, name: str, limit: int | Limit | Mapping[str, Any] | None, by: str) -> Self:
        """Set a limit, or parts of one. A rate of None lifts the rate that the nodes ask for."""
        parts = parse_parts(limit, f"the limit of {name!r}")
        if "concurrency" in parts:
            parts["concurrency"] = min(parts["concurrency"] or LIMITLESS, LIMITLESS)
        lifts_rate = "rate" in parts and parts["rate"] is None
        if lifts_rate:
            parts["rate"] = NO_RATE
        return cls(_names(name), {**parts, "by": by}, unset=("burst",) if lifts_rate else ())

    @classmethod
    def pause(cls, name: str, by: str) -> Self:
        """Let nothing start."""
        return cls(_names(name, may_be_every=True), {"paused": True, "by": by})

    @classmethod
    def resume(
        cls, name: str, by: str, is_above_paused: bool = False, has_limit: bool = False
    ) -> Self:
        """Take a pause back.

        If a pattern that the scope fits `is_above_paused`, the scope is set to go on in spite of
        that. Else nothing is left of the rule unless it `has_limit`.
        """
        names = _names(name, may_be_every=True)
        if is_above_paused:
            return cls(names, {"paused": False, "by": by}, forgets="backoff")
        unset = ("paused",) if has_limit else ("paused", "by")
        return cls(names, {}, unset=unset, forgets="backoff")

    @classmethod
    def follow(cls, rule: Rule) -> Self:
        """Take back that a name goes on although a pattern is paused."""
        return cls((rule.name,), {}, unset=("paused",) if rule.sets_limit else ("paused", "by"))

    @classmethod
    def reset(cls, name: str) -> Self:
        """Remove the rule."""
        return cls(_names(name), {}, unset=PARTS, forgets="all")

    @classmethod
    def reset_all(cls, names: Iterable[str]) -> Self:
        """Remove the rules of these names; what sites' answers have taught stays."""
        return cls(tuple(names), {}, unset=PARTS)

    @property
    def is_pattern(self) -> bool:
        """Whether it is for each scope that a pattern fits, not for one."""
        return is_pattern(self.names[0])


def patterns_above(names: Iterable[str]) -> list[str]:
    """All patterns other than these names that one of them fits."""
    patterns: dict[str, None] = {}
    for name in names:
        patterns.update(dict.fromkeys(patterns_for(name)))
    return [pattern for pattern in patterns if pattern not in names]


def _names(name: str, may_be_every: bool = False) -> tuple[str, ...]:
    """Spellings of a scope: as it was written, and as the URLs of its requests have a host."""
    if may_be_every and name == EVERY:
        return (EVERY,)
    where = f"the limit of {name!r}"
    name = parse_name(name, where)
    if name.startswith("*.") and name.count(".") > LABELS_MAX:
        raise SettingsError(f"{where}: allowed are at most {LABELS_MAX} labels after '*.'")
    return tuple(dict.fromkeys((name, normal_name(name))))
