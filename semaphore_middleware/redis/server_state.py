"""What a server says of itself: which life it lives, and what it may have forgotten in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

BORN_EMPTY = "semaphore-born-empty"
"""A key that the embedded server's keeper writes; its value is the run id of that life."""


@dataclass(frozen=True, slots=True)
class Life:
    """A life is the time that one server process runs."""

    run_id: str
    uptime: float
    """Seconds since the process started, at least."""
    promoted_at: int
    """Where in the stream of writes it was last promoted from a replica; -1 if it never was."""
    losses: int
    """Times that data was thrown away in this life: FLUSHALL, FLUSHDB, evicted keys."""
    evicts: bool
    """Whether it may throw keys away when its memory is full."""
    born_empty: bool
    """Started by `embedded.py` when nobody could have held anything."""

    @classmethod
    def read(cls, info: Mapping[str, str], born_empty: bool) -> Self:
        """From what the server answers to INFO."""
        return cls(
            run_id=info["run_id"],
            # By the wall clock: below zero if that was set back since. And a difference of whole
            # seconds: a server that started 0.05 s ago can say 1.
            uptime=max(0.0, float(info.get("uptime_in_seconds", 0)) - 1),
            promoted_at=int(info.get("second_repl_offset", "-1")),
            losses=int(info.get("evicted_keys", 0))
            + _calls(info, "flushall")
            + _calls(info, "flushdb"),
            evicts=info.get("maxmemory_policy", "noeviction") != "noeviction"
            and info.get("maxmemory", "0") != "0",
            born_empty=born_empty,
        )

    @property
    def condition(self) -> tuple[str, int, int]:
        """As long as this stays the same, nothing was lost."""
        return self.run_id, self.losses, self.promoted_at

    @property
    def may_have_lost(self) -> bool:
        """In this life, at a time that cannot be told."""
        return self.losses > 0 or self.promoted_at >= 0


def _calls(info: Mapping[str, str], command: str) -> int:
    stats = info.get(f"cmdstat_{command}", "calls=0")
    return int(stats.split("calls=")[1].split(",")[0])
