"""All scopes, nodes and rules at one moment: what `status`, `watch` and the page show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha1
from typing import Any, Self, TypeVar

from semaphore_middleware.errors import SettingsError
from semaphore_middleware.link.text import time_of
from semaphore_middleware.model.hosts import (
    ALL,
    EVERY,
    clean,
    refuse_hosts,
    refuse_url,
    refuse_void,
    scope_name,
)
from semaphore_middleware.model.inspection import Inspection, Member, ServerState
from semaphore_middleware.model.limits import LIMITLESS, PARTS
from semaphore_middleware.model.reasons import BY_NAME
from semaphore_middleware.model.rules import Rule
from semaphore_middleware.operators.admin import Admin
from semaphore_middleware.operators.formatting import short_name
from semaphore_middleware.operators.verbs import CommandError, Status

FURTHER = PARTS[1:]  # of a limit, besides the concurrency
NAMED_NODES_MAX = 10  # nodes listed that ask for a scope's strictest limit


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node's sums over all its scopes. Times are in seconds; 0: there is nothing."""

    node: str
    held: int
    waiting: int
    scopes: int
    oldest: float
    longest_wait: float
    lease_left: float

    @classmethod
    def of(cls, node: str, members: Sequence[Member]) -> Self:
        """A row from the node's permits and waiting requests at each of its scopes."""
        return cls(
            node=node,
            held=sum(member.held for member in members),
            waiting=sum(member.waiting for member in members),
            scopes=len(members),
            oldest=max(member.oldest for member in members),
            longest_wait=max(member.longest_wait for member in members),
            lease_left=max(member.lease_left for member in members),
        )


@dataclass(frozen=True, slots=True)
class Totals:
    """The sums over all scopes. Times are in seconds; None: there is nothing."""

    scopes: int
    nodes: int
    held: int
    waiting: int
    longest_wait: float | None
    starts_per_second: float | None
    recovery_left: float | None
    silent_for: float | None


Row = TypeVar("Row", Inspection, NodeRow)
ORDERS: Mapping[str, Callable[[Inspection | NodeRow], tuple[Any, ...]]] = {
    "waiting": lambda row: (
        _is_paused(row),
        -row.waiting,
        not _is_closed(row),
        -row.held,
        _name(row),
    ),
    "held": lambda row: (_is_paused(row), -row.held, -row.waiting, _name(row)),
    "wait": lambda row: (_is_paused(row), -row.longest_wait, -row.waiting, _name(row)),
    "host": lambda row: (_name(row),),
}
"""Sort keys, by an order's name: the largest first, and paused scopes last. By `waiting`, closed
scopes come before those that only hold permits.
"""


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice of scopes and nodes to show, and their order."""

    match: str = ""
    """A part of a name, in upper or lower case. It also chooses a scope by its nodes' names, and a
    node by its scopes' names."""
    order: str = "waiting"
    """One of `ORDERS`."""
    only_waiting: bool = False
    """Only those with waiting requests."""
    top: int | None = None
    """At most this many of each; None: all."""

    def scopes(self, rows: Iterable[Inspection]) -> list[Inspection]:
        """The chosen scopes."""
        if not self.match:
            return self._of(rows)
        return self._of(
            row
            for row in rows
            if self._fits(row.scope) or any(self._fits(member.node) for member in row.members)
        )

    def nodes(self, rows: Iterable[NodeRow], scopes: Iterable[Inspection]) -> list[NodeRow]:
        """The chosen nodes; `scopes` are all scopes where they may be."""
        if not self.match:
            return self._of(rows)
        there = {m.node for row in scopes if self._fits(row.scope) for m in row.members}
        return self._of(row for row in rows if self._fits(row.node) or row.node in there)

    def _of(self, rows: Iterable[Row]) -> list[Row]:
        found = [row for row in rows if row.waiting or not self.only_waiting]
        return sorted(found, key=ORDERS[self.order])[: self.top]

    def _fits(self, name: str) -> bool:
        return self.match.casefold() in name.casefold()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One survey of the server; `chosen` has the order of the tables."""

    totals: Totals
    scopes: tuple[Inspection, ...]
    nodes: tuple[NodeRow, ...]
    rules: tuple[Rule, ...]
    """By name."""
    starts: Mapping[str, float] | None = None
    """Requests started per second, by scope; None: not known yet."""
    is_silent: bool = False
    """No node has called for longer than any lease had left."""

    @classmethod
    def of(
        cls,
        seen: Iterable[Inspection],
        rules: Iterable[Rule],
        starts: Mapping[str, float] | None = None,
        server: ServerState | None = None,
    ) -> Self:
        """A snapshot from a survey."""
        scopes, server = tuple(seen), server or ServerState()
        members: dict[str, list[Member]] = {}
        for scope in scopes:
            for member in scope.members:
                members.setdefault(member.node, []).append(member)
        nodes = [NodeRow.of(node, of_node) for node, of_node in members.items()]
        leases_end = max((row.lease_left for row in nodes), default=0.0)
        totals = Totals(
            scopes=len(scopes),
            nodes=len(nodes),
            held=sum(row.held for row in nodes),
            waiting=sum(row.waiting for row in nodes),
            longest_wait=max((row.longest_wait for row in nodes if row.waiting), default=None),
            starts_per_second=None if starts is None else round(sum(starts.values()), 2),
            recovery_left=server.recovery_left or None,
            silent_for=(server.silent_for or None) if leases_end > 0 else None,
        )
        is_silent = server.silent_for > leases_end > 0
        return cls(totals, scopes, tuple(nodes), tuple(rules), starts, is_silent)

    def chosen(self, choice: Choice) -> Self:
        """A snapshot of the chosen scopes and nodes, with the totals of all."""
        scopes, nodes = choice.scopes(self.scopes), choice.nodes(self.nodes, self.scopes)
        return replace(self, scopes=tuple(scopes), nodes=tuple(nodes))

    def starts_of(self, scope: str) -> float | None:
        """Requests started per second at a scope; None: not known yet."""
        return None if self.starts is None else self.starts[scope]

    @property
    def notice(self) -> str:
        """Why no permit is granted anywhere, or why held ones do not expire; empty: no reason."""
        if self.totals.recovery_left:
            return BY_NAME["recovery"].text(self.totals.recovery_left)
        for rule in self.rules:
            if rule.name == EVERY and rule.paused:
                return f"All sites are paused, by {short_name(rule.by)}, until 'resume --all'."
        if self.is_silent and self.totals.silent_for:
            silent = time_of(self.totals.silent_for)
            return (
                f"No node has called for {silent}. Held permits are free within a lease after the "
                "next call."
            )
        return ""

    def as_json(self) -> dict[str, Any]:
        """The snapshot, by the schema in docs/commands.md."""
        return {
            "totals": asdict(self.totals),
            "scopes": [{**self.scope_as_json(row), **nodes_as_json(row)} for row in self.scopes],
            "nodes": [*map(node_as_json, self.nodes)],
            "rules": [*map(rule_as_json, self.rules)],
        }

    def scope_as_json(self, row: Inspection) -> dict[str, Any]:
        """A scope without its nodes."""
        limit, unlimited = _limit(row.limit)
        return {
            "id": scope_id(row.scope),
            "scope": row.scope,
            "held": row.held,
            "limit": limit,
            "limit_max": _limit(row.limit_max)[0],
            "unlimited": unlimited,
            "waiting": row.waiting,
            "longest_wait": row.longest_wait if row.waiting else None,
            "starts_per_second": self.starts_of(row.scope),
            **{
                part.name: getattr(row.effective, part.name)
                if getattr(row.effective, part.of or part.name)
                else None
                for part in FURTHER
            },
            "next_start": row.next_start or None,
            "learned": row.learned or None,
            "backoff_left": row.backoff_left or None,
            "backoff_last": row.backoff_last or None,
            **row.of_policies,
            "paused": row.paused,
            "state": row.state,
            "kind": row.reason and row.reason.kind,
            "wait": row.wait,
            "why": row.why or None,
            "set_by": row.set_by,
            "asked_by": [member.node for member in row.strictest[:NAMED_NODES_MAX]],
            "started": row.started,
        }


def nodes_as_json(row: Inspection, most: int | None = None) -> dict[str, Any]:
    """The nodes and the jobs at a scope, at most `most` of each."""
    return {
        "nodes": [*map(_member_as_json, row.members[:most])],
        "jobs": [*map(asdict, row.jobs[:most])],
    }


def _member_as_json(member: Member) -> dict[str, Any]:
    """A node at one scope."""
    limit = member.asks_for
    return {
        "node": member.node,
        "job": member.job,
        "held": member.held,
        "waiting": member.waiting,
        "oldest": member.oldest if member.held else None,
        "longest_wait": member.longest_wait if member.waiting else None,
        "lease_left": member.lease_left,
        "failures": member.failures,
        "limit": _limit(limit.concurrency)[0],
        **{part.name: getattr(limit, part.name) for part in FURTHER},
    }


def node_as_json(row: NodeRow) -> dict[str, Any]:
    """A node over all its scopes."""
    return {
        **asdict(row),
        "oldest": row.oldest if row.held else None,
        "longest_wait": row.longest_wait if row.waiting else None,
    }


def rule_as_json(rule: Rule) -> dict[str, Any]:
    """An operator's rule for a scope or a pattern."""
    limit, unlimited = _limit(rule.limit.get("concurrency"))
    parts = {part.name: rule.limit.get(part.name) for part in FURTHER}
    return {
        "name": rule.name,
        "limit": limit,
        "unlimited": unlimited,
        **parts,
        "paused": rule.paused,
        "set_by": rule.by or None,
    }


def scope_id(scope: str) -> str:
    """A short id of a scope, fit for URLs."""
    return sha1(scope.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()[:16]


def _limit(limit: int | None) -> tuple[int | None, bool]:
    """The limit and False; None and True if an operator has lifted the limit."""
    unlimited = limit is not None and limit >= LIMITLESS
    return None if unlimited else limit, unlimited


def _is_paused(row: Inspection | NodeRow) -> bool:
    return isinstance(row, Inspection) and row.paused


def _is_closed(row: Inspection | NodeRow) -> bool:
    reason = row.reason if isinstance(row, Inspection) else None
    return reason is not None and reason.kind == "closed"


def _name(row: Inspection | NodeRow) -> str:
    return row.scope if isinstance(row, Inspection) else row.node


EMPTY = Snapshot.of((), ())


# By name -----------------------------------------------------------------------------------------


async def look_at(admin: Admin, names: Sequence[str]) -> Snapshot:
    """The scopes of these names, and the operators' rules for them.

    Raises `CommandError` for an unknown name, and `SettingsError` for an unknown URL.
    """
    rules = await admin.rules()
    seen: dict[str, Inspection] = {}
    names = [*map(scope_name, names)]
    for name in names:
        pattern = Rule(name, by="")
        if pattern.is_pattern:
            found = [row for row in await admin.survey() if pattern.fits(row.scope)]
        else:
            found = [row] if _is_known(row := await admin.inspect(name)) else []
        if not found and name not in [rule.name for rule in rules]:
            await check_name(admin, "status", name)
            raise CommandError(f"nothing is known of {clean(name)!r}", Status.UNKNOWN)
        seen.update((row.scope, row) for row in found)
    asked = {*names, *seen}
    fitting = [rule for rule in rules if any(rule.fits(name) for name in asked)]
    return Snapshot.of(seen.values(), fitting, server=await admin.server_state())


def _is_known(seen: Inspection) -> bool:
    """A scope is known if the server keeps it, as a survey shows it, or if a rule applies to it."""
    return any((seen.kept, seen.limit, seen.paused, seen.set_by))


async def check_name(admin: Admin, verb: str, name: str, every: str = "'*'") -> None:
    """Raise `SettingsError` for a name that is probably a mistake: one that `check_form` refuses;
    'all', unless the verb is `limit`, or a scope or a rule has this name; and '*', if the command
    writes all sites in another way (`every`).

    Raises `ServerUnreachableError` and `ServerRefusedError`.
    """
    await check_form(admin, name)
    if name == EVERY and verb != "limit" and every != repr(EVERY):
        raise SettingsError(f"for all sites, write {every} in place of {name!r}")
    if name == ALL and verb != "limit" and not await _is_in_use(admin, name):
        raise SettingsError(f"no scope {name!r} is in use; {every} is for all sites")


async def check_form(admin: Admin, name: str) -> None:
    """Raise `SettingsError` for a name with the form of a host that no request has: a URL, a host
    with a port or a dot in front; several hosts, or a host with a slash behind it, unless a scope
    or a rule has this name.
    """
    refuse_url(name, repr(name))
    refuse_void(name, repr(name))
    try:
        refuse_hosts(name, repr(name))
    except SettingsError:
        if not await _is_in_use(admin, name):
            raise


async def _is_in_use(admin: Admin, name: str) -> bool:
    """True if a scope in use, or a rule, has this name."""
    return bool((await admin.inspect(name)).members) or await admin.rule(name) is not None
