"""The server's state: which run of it this is, and whether it may have lost data in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

STARTED_EMPTY = "semaphore-started-empty"
"""A key that the embedded server's supervisor writes; its value is the run id of that process."""


@dataclass(frozen=True, slots=True)
class ServerState:
    """A server process, as its replies to INFO describe it."""

    run_id: str
    uptime: float
    """Seconds since the process started, at least."""
    promoted_at: int
    """Replication offset at which it was last promoted from a replica; -1 if it never was."""
    losses: int
    """How often this process has dropped data: FLUSHALL, FLUSHDB, evicted keys."""
    evicts: bool
    """Whether it evicts keys when its memory is full."""
    started_empty: bool
    """Whether `embedded.py` started it when no node could have held a permit."""

    @classmethod
    def from_info(cls, info: Mapping[str, str], started_empty: bool) -> Self:
        """From the fields of INFO."""
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
            started_empty=started_empty,
        )

    @property
    def condition(self) -> tuple[str, int, int]:
        """As long as this stays the same, nothing was lost."""
        return self.run_id, self.losses, self.promoted_at

    @property
    def may_have_lost(self) -> bool:
        """Whether this process has lost data at some time; INFO does not say when."""
        return self.losses > 0 or self.promoted_at >= 0


def _calls(info: Mapping[str, str], command: str) -> int:
    stats = info.get(f"cmdstat_{command}", "calls=0")
    return int(stats.split("calls=")[1].split(",")[0])
