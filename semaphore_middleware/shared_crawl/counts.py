"""The size of a shared crawl."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from semaphore_middleware.shared_crawl.keys import CrawlKeys

SIZES = (
    ("ZCARD", "sites"),
    ("ZCARD", "queue"),
    ("ZCARD", "suspects"),
    ("ZCARD", "taken"),
    ("HLEN", "aside"),
    ("HLEN", "failed"),
    ("HLEN", "claims"),
)
"""Commands, with their keys."""
STATES = ("running", "stopped", "ended")


@dataclass(frozen=True, slots=True)
class Counts:
    """The size of a shared crawl."""

    exists: bool
    nodes: int  # with a lease, also those that are stopping
    sites: int  # with queued requests
    queued: int  # requests to be taken
    in_flight: int  # requests taken by nodes, and not finished
    dead_letters: int  # requests, and start requests, that no node could fetch or read
    failed: int  # requests without a page: no response, or a server's error
    seen: int  # fingerprints
    pages: int  # fetched
    ended_at: float | None  # Unix time; None while the run is not done

    @classmethod
    def from_replies(cls, replies: Sequence[Any]) -> Self:
        time, nodes, working, *numbers, seen, (id, pages, ended, wall, clock, undone) = replies
        sites, queued, suspects, in_flight, dead_letters, failed, claims = numbers
        return cls(
            exists=id is not None,
            nodes=_living([*nodes, *working], time, float(wall or 0), float(clock or 0)),
            sites=sites,
            queued=queued + suspects + claims,
            in_flight=in_flight,
            dead_letters=dead_letters,
            failed=failed,
            seen=int(seen or 0),
            pages=int(pages or 0),
            ended_at=float(ended) / 1000 if ended and id != undone else None,
        )

    @property
    def state(self) -> str:
        """One of `STATES`. A stopped crawl has not ended, and no node takes part in it."""
        running, stopped, ended = STATES
        if self.ended_at is not None:
            return ended
        return running if self.nodes else stopped

    @property
    def unfinished(self) -> int:
        """Requests queued, in flight or dead letters."""
        return self.queued + self.in_flight + self.dead_letters


def commands_for(keys: CrawlKeys) -> list[tuple[Any, ...]]:
    """Read-only commands, for `Counts.from_replies`."""
    leases = [("ZRANGE", keys.key(part), 0, -1, "WITHSCORES") for part in ("nodes", "working")]
    sizes = [(command, keys.key(part)) for command, part in SIZES]
    run = ("HMGET", keys.key("run"), "id", "pages", "ended", "wall", "clock", "undone")
    return [("TIME",), *leases, *sizes, ("HGET", keys.key("seen"), "count"), run]


def _living(leases: Sequence[bytes], time: Sequence[bytes], wall: float, clock: float) -> int:
    """The number of nodes with a lease. The crawl's clock stands still while no node calls, so the
    server's wall clock gives the time since the last call, as in end.lua.
    """
    now = clock + silent_ms(time, wall)
    pairs = zip(leases[::2], leases[1::2], strict=True)
    return len({node for node, lease_end in pairs if float(lease_end) > now})


def silent_ms(time: Sequence[bytes], wall: float) -> float:
    """The time since the last call of a node, at `wall`, by the reply to TIME."""
    seconds, microseconds = map(int, time)
    return max(0.0, 1000 * seconds + microseconds // 1000 - wall)
