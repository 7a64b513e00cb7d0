"""The size of a shared crawl, and the commands that ask for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from semaphore_middleware.frontier.keys import CrawlKeys

SIZES = (
    *(("ZCARD", "sites"), ("ZCARD", "queue"), ("ZCARD", "suspects")),
    *(("ZCARD", "taken"), ("SCARD", "aside")),
)
"""Commands, and the keys that they are for."""
STATES = ("running", "stopped", "ended")


@dataclass(frozen=True, slots=True)
class Counts:
    """The size of a shared crawl."""

    exists: bool
    nodes: int  # that have joined and not left, and whose leases have not ended
    sites: int  # with queued requests
    queued: int  # requests that are to be taken
    taken: int  # requests that nodes have taken and not finished
    set_aside: int  # requests that three nodes have failed with
    seen: int  # fingerprints
    pages: int  # that were fetched
    ended_at: float | None  # Unix time

    @classmethod
    def of(cls, replies: Sequence[Any]) -> Self:
        """From the replies to `commands_for`."""
        time, nodes, *numbers, seen, (id, pages, ended, wall, clock) = replies
        sites, queued, suspects, taken, set_aside = numbers
        return cls(
            exists=id is not None,
            nodes=_living(nodes, time, float(wall or 0), float(clock or 0)),
            sites=sites,
            queued=queued + suspects,
            taken=taken,
            set_aside=set_aside,
            seen=int(seen or 0),
            pages=int(pages or 0),
            ended_at=float(ended) / 1000 if ended else None,
        )

    @property
    def state(self) -> str:
        """One of `STATES`; stopped: it has not ended, and no node takes part."""
        running, stopped, ended = STATES
        if self.ended_at is not None:
            return ended
        return running if self.nodes else stopped

    @property
    def unfinished(self) -> int:
        """Requests that are queued, taken or set aside."""
        return self.queued + self.taken + self.set_aside


def commands_for(keys: CrawlKeys) -> list[tuple[Any, ...]]:
    """Commands that change nothing, for `Counts.of`."""
    nodes = ("ZRANGE", keys.of("nodes"), 0, -1, "WITHSCORES")
    sizes = [(command, keys.of(part)) for command, part in SIZES]
    run = ("HMGET", keys.of("run"), "id", "pages", "ended", "wall", "clock")
    return [("TIME",), nodes, *sizes, ("HGET", keys.of("seen"), "count"), run]


def _living(nodes: Sequence[bytes], time: Sequence[bytes], wall: float, clock: float) -> int:
    """How many nodes have a lease. Leases go by the crawl's clock, which stands still while nobody
    calls: of this silence the server's wall clock tells, as in drop.lua.
    """
    seconds, microseconds = map(int, time)
    silent_ms = max(0.0, 1000 * seconds + microseconds // 1000 - wall)
    return sum(float(lease_end) > clock + silent_ms for lease_end in nodes[1::2])
