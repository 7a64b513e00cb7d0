"""One browser's part of a snapshot, filtered and cut on the server.

So every scope can be reached, however many there are. Names come from URLs and other programs: they
are data here, and text in the browser.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from semaphore_middleware.console.snapshot import ScopeRow, Snapshot, as_json
from semaphore_middleware.frontier.state import STATES, Counts

MAX_ROWS = 200  # scopes, nodes, rules, and crawls; nobody reads a longer table
MAX_NODES = 100  # of the opened scope


@dataclass(frozen=True, slots=True)
class View:
    """One browser's query."""

    match: str = ""
    """Only scopes whose names contain this, in upper or lower case."""
    open: str = ""
    """The id of the scope to show with its nodes."""

    @classmethod
    def read(cls, query: Mapping[str, str]) -> Self:
        """A view from a URL's query."""
        return cls(query.get("match", "").strip(), query.get("open", ""))


def show(snapshot: Snapshot, view: View) -> dict[str, Any]:
    """The page's part of the snapshot, in the fields of `status --json`."""
    wanted = view.match.casefold()
    rows = [row for row in snapshot.scopes if wanted in row.scope.casefold()]
    opened = next((row for row in snapshot.scopes if row.id == view.open), None)
    return {
        "totals": as_json(snapshot.totals),
        "matching": len(rows),
        "scopes": [_without_nodes(row) for row in rows[:MAX_ROWS]],
        "opened": opened and _with_some_nodes(opened),
        "nodes": as_json(snapshot.nodes[:MAX_ROWS]),
        "more_nodes": max(0, len(snapshot.nodes) - MAX_ROWS),
        "rules": as_json(snapshot.rules[:MAX_ROWS]),
        "more_rules": max(0, len(snapshot.rules) - MAX_ROWS),
    }


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
