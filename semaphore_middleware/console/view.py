"""The part of a snapshot that one browser shows, filtered and cut on the server.

So every scope can be reached, however many there are. Names come from URLs and other programs: they
are data here, and text in the browser.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from semaphore_middleware.operators.snapshot import (
    Choice,
    Snapshot,
    node_as_json,
    nodes_as_json,
    rule_as_json,
    scope_id,
)

MAX_ROWS = 200  # scopes, nodes, rules, and rows of a section; nobody reads a longer table
MAX_NODES = 100  # of the opened scope


def show(snapshot: Snapshot, query: Mapping[str, str]) -> dict[str, Any]:
    """The page's part of the snapshot, in the fields of `status --json`.

    The query may have `match`, as `Choice.match`; `open`, the id or the name of the scope to show
    with its nodes; and `page`, which `MAX_ROWS` of the scopes to show.
    """
    chosen = snapshot.chosen(Choice(query.get("match", "").strip()))
    asked = query.get("page", "")[:9]
    scopes, nodes, rules = chosen.scopes, chosen.nodes, chosen.rules
    pages = max(1, -(-len(scopes) // MAX_ROWS))
    page = min(max(1, int(asked) if asked.isdecimal() else 1), pages)
    first = (page - 1) * MAX_ROWS
    return {
        "totals": asdict(snapshot.totals),
        "notice": snapshot.notice,
        "matching": len(scopes),
        "page": page,
        "pages": pages,
        "first": first + 1,
        "scopes": [*map(chosen.scope_as_json, scopes[first : first + MAX_ROWS])],
        "opened": _opened(snapshot, query.get("open", "")),
        "nodes": [*map(node_as_json, nodes[:MAX_ROWS])],
        "more_nodes": max(0, len(nodes) - MAX_ROWS),
        "rules": [*map(rule_as_json, rules[:MAX_ROWS])],
        "more_rules": max(0, len(rules) - MAX_ROWS),
    }


def _opened(snapshot: Snapshot, asked: str) -> dict[str, Any] | None:
    """The scope of this id or name, with its nodes."""
    for row in snapshot.scopes if asked else ():  # a scope's name may be empty
        if asked in (row.scope, scope_id(row.scope)):
            return {
                **snapshot.scope_as_json(row),
                **nodes_as_json(row, MAX_NODES),
                "more_nodes": max(0, len(row.members) - MAX_NODES),
            }
    return None


def show_section(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The page's part of a section's rows."""
    return {name: rows[:MAX_ROWS], f"more_{name}": max(0, len(rows) - MAX_ROWS)}
