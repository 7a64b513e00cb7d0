"""One browser's part of a snapshot, filtered and cut on the server.

So every scope can be reached, however many there are. Names come from URLs and other programs: they
are data here, and text in the browser.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from semaphore_middleware.console.snapshot import (
    Choice,
    Snapshot,
    node_as_json,
    nodes_as_json,
    rule_as_json,
    scope_id,
)
from semaphore_middleware.frontier.state import STATES, Counts

MAX_ROWS = 200  # scopes, nodes, rules, and crawls; nobody reads a longer table
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
        "paused_by": snapshot.pause_of_all and snapshot.pause_of_all.by,
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


def show_crawls(crawls: Mapping[str, Counts]) -> dict[str, Any]:
    """The shared crawls by state, running ones first, then by name."""
    order = sorted(crawls, key=lambda name: (STATES.index(crawls[name].state), name))
    return {
        "crawls": [_crawl(name, crawls[name]) for name in order[:MAX_ROWS]],
        "more_crawls": max(0, len(order) - MAX_ROWS),
    }


def _crawl(name: str, counts: Counts) -> dict[str, Any]:
    numbers = {part: number for part, number in asdict(counts).items() if part != "exists"}
    return {"name": name, "state": counts.state, **numbers}
