"""What is seen on the server, in order, summed up by node, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from semaphore_middleware.model.inspection import Inspection, Member
from semaphore_middleware.model.rules import LIMITLESS, Rule


def in_order(seen: Iterable[Inspection]) -> list[Inspection]:
    """The longest line first, then who holds most, then by name."""
    return sorted(seen, key=lambda one: (-len(one.waiters), -len(one.holders), one.scope))


def is_known(seen: Inspection) -> bool:
    """Whether the scope is in use, remembered, or has a rule."""
    numbers = (
        seen.limit,
        seen.next_start,
        seen.backoff_left,
        seen.backoff_last,
        seen.paused,
        seen.set_by,
    )
    return any((*numbers, seen.holders, seen.waiters))


def longest_wait(seen: Inspection) -> float | None:
    """Seconds that the waiter has waited who asked first."""
    return max((waiter.age for waiter in seen.waiters), default=None)


@dataclass
class NodeSum:
    """All that one node holds and waits for."""

    node: str
    holders: list[Member] = field(default_factory=list)
    waiters: list[Member] = field(default_factory=list)
    scopes: set[str] = field(default_factory=set)

    @property
    def oldest(self) -> float | None:
        return max((member.age for member in self.holders), default=None)

    @property
    def longest_wait(self) -> float | None:
        return max((member.age for member in self.waiters), default=None)

    @property
    def lease_left(self) -> float:
        """Of the lease that it has renewed last."""
        return max(member.lease_left for member in (*self.holders, *self.waiters))


def by_node(seen: Iterable[Inspection]) -> list[NodeSum]:
    """The longest line first, then who holds most, then by name."""
    sums: dict[str, NodeSum] = {}
    for scope in seen:
        for part in ("holders", "waiters"):
            for member in getattr(scope, part):
                of_node = sums.setdefault(member.node, NodeSum(member.node))
                getattr(of_node, part).append(member)
                of_node.scopes.add(scope.scope)
    return sorted(sums.values(), key=lambda s: (-len(s.waiters), -len(s.holders), s.node))


def as_json(seen: Sequence[Inspection], rules: Sequence[Rule]) -> dict[str, Any]:
    """Documented in docs/commands.md. Times are in seconds; null where there is nothing."""
    return {
        "scopes": [_scope(one) for one in in_order(seen)],
        "nodes": [_node(one) for one in by_node(seen)],
        "rules": [_rule(rule) for rule in rules],
    }


def _scope(seen: Inspection) -> dict[str, Any]:
    return {
        "scope": seen.scope,
        "held": len(seen.holders),
        "limit": _limit(seen.limit),
        "most": _limit(seen.limit_max),
        "unlimited": seen.limit is not None and seen.limit >= LIMITLESS,
        "waiting": len(seen.waiters),
        "longest_wait": longest_wait(seen),
        "delay": seen.delay or None,
        "next_start": seen.next_start or None,
        "quiet": seen.backoff_left or None,
        "backoff": seen.backoff_last or None,
        "paused": seen.paused,
        "set_by": seen.set_by,
        "grants": seen.grants,
        "holders": [_member(member) for member in seen.holders],
        "waiters": [_member(member) for member in seen.waiters],
    }


def _limit(limit: int | None) -> int | None:
    return None if limit is None or limit >= LIMITLESS else limit


def _member(member: Member) -> dict[str, Any]:
    return {
        "id": member.id,
        "node": member.node,
        "age": member.age,
        "lease_left": member.lease_left,
    }


def _node(one: NodeSum) -> dict[str, Any]:
    return {
        "node": one.node,
        "held": len(one.holders),
        "waiting": len(one.waiters),
        "scopes": len(one.scopes),
        "oldest": one.oldest,
        "longest_wait": one.longest_wait,
        "lease_left": one.lease_left,
    }


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "name": rule.name,
        "limit": _limit(rule.concurrency),
        "unlimited": rule.concurrency is not None and rule.concurrency >= LIMITLESS,
        "delay": rule.delay,
        "jitter": rule.jitter,
        "adaptive": rule.adaptive,
        "paused": rule.paused,
        "set_by": rule.by or None,
    }
