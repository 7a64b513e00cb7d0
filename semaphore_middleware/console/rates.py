"""What `watch` remembers from one look at the server to the next: how things were, and the rate."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from semaphore_middleware.console.snapshot import in_order
from semaphore_middleware.model.inspection import Inspection

SAMPLES = 30  # looks to remember
LATELY = 6  # looks that the rate is a mean of


@dataclass
class Track:
    """One scope, over the last looks."""

    seen: Inspection
    held: deque[int] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    grants: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    """Permits granted since the look before, and seconds since that."""

    @property
    def rate(self) -> float:
        """Permits granted a second, lately."""
        lately = list(self.grants)[-LATELY:]
        seconds = sum(passed for _, passed in lately)
        return sum(count for count, _ in lately) / seconds if seconds else 0.0

    @property
    def rates(self) -> list[float]:
        return [count / passed for count, passed in self.grants]

    @property
    def is_over(self) -> bool:
        """Whether nothing has happened for as long as is remembered."""
        return len(self.held) == SAMPLES and not any(self.held) and not any(self.rates)

    def note(self, seen: Inspection, passed: float) -> None:
        # A count that is smaller than it was began anew, after an idle moment.
        before = self.seen.grants if seen.grants >= self.seen.grants else 0
        if passed:
            self.grants.append((seen.grants - before, passed))
        self.held.append(len(seen.holders))
        self.seen = seen


@dataclass
class Board:
    """All scopes. Times are of one clock, in seconds."""

    tracks: dict[str, Track] = field(default_factory=dict)
    looked_at: float | None = None

    def note(self, seen: Iterable[Inspection], now: float) -> None:
        """What a look has shown."""
        passed = 0.0 if self.looked_at is None else now - self.looked_at
        self.looked_at = now
        found = {one.scope: one for one in seen}
        for scope, one in found.items():
            # At the first look nobody knows when its grants were. Later, it was idle before.
            before = replace(one, grants=0) if passed else one
            self.tracks.setdefault(scope, Track(before)).note(one, passed)
        for scope in self.tracks.keys() - found.keys():
            # Idle just now: it stays in its place for as long as there is something to show of it.
            track = self.tracks[scope]
            track.note(Inspection(scope, track.seen.limit, (), (), track.seen.limit_max), passed)
            if track.is_over:
                del self.tracks[scope]

    def in_order(self) -> Sequence[Track]:
        """As `status` has them."""
        return [self.tracks[one.scope] for one in in_order(t.seen for t in self.tracks.values())]

    @property
    def held(self) -> int:
        return sum(len(track.seen.holders) for track in self.tracks.values())

    @property
    def waiting(self) -> int:
        return sum(len(track.seen.waiters) for track in self.tracks.values())

    @property
    def rate(self) -> float:
        return sum(track.rate for track in self.tracks.values())
