"""What a crawl's stats tell of its permits, all under `semaphore/`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from semaphore_middleware.permit import Permit

if TYPE_CHECKING:
    from scrapy.statscollectors import StatsCollector

SHOWN = 20  # scopes in the stats: the busiest
COUNTED = 1000  # scopes counted at most, so that a broad crawl does not grow without end
EVERY = 50  # permits between two looks at which scopes are the busiest


@dataclass(slots=True)
class ScopeCount:
    acquired: int = 0
    waited: int = 0
    wait_seconds: float = 0.0


class GateStats:
    def __init__(self, stats: StatsCollector) -> None:
        self._stats = stats
        self._scopes: dict[str, ScopeCount] = {}
        self._shown: set[str] = set()
        self._held = 0
        self._acquired = 0
        for name in ("acquired", "released", "waited"):
            self.count(name, 0)

    def count(self, name: str, by: float = 1) -> None:
        self._stats.inc_value(f"semaphore/{name}", by)  # type: ignore[arg-type]

    def acquired(self, permit: Permit) -> None:
        self._held += 1
        self._acquired += 1
        self.count("acquired")
        self._stats.max_value("semaphore/held_max", self._held)
        scope = self._scopes.setdefault(permit.scope, ScopeCount())
        scope.acquired += 1
        if permit.waited:
            self.count("waited")
            self.count("wait_seconds", permit.wait)
            self._stats.max_value("semaphore/wait_seconds_max", permit.wait)
            scope.waited += 1
            scope.wait_seconds += permit.wait
        if self._acquired % EVERY == 0:
            self.show_scopes()

    def released(self) -> None:
        self._held -= 1
        self.count("released")

    def show_scopes(self) -> None:
        """Put the busiest scopes into the stats, and take out those that no longer are."""
        busiest = sorted(self._scopes, key=lambda name: -self._scopes[name].acquired)
        for name in self._shown.difference(busiest[:SHOWN]):
            for part in ScopeCount.__slots__:
                self._stats.get_stats().pop(f"semaphore/scope/{name}/{part}", None)
        self._shown = set(busiest[:SHOWN])
        for name in self._shown:
            for part in ScopeCount.__slots__:
                value = getattr(self._scopes[name], part)
                self._stats.set_value(f"semaphore/scope/{name}/{part}", value)
        if len(busiest) > COUNTED:
            for name in busiest[COUNTED // 2 :]:
                del self._scopes[name]
