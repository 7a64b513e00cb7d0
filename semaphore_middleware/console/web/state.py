"""What browsers are told: scopes, rules and totals, found, sorted and cut as each one asks for it.

Names come from URLs and other programs: here they are data, and in the browser text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha1
from operator import itemgetter
from typing import Any, Self

from semaphore_middleware.errors import SettingsError
from semaphore_middleware.model.inspection import Inspection, Member
from semaphore_middleware.model.rules import Rule

SHOWN = 200  # scopes, and rules; of more than that nobody reads a table
MEMBERS = 100  # holders, and waiters, of the scope that is looked into


@dataclass(frozen=True, slots=True)
class Seen:
    """One survey of the server."""

    time: float
    """When it was, in seconds of the monotonic clock."""
    scopes: Sequence[Inspection] = ()
    rules: Sequence[Rule] = ()
    rates: Mapping[str, float] = field(default_factory=dict)
    """Grants a second, since the survey before; empty if there was none."""

    @classmethod
    def after(
        cls, before: Seen | None, time: float, scopes: Sequence[Inspection], rules: Sequence[Rule]
    ) -> Self:
        if before is None or time <= before.time:
            return cls(time, scopes, rules)
        grants = {seen.scope: seen.grants for seen in before.scopes}
        rates = {}
        for seen in scopes:
            new = seen.grants - grants.get(seen.scope, 0)
            # Fewer than before: the scope was idle meanwhile, and all of these are new.
            rates[seen.scope] = (new if new >= 0 else seen.grants) / (time - before.time)
        return cls(time, scopes, rules, rates)


SORTS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    **{name: itemgetter(name) for name in ("scope", "held", "waiting", "longest", "delay", "next")},
    "rate": lambda row: row["rate"] or 0.0,
    "state": itemgetter("paused", "quiet", "backoff"),
    "by": lambda row: row["by"] or "",
}


@dataclass(frozen=True, slots=True)
class View:
    """What one browser wants to see of it."""

    match: str = ""
    """Only scopes whose names contain this, in upper or lower case."""
    sort: str = "waiting"
    down: bool = True
    opened: str = ""
    """The id of the scope whose holders and waiters are wanted."""

    @classmethod
    def read(cls, arguments: Mapping[str, str]) -> Self:
        """From a URL's query. Raises `SettingsError`."""
        sort = arguments.get("sort", "waiting")
        if sort not in SORTS:
            raise SettingsError(f"sort = {sort!r}: allowed is one of {', '.join(SORTS)}")
        down = arguments.get("down", "1")
        if down not in ("0", "1"):
            raise SettingsError(f"down = {down!r}: allowed is 0 or 1")
        return cls(arguments.get("match", "").strip(), sort, down == "1", arguments.get("open", ""))


def state(seen: Seen, view: View) -> dict[str, Any]:
    """What the page shows. Times are in seconds, rates in grants a second."""
    wanted = view.match.casefold()
    rows = [
        _row(one, seen.rates.get(one.scope))
        for one in seen.scopes
        if wanted in one.scope.casefold()
    ]
    # By name first: the sort that counts keeps that order among equals, either way up.
    rows.sort(key=itemgetter("scope"))
    rows.sort(key=SORTS[view.sort], reverse=view.down)
    return {
        "totals": _totals(seen),
        "matching": len(rows),
        "scopes": rows[:SHOWN],
        "opened": next(
            (
                _opened(one, seen.rates.get(one.scope))
                for one in seen.scopes
                if view.opened == scope_id(one.scope)
            ),
            None,
        ),
        "rules": [_rule(rule) for rule in seen.rules[:SHOWN]],
        "more_rules": max(0, len(seen.rules) - SHOWN),
    }


def scope_id(scope: str) -> str:
    """A short name for a scope of any length and any letters, fit for URLs."""
    return sha1(scope.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()[:16]


def longest(seen: Inspection) -> float:
    return max((waiter.age for waiter in seen.waiters), default=0.0)


def _totals(seen: Seen) -> dict[str, Any]:
    members = [member for one in seen.scopes for member in (*one.holders, *one.waiters)]
    return {
        "scopes": len(seen.scopes),
        "nodes": len({member.node for member in members}),
        "held": sum(len(one.holders) for one in seen.scopes),
        "waiting": sum(len(one.waiters) for one in seen.scopes),
        "longest": max(map(longest, seen.scopes), default=0.0),
        "rate": round(sum(seen.rates.values()), 2) if seen.rates else None,
    }


def _row(seen: Inspection, rate: float | None) -> dict[str, Any]:
    return {
        "id": scope_id(seen.scope),
        "scope": seen.scope,
        "held": len(seen.holders),
        "limit": seen.limit,
        "most": seen.limit_max,
        "waiting": len(seen.waiters),
        "longest": longest(seen),
        "rate": None if rate is None else round(rate, 2),
        "delay": seen.delay,
        "next": seen.next_start,
        "quiet": seen.backoff_left,
        "backoff": seen.backoff_last,
        "paused": seen.paused,
        "by": seen.set_by,
    }


def _opened(seen: Inspection, rate: float | None) -> dict[str, Any]:
    return {
        **_row(seen, rate),
        "holders": [_member(holder) for holder in seen.holders[:MEMBERS]],
        "waiters": [_member(waiter) for waiter in seen.waiters[:MEMBERS]],
        "more_holders": max(0, len(seen.holders) - MEMBERS),
        "more_waiters": max(0, len(seen.waiters) - MEMBERS),
    }


def _member(member: Member) -> dict[str, Any]:
    return {"node": member.node, "age": member.age, "left": member.lease_left}


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "name": rule.name,
        "limit": rule.concurrency,
        "delay": rule.delay,
        "jitter": rule.jitter,
        "adaptive": rule.adaptive,
        "paused": rule.paused,
        "by": rule.by,
    }
