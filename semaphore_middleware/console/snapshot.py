"""All scopes, nodes and rules at one moment: the rows in `status`, `watch` and the page."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from hashlib import sha1
from typing import Any, Self

from semaphore_middleware.model.hosts import is_pattern
from semaphore_middleware.model.inspection import Inspection, Member, ServerState
from semaphore_middleware.model.limits import LIMITLESS
from semaphore_middleware.model.rules import Rule

NAMED_NODES_MAX = 10  # that ask for a stricter limit at a scope


@dataclass(frozen=True, slots=True)
class ScopeRow:
    """One scope. Times are in seconds; None: there is nothing. Fields: see docs/commands.md."""

    id: str
    scope: str
    held: int
    limit: int | None
    limit_max: int | None
    unlimited: bool
    waiting: int
    longest_wait: float | None
    starts_per_second: float | None
    delay: float | None
    rate: str | None
    burst: int | None
    next_start: float | None
    backoff_left: float | None
    backoff_last: float | None
    down_for: float | None
    paused: bool
    set_by: str | None
    asked_by: tuple[str, ...]
    started: int
    nodes: tuple[Member, ...]

    @classmethod
    def of(cls, seen: Inspection, starts_per_second: float | None = None) -> Self:
        """A row from the server's answer and the scope's starts a second."""
        limit, unlimited = _limit(seen.limit)
        return cls(
            id=scope_id(seen.scope),
            scope=seen.scope,
            held=seen.held,
            limit=limit,
            limit_max=_limit(seen.limit_max)[0],
            unlimited=unlimited,
            waiting=seen.waiting,
            longest_wait=_longest_wait(seen.members),
            starts_per_second=starts_per_second,
            delay=seen.delay or None,
            rate=seen.rate,
            burst=seen.burst if seen.rate else None,
            next_start=seen.next_start or None,
            backoff_left=seen.backoff_left or None,
            backoff_last=seen.backoff_last or None,
            down_for=seen.down_for,
            paused=seen.paused,
            set_by=seen.set_by,
            asked_by=tuple(member.node for member in seen.strictest[:NAMED_NODES_MAX]),
            started=seen.started,
            nodes=seen.members,
        )


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node over all its scopes. Times are in seconds; None: there is nothing."""

    node: str
    held: int
    waiting: int
    scopes: int
    oldest: float | None
    longest_wait: float | None
    lease_left: float

    @classmethod
    def of(cls, node: str, members: Sequence[Member]) -> Self:
        """A row from the node's permits and waiting requests at each of its scopes."""
        return cls(
            node=node,
            held=sum(member.held for member in members),
            waiting=sum(member.waiting for member in members),
            scopes=len(members),
            oldest=max((member.oldest for member in members if member.held), default=None),
            longest_wait=_longest_wait(members),
            lease_left=max(member.lease_left for member in members),
        )


@dataclass(frozen=True, slots=True)
class RuleRow:
    """An operator's rule for a scope or a pattern; None: left to the nodes' settings."""

    name: str
    limit: int | None
    unlimited: bool
    delay: float | None
    jitter: float | None
    adaptive: bool | None
    rate: str | None
    burst: int | None
    paused: bool | None
    set_by: str | None

    @classmethod
    def of(cls, rule: Rule) -> Self:
        """A row from the server's rule."""
        limit, unlimited = _limit(rule.concurrency)
        return cls(
            name=rule.name,
            limit=limit,
            unlimited=unlimited,
            delay=rule.delay,
            jitter=rule.jitter,
            adaptive=rule.adaptive,
            rate=rule.rate,
            burst=rule.burst,
            paused=rule.paused,
            set_by=rule.by or None,
        )

    @property
    def is_pattern(self) -> bool:
        """True for a pattern, False for the name of one scope."""
        return is_pattern(self.name)


@dataclass(frozen=True, slots=True)
class Totals:
    """All scopes together. Times are in seconds; None: there is nothing."""

    scopes: int
    nodes: int
    held: int
    waiting: int
    longest_wait: float | None
    starts_per_second: float | None
    recovery_left: float | None
    silent_for: float | None


IN_USE = ServerState()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One survey of the server, as rows in the order of the tables."""

    totals: Totals
    scopes: tuple[ScopeRow, ...]
    """The most waiting requests first, then the most permits held, then by name."""
    nodes: tuple[NodeRow, ...]
    """In the same order."""
    rules: tuple[RuleRow, ...]
    """By name."""

    @classmethod
    def of(
        cls,
        seen: Iterable[Inspection],
        rules: Iterable[Rule],
        starts_per_second: Mapping[str, float] | None = None,
        server: ServerState = IN_USE,
    ) -> Self:
        """A snapshot from a survey. `starts_per_second` is by scope; None: not known yet."""
        starts = starts_per_second
        scopes = [ScopeRow.of(one, None if starts is None else starts[one.scope]) for one in seen]
        nodes = _nodes(scopes)
        leases_end = max((row.lease_left for row in nodes), default=0.0)
        totals = Totals(
            scopes=len(scopes),
            nodes=len(nodes),
            held=sum(row.held for row in scopes),
            waiting=sum(row.waiting for row in scopes),
            longest_wait=max(
                (row.longest_wait or 0.0 for row in scopes if row.waiting), default=None
            ),
            starts_per_second=None if starts is None else round(sum(starts.values()), 2),
            recovery_left=server.recovery_left or None,
            silent_for=server.silent_for if server.silent_for > leases_end > 0 else None,
        )
        return cls(
            totals,
            tuple(in_order(scopes)),
            tuple(sorted(nodes, key=lambda row: (-row.waiting, -row.held, row.node))),
            tuple(RuleRow.of(rule) for rule in rules),
        )


def in_order(rows: Iterable[ScopeRow]) -> list[ScopeRow]:
    """The most waiting requests first, then the most permits held, then by name."""
    return sorted(rows, key=lambda row: (-row.waiting, -row.held, row.scope))


def as_json(value: object, leave_out: Collection[str] = ()) -> Any:
    """A snapshot or a part of it for JSON, by the one schema in docs/commands.md."""
    if isinstance(value, Member):
        return {
            "node": value.node,
            "held": value.held,
            "waiting": value.waiting,
            "oldest": value.oldest if value.held else None,
            "longest_wait": value.longest_wait if value.waiting else None,
            "lease_left": value.lease_left,
            "limit": _limit(value.asks_for.concurrency)[0],
            "delay": value.asks_for.delay,
            "rate": value.asks_for.rate,
            "burst": value.asks_for.burst,
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
    """The limit and False; None and True if an operator has lifted the limit."""
    unlimited = limit is not None and limit >= LIMITLESS
    return None if unlimited else limit, unlimited


def _longest_wait(members: Iterable[Member]) -> float | None:
    return max((member.longest_wait for member in members if member.waiting), default=None)


def _nodes(scopes: Iterable[ScopeRow]) -> list[NodeRow]:
    members: dict[str, list[Member]] = {}
    for row in scopes:
        for member in row.nodes:
            members.setdefault(member.node, []).append(member)
    return [NodeRow.of(node, of_node) for node, of_node in members.items()]


EMPTY = Snapshot.of((), ())
