"""Writes counts of permits, waits and faults into a crawl's stats, all under `semaphore/`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from semaphore_middleware.core.observer import (
    ObservedSemaphore,
    Observer,
    PermitGranted,
    PermitReleased,
    ProcessStalled,
)
from semaphore_middleware.model.events import CountedEvent, Event

SHOWN_SCOPES = 20  # the busiest scopes, with stats of their own
COUNTED_SCOPES_MAX = 1000  # bounds the memory of a broad crawl
WRITE_INTERVAL_S = 1.0  # writing a stat costs more than counting, so all are written together


class CrawlStats(Protocol):
    """The methods used here of Scrapy's stats collector."""

    def set_value(self, key: str, value: Any) -> None:
        """Set one stat."""

    def get_stats(self) -> dict[str, Any]:
        """All stats, by name."""


@dataclass(slots=True)
class ScopeCount:
    """Counts of one scope, named like its stats."""

    acquired: int = 0
    waited: int = 0
    wait_seconds: float = 0.0
    limit: int | None = None
    """The limit last reported by the server."""


class SemaphoreStats(Observer):
    """Counts events, and writes the counts into the stats of a crawl.

    A permit counts as acquired when it is granted, even if it is then given back unused (no slot
    of `CONCURRENT_REQUESTS` was free, or the site had refused a request meanwhile). `find_stats`
    returns the crawl's stats; it is called when the semaphore is opened.
    """

    kinds = (CountedEvent,)

    def __init__(self, find_stats: Callable[[], CrawlStats]) -> None:
        self._find_stats = find_stats
        self._counts: Counter[str] = Counter(acquired=0, released=0, waited=0)
        self._wait_seconds = 0.0
        self._wait_seconds_max = 0.0
        self._stall_seconds = 0.0
        self._held = 0
        self._held_max = 0
        self._scopes: dict[str, ScopeCount] = {}
        self._shown: set[str] = set()
        self._writing: asyncio.TimerHandle | None = None

    async def open(self, semaphore: ObservedSemaphore) -> None:  # noqa: ARG002 - an Observer's
        self._stats = self._find_stats()

    def on_event(self, event: Event) -> None:
        assert isinstance(event, CountedEvent)
        self._counts[event.counter] += 1
        if self._writing is None:
            self._writing = asyncio.get_running_loop().call_later(WRITE_INTERVAL_S, self._write)
        if isinstance(event, PermitGranted):
            self._acquired(event)
        elif isinstance(event, PermitReleased):
            self._held -= 1
        elif isinstance(event, ProcessStalled):
            self._stall_seconds += event.seconds

    def _acquired(self, event: PermitGranted) -> None:
        permit = event.permit
        if event.reused:
            self._counts["reused"] += 1
        self._held += 1
        self._held_max = max(self._held_max, self._held)
        scope = self._scopes.get(permit.scope)
        if scope is None:
            scope = self._scopes[permit.scope] = ScopeCount()
        scope.acquired += 1
        scope.limit = event.limit
        if permit.waited:
            self._counts["waited"] += 1
            self._wait_seconds += permit.wait
            self._wait_seconds_max = max(self._wait_seconds_max, permit.wait)
            scope.waited += 1
            scope.wait_seconds += permit.wait

    async def close(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
        self._write()

    def _write(self) -> None:
        self._writing = None
        for name, count in self._counts.items():
            self._stats.set_value(f"semaphore/{name}", count)
        if self._counts["acquired"]:
            self._stats.set_value("semaphore/held_max", self._held_max)
        if self._counts["waited"]:
            self._stats.set_value("semaphore/wait_seconds", self._wait_seconds)
            self._stats.set_value("semaphore/wait_seconds_max", self._wait_seconds_max)
        if self._stall_seconds:
            self._stats.set_value("semaphore/loop_stalls", self._stall_seconds)
        self._write_scopes()

    def _write_scopes(self) -> None:
        """Write the counts of the busiest scopes, and remove the counts of others."""
        busiest = sorted(self._scopes, key=lambda name: -self._scopes[name].acquired)
        for name in self._shown.difference(busiest[:SHOWN_SCOPES]):
            for part in ScopeCount.__slots__:
                self._stats.get_stats().pop(f"semaphore/scope/{name}/{part}", None)
        self._shown = set(busiest[:SHOWN_SCOPES])
        for name in self._shown:
            for part in ScopeCount.__slots__:
                value = getattr(self._scopes[name], part)
                if value is not None:
                    self._stats.set_value(f"semaphore/scope/{name}/{part}", value)
        if len(busiest) > COUNTED_SCOPES_MAX:
            for name in busiest[COUNTED_SCOPES_MAX // 2 :]:
                del self._scopes[name]
