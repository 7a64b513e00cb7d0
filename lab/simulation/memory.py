"""Finds what nodes and the server still keep when they should keep nothing."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

from lab.simulation.server import Server
from semaphore_middleware.core.keys import Keys
from semaphore_middleware.core.protocol import RECORDS
from semaphore_middleware.core.scope_lease import ScopeLease
from semaphore_middleware.core.update_queue import UpdateQueue
from semaphore_middleware.report.keys import HistoryKeys  # feature: report

OURS = "semaphore_middleware"
TABLES = (dict, list, set, deque)
KEPT = {
    "Batch.tallies": "is written once a minute, and may be under way",
    "Cluster._nodes": "addresses from the settings",
    "Codec._starts": "start requests, each of which counts once a run",
    "Connection.facts": "the last INFO",
    "CrawlSession._identity": "from the settings",
    "Diary._ended": "is written once a minute",
    "Diary._tallies": "is written once a minute",
    "NewRequests._sent": "judged by its age: `Crawl._judge_sent`",
    "NewRequests._sent_before": "judged by its age: `Crawl._judge_sent`",
    "Scheduler.identity": "from the settings",
    "Subscription._channels": "its own",
    "Subscription._tasks": "its own, two",
    "SummedStats._sent": "the last number of each stat",
    "_Parts.addresses": "from the settings",
}
"""Tables that need not be empty, and why. All others must be."""
SUMS = ("held", "waiting", "suspended", "unstarted")


def left_in(thing: object) -> list[str]:
    """The tables of a thing, and of its parts, that are not empty and should be."""
    found = _tables(thing, set())
    return [f"{name}: {str(table)[:200]}" for name, table in found if name not in KEPT]


def _tables(thing: object, seen: set[int]) -> Iterator[tuple[str, Any]]:
    if id(thing) in seen:
        return
    seen.add(id(thing))
    kind = type(thing)
    slots = [name for one in kind.__mro__ for name in getattr(one, "__slots__", ())]
    parts = {name: getattr(thing, name) for name in slots if hasattr(thing, name)}
    for name, part in (parts | getattr(thing, "__dict__", {})).items():
        if isinstance(part, TABLES):
            if part:
                yield f"{kind.__name__}.{name}", part
        elif type(part).__module__.startswith(OURS) and not isinstance(part, type):
            yield from _tables(part, seen)


def wrong_in(updates: UpdateQueue, is_over: bool) -> Iterator[str]:
    """Wrong counts of an update queue and its leases, and what they keep of ended scopes. When
    faults are over (`is_over`), a call is answered before the next one is made.
    """
    scopes = updates.leases.keys()
    owners = [getattr(do, "__self__", None) for do in updates._timers]
    timed = {one.scope for one in owners if isinstance(one, ScopeLease)}
    if forgotten := timed - scopes:
        yield f"it remembers {forgotten}"
    for lease in updates.leases.values():
        counts, held, queue = lease._totals, lease.held, lease._queue
        limits = Counter(one.limit for one in (*held, *queue.permits, *lease._orphans))
        if lease.limits.of_requests != dict(limits):
            yield f"{lease} has {lease.limits.of_requests}, and its requests name {limits}"
        if lease._unstarted != sum(not permit._begun for permit in held):
            yield f"{lease} counts {lease._unstarted} as unstarted"
        if counts.granted - counts.returned != len(held) + lease._pool.permits:
            yield f"{lease} has {counts}, {lease._pool}"
        is_long_answered = any(seq < counts.seq for seq, _ in queue._unanswered)
        if is_over and (len(lease._unanswered) > 1 or is_long_answered):
            yield f"{lease} waits for answers that have come"


def left_on(server: Server, keys: Keys) -> Iterator[str]:
    """What a server keeps of unused scopes, except what is learned from a site's last starts and
    responses; and unknown keys.
    """
    fields_of = {key: server.fields(key) for key, _ in server.keys_left()}
    others: list[bytes] = []  # what their keys begin with
    others.append(HistoryKeys(keys.prefix).sites)  # feature: report
    for key, fields in fields_of.items():
        if key.startswith(keys.scopes):
            if more := set(fields) - {b"state", b"learned"}:
                yield f"{key.decode()} has {more}"
            record = dict(zip(RECORDS["state"].names, server.field(key, b"state"), strict=True))
            if sums := {name: record[name] for name in SUMS if record[name]}:
                yield f"{key.decode()} has {sums}"
        elif key not in (*keys.of_all, keys.changed_rules) and not key.startswith(tuple(others)):
            yield key.decode()
