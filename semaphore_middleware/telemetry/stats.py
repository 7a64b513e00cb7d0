"""What a crawl's stats tell of its permits, all under `semaphore/`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from semaphore_middleware.core.observer import Event, Observer, PermitGranted, PermitReleased
from semaphore_middleware.core.semaphore import FairSemaphore

SHOWN = 20  # scopes in the stats: the busiest
COUNTED = 1000  # scopes counted at most, so that a broad crawl does not grow without end
LATE = 1.0  # seconds that the stats may lag behind: to write each at once costs more than to count


class CrawlStats(Protocol):
    """Where the stats go: Scrapy's stats collector, or what is like it."""

    def set_value(self, key: str, value: Any) -> None:
        """Set one stat."""

    def get_stats(self) -> dict[str, Any]:
        """All stats, by name."""


@dataclass(slots=True)
class ScopeCount:
    acquired: int = 0
    waited: int = 0
    wait_seconds: float = 0.0
    limit: int | None = None
    """In force on the server, when last heard of."""


class SemaphoreStats(Observer):
    """Counts events, and writes the counts into the stats of a crawl.

    A permit counts as acquired from its grant on, be it used or given back unused. `find_stats` is
    called when the semaphore is opened.
    """

    def __init__(self, find_stats: Callable[[], CrawlStats]) -> None:
        self._find_stats = find_stats
        self._counts: Counter[str] = Counter(acquired=0, released=0, waited=0)
        self._wait_seconds = 0.0
        self._wait_seconds_max = 0.0
        self._held = 0
        self._held_max = 0
        self._scopes: dict[str, ScopeCount] = {}
        self._shown: set[str] = set()
        self._writing: asyncio.TimerHandle | None = None

    def acquired_of(self, scope: str) -> int:
        """Permits of a scope, unless it is one of too many to be counted."""
        return self._scopes[scope].acquired if scope in self._scopes else 0

    async def open(self, semaphore: FairSemaphore) -> None:  # noqa: ARG002 - an Observer's
        self._stats = self._find_stats()

    def on_event(self, event: Event) -> None:
        if event.counter is None:
            return
        self._counts[event.counter] += 1
        if self._writing is None:
            self._writing = asyncio.get_running_loop().call_later(LATE, self._write)
        if isinstance(event, PermitGranted):
            self._acquired(event)
        elif isinstance(event, PermitReleased):
            self._held -= 1

    def _acquired(self, event: PermitGranted) -> None:
        permit = event.permit
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
        self._write_scopes()

    def _write_scopes(self) -> None:
        """Put the busiest scopes into the stats, and take out those that no longer are."""
        busiest = sorted(self._scopes, key=lambda name: -self._scopes[name].acquired)
        for name in self._shown.difference(busiest[:SHOWN]):
            for part in ScopeCount.__slots__:
                self._stats.get_stats().pop(f"semaphore/scope/{name}/{part}", None)
        self._shown = set(busiest[:SHOWN])
        for name in self._shown:
            for part in ScopeCount.__slots__:
                value = getattr(self._scopes[name], part)
                if value is not None:
                    self._stats.set_value(f"semaphore/scope/{name}/{part}", value)
        if len(busiest) > COUNTED:
            for name in busiest[COUNTED // 2 :]:
                del self._scopes[name]
