"""All scopes, nodes and rules at one moment: the rows that `status`, `watch` and the page show."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from hashlib import sha1
from typing import Any, Self

from semaphore_middleware.model.inspection import Inspection, Member
from semaphore_middleware.model.rules import LIMITLESS, Rule


@dataclass(frozen=True, slots=True)
class ScopeRow:
    """One scope. Times are in seconds; None where there is nothing. docs/commands.md has each."""

    id: str
    scope: str
    held: int
    limit: int | None
    limit_max: int | None
    unlimited: bool
    waiting: int
    longest_wait: float | None
    rate: float | None
    delay: float | None
    next_start: float | None
    backoff_left: float | None
    backoff_last: float | None
    paused: bool
    set_by: str | None
    grants: int
    holders: tuple[Member, ...]
    waiters: tuple[Member, ...]

    @classmethod
    def of(cls, seen: Inspection, rate: float | None = None) -> Self:
        """From the server's answer, and the permits granted a second."""
        limit, unlimited = _limit(seen.limit)
        return cls(
            id=scope_id(seen.scope),
            scope=seen.scope,
            held=len(seen.holders),
            limit=limit,
            limit_max=_limit(seen.limit_max)[0],
            unlimited=unlimited,
            waiting=len(seen.waiters),
            longest_wait=max((waiter.age for waiter in seen.waiters), default=None),
            rate=rate,
            delay=seen.delay or None,
            next_start=seen.next_start or None,
            backoff_left=seen.backoff_left or None,
            backoff_last=seen.backoff_last or None,
            paused=seen.paused,
            set_by=seen.set_by,
            grants=seen.grants,
            holders=seen.holders,
            waiters=seen.waiters,
        )


@dataclass(frozen=True, slots=True)
class NodeRow:
    """All that one node holds and waits for. Times are in seconds; None where there is nothing."""

    node: str
    held: int
    waiting: int
    scopes: int
    oldest: float | None
    longest_wait: float | None
    lease_left: float

    @classmethod
    def of(cls, node: str, holders: list[Member], waiters: list[Member], scopes: int) -> Self:
        """From the permits that the node holds and waits for, and the number of their scopes."""
        return cls(
            node=node,
            held=len(holders),
            waiting=len(waiters),
            scopes=scopes,
            oldest=max((holder.age for holder in holders), default=None),
            longest_wait=max((waiter.age for waiter in waiters), default=None),
            lease_left=max(member.lease_left for member in (*holders, *waiters)),
        )


@dataclass(frozen=True, slots=True)
class RuleRow:
    """What an operator has set for a scope or a pattern; None: left to the nodes' settings."""

    name: str
    limit: int | None
    unlimited: bool
    delay: float | None
    jitter: float | None
    adaptive: bool | None
    paused: bool | None
    set_by: str | None

    @classmethod
    def of(cls, rule: Rule) -> Self:
        """From a rule of the server's."""
        limit, unlimited = _limit(rule.concurrency)
        return cls(
            name=rule.name,
            limit=limit,
            unlimited=unlimited,
            delay=rule.delay,
            jitter=rule.jitter,
            adaptive=rule.adaptive,
            paused=rule.paused,
            set_by=rule.by or None,
        )

    @property
    def is_pattern(self) -> bool:
        """Whether it is for each host below one, not for a scope."""
        return self.name.startswith("*.")


@dataclass(frozen=True, slots=True)
class Totals:
    """All scopes together. Times are in seconds; None where there is nothing."""

    scopes: int
    nodes: int
    held: int
    waiting: int
    longest_wait: float | None
    rate: float | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One survey of the server, as rows in the order of the tables."""

    totals: Totals
    scopes: tuple[ScopeRow, ...]
    """The longest line first, then the most permits held, then by name."""
    nodes: tuple[NodeRow, ...]
    """In the same order."""
    rules: tuple[RuleRow, ...]
    """By name."""

    @classmethod
    def of(
        cls,
        seen: Iterable[Inspection],
        rules: Iterable[Rule],
        rates: Mapping[str, float] | None = None,
    ) -> Self:
        """`rates` are permits granted a second, by scope; None: not known yet."""
        scopes = [ScopeRow.of(one, None if rates is None else rates[one.scope]) for one in seen]
        nodes = _nodes(scopes)
        totals = Totals(
            scopes=len(scopes),
            nodes=len(nodes),
            held=sum(row.held for row in scopes),
            waiting=sum(row.waiting for row in scopes),
            longest_wait=max(
                (row.longest_wait or 0.0 for row in scopes if row.waiting), default=None
            ),
            rate=None if rates is None else round(sum(rates.values()), 2),
        )
        return cls(
            totals,
            tuple(in_order(scopes)),
            tuple(sorted(nodes, key=lambda row: (-row.waiting, -row.held, row.node))),
            tuple(RuleRow.of(rule) for rule in rules),
        )


def in_order(rows: Iterable[ScopeRow]) -> list[ScopeRow]:
    """The longest line first, then the most permits held, then by name."""
    return sorted(rows, key=lambda row: (-row.waiting, -row.held, row.scope))


def as_json(value: object, leave_out: Collection[str] = ()) -> Any:
    """A snapshot or a part of it as JSON has it: the one schema, documented in docs/commands.md."""
    if isinstance(value, Member):
        return {
            "id": value.id,
            "node": value.node,
            "age": value.age,
            "lease_left": value.lease_left,
        }
    if isinstance(value, tuple):
        return [as_json(one) for one in value]
    if not is_dataclass(value):
        return value
    names = [field.name for field in fields(value) if field.name not in leave_out]
    return {name: as_json(getattr(value, name)) for name in names}


def scope_id(scope: str) -> str:
    """A short name for a scope of any length and any letters, fit for URLs."""
    return sha1(scope.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()[:16]


def _limit(limit: int | None) -> tuple[int | None, bool]:
    """The limit, and whether an operator has lifted it: then there is no number."""
    unlimited = limit is not None and limit >= LIMITLESS
    return None if unlimited else limit, unlimited


def _nodes(scopes: Iterable[ScopeRow]) -> list[NodeRow]:
    holders: dict[str, list[Member]] = {}
    waiters: dict[str, list[Member]] = {}
    used: dict[str, int] = {}
    for row in scopes:
        for member in row.holders:
            holders.setdefault(member.node, []).append(member)
        for member in row.waiters:
            waiters.setdefault(member.node, []).append(member)
        for node in {member.node for member in (*row.holders, *row.waiters)}:
            used[node] = used.get(node, 0) + 1
    return [
        NodeRow.of(node, holders.get(node, []), waiters.get(node, []), count)
        for node, count in used.items()
    ]


EMPTY = Snapshot.of((), ())
