"""One browser's part of a snapshot, filtered and cut on the server.

So every scope can be reached, however many there are. Names come from URLs and other programs: they
are data here, and text in the browser.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from semaphore_middleware.console.snapshot import NodeRow, ScopeRow, Snapshot, as_json
from semaphore_middleware.frontier.state import STATES, Counts

MAX_ROWS = 200  # scopes, nodes, rules, and crawls; nobody reads a longer table
MAX_NODES = 100  # of the opened scope


@dataclass(frozen=True, slots=True)
class View:
    """One browser's query."""

    match: str = ""
    """Only scopes and nodes whose names contain this, in upper or lower case, with the nodes at
    such a scope and the scopes of such a node."""
    open: str = ""
    """The id or the name of the scope to show with its nodes."""
    page: int = 1
    """Which `MAX_ROWS` of the scopes to show."""

    @classmethod
    def read(cls, query: Mapping[str, str]) -> Self:
        """A view from a URL's query."""
        page = query.get("page", "")[:9]
        number = int(page) if page.isdecimal() else 1
        return cls(query.get("match", "").strip(), query.get("open", ""), number)


def show(snapshot: Snapshot, view: View) -> dict[str, Any]:
    """The page's part of the snapshot, in the fields of `status --json`."""
    rows, nodes = _matching(snapshot, view.match.casefold())
    pages = max(1, -(-len(rows) // MAX_ROWS))
    page = min(max(1, view.page), pages)
    asked = view.open or None  # a scope's name may be empty
    opened = next((row for row in snapshot.scopes if asked in (row.id, row.scope)), None)
    return {
        "totals": as_json(snapshot.totals),
        "matching": len(rows),
        "page": page,
        "pages": pages,
        "first": (page - 1) * MAX_ROWS + 1,
        "scopes": [_without_nodes(row) for row in rows[(page - 1) * MAX_ROWS : page * MAX_ROWS]],
        "opened": opened and _with_some_nodes(opened),
        "nodes": as_json(nodes[:MAX_ROWS]),
        "more_nodes": max(0, len(nodes) - MAX_ROWS),
        "rules": as_json(snapshot.rules[:MAX_ROWS]),
        "more_rules": max(0, len(snapshot.rules) - MAX_ROWS),
    }


def _matching(snapshot: Snapshot, wanted: str) -> tuple[tuple[ScopeRow, ...], tuple[NodeRow, ...]]:
    """Scopes and nodes with the text in their names, the scopes of such nodes, and the nodes at
    such scopes.
    """
    if not wanted:
        return snapshot.scopes, snapshot.nodes
    scopes = {row.id for row in snapshot.scopes if wanted in row.scope.casefold()}
    nodes = {row.node for row in snapshot.nodes if wanted in row.node.casefold()}
    there = {one.node for row in snapshot.scopes if row.id in scopes for one in row.nodes}
    return (
        tuple(
            row
            for row in snapshot.scopes
            if row.id in scopes or any(one.node in nodes for one in row.nodes)
        ),
        tuple(row for row in snapshot.nodes if row.node in nodes or row.node in there),
    )


def show_crawls(crawls: Mapping[str, Counts]) -> dict[str, Any]:
    """The shared crawls by state, running ones first, then by name."""
    order = sorted(crawls, key=lambda name: (STATES.index(crawls[name].state), name))
    return {
        "crawls": [_crawl(name, crawls[name]) for name in order[:MAX_ROWS]],
        "more_crawls": max(0, len(order) - MAX_ROWS),
    }


def _crawl(name: str, counts: Counts) -> dict[str, Any]:
    return {"name": name, "state": counts.state, **as_json(counts, leave_out=("exists",))}


def _without_nodes(row: ScopeRow) -> dict[str, Any]:
    shown: dict[str, Any] = as_json(row, leave_out=("nodes",))
    return shown


def _with_some_nodes(row: ScopeRow) -> dict[str, Any]:
    return {
        **_without_nodes(row),
        "nodes": as_json(row.nodes[:MAX_NODES]),
        "more_nodes": max(0, len(row.nodes) - MAX_NODES),
    }
