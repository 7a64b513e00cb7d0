"""The server's state: which life of it this is, and whether it may be used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

STARTED_EMPTY = "semaphore-started-empty"
"""A key that the embedded server's supervisor writes; its value is the run id of that process."""


@dataclass(frozen=True, slots=True)
class ServerState:
    """A server process, as its reply to INFO describes it."""

    run_id: str
    replication_id: str
    """Another one after a failover, even where the same process is the master again."""
    evicted: int | None
    """How many keys it has evicted; None: it never evicts any."""
    started_empty: bool
    """Whether `embedded.py` started it when no node could have held a permit."""

    @classmethod
    def from_info(cls, info: Mapping[str, str], started_empty: bool) -> Self:
        """From the fields of INFO."""
        evicts = info.get("maxmemory_policy", "noeviction") != "noeviction"
        has_bound = info.get("maxmemory", "0") != "0"
        return cls(
            run_id=info["run_id"],
            replication_id=info.get("master_replid", ""),
            evicted=int(info.get("evicted_keys", 0)) if evicts and has_bound else None,
            started_empty=started_empty,
        )

    @property
    def life(self) -> str:
        """As long as this stays the same, the server has lost nothing without saying so."""
        evicted = "" if self.evicted is None else f" without {self.evicted} keys"
        return f"{self.run_id} {self.replication_id}{evicted}"
