"""The rows of `watch` as they were over the last surveys, for its sparklines."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from semaphore_middleware.console.snapshot import ScopeRow, Snapshot, in_order
from semaphore_middleware.model.inspection import Inspection

SAMPLES = 30  # surveys to remember


@dataclass
class Track:
    """One scope over the last surveys."""

    row: ScopeRow
    held: deque[int] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    starts: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))

    @property
    def is_over(self) -> bool:
        """Whether nothing has happened for as long as is remembered."""
        return len(self.held) == SAMPLES and not any(self.held) and not any(self.starts)

    def note(self, row: ScopeRow) -> None:
        """Add what a survey has shown."""
        self.row = row
        self.held.append(row.held)
        if row.starts_per_second is not None:
            self.starts.append(row.starts_per_second)


class History:
    """All scopes over the last surveys. One that falls idle keeps its row until that is empty."""

    def __init__(self) -> None:
        self._tracks: dict[str, Track] = {}

    def note(self, snapshot: Snapshot) -> None:
        """Add what a survey has shown."""
        for row in snapshot.scopes:
            self._tracks.setdefault(row.scope, Track(row)).note(row)
        for scope in self._tracks.keys() - {row.scope for row in snapshot.scopes}:
            track = self._tracks[scope]
            idle = Inspection(scope, track.row.limit, (), track.row.limit_max)
            track.note(ScopeRow.of(idle, starts_per_second=0.0))
            if track.is_over:
                del self._tracks[scope]

    @property
    def tracks(self) -> Sequence[Track]:
        """In the order of `status`."""
        return [self._tracks[row.scope] for row in in_order(t.row for t in self._tracks.values())]
