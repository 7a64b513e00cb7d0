"""A scope as `inspect` shows it: its limit, and the nodes there. Times are in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from semaphore_middleware.model.jobs import JobShare
from semaphore_middleware.model.limits import Limit


@dataclass(frozen=True, slots=True)
class Member:
    """A node at a scope, as `inspect` shows it. Times are in seconds.

    Its permits are one lease (C. Gray and D. Cheriton, Leases: An Efficient Fault-Tolerant
    Mechanism for Distributed File Cache Consistency, 1989): a node that does not renew it in time
    has lost them.
    """

    node: str
    """The node's name."""
    held: int
    """Permits that it holds."""
    waiting: int
    """Requests of it that wait for a permit."""
    oldest: float
    """For how long its oldest request holds a permit; 0: none does."""
    longest_wait: float
    """For how long its oldest request waits for a permit; 0: none does."""
    lease_left: float
    """Until the node loses its permits and its place, unless it renews them."""
    asks_for: Limit
    """The limit that its requests there name."""
    job: str = ""
    """The job in whose share its permits count; empty: it has none."""
    weight: float = 1.0
    """The job's, as the node's settings say."""


@dataclass(frozen=True, slots=True)
class ServerState:
    """What holds for all scopes of a server. Times are in seconds."""

    recovery_left: float = 0.0
    """For how long the server grants nothing, as it may have lost its data; 0: it grants."""
    silent_for: float = 0.0
    """For how long no node has called. Leases end by a clock that stands still meanwhile: a wall
    clock that is set ahead ends none.
    """
    weights: Mapping[str, float] = field(default_factory=dict)
    """The weights of jobs that operators have set, by `share_name`."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """A scope as the server sees it, at one moment. Times are in seconds.

    Its text is `<scope>: <held>/<limit> held, <waiting> waiting`.
    """

    scope: str
    """Its name; usually a host."""
    limit: int | None
    """How many may hold a permit now; None while the scope is idle, and no operator has set one."""
    members: tuple[Member, ...]
    """The nodes that hold permits or wait: those that wait first, in the order of the queue."""
    limit_max: int | None = None
    """The most that `limit` may grow to; above `limit` only where that adapts to the site."""
    delay: float = 0.0
    """Seconds from one start to the next; 0: none."""
    rate: str | None = None
    """Starts per s, m, h or d, as in "60/m"; None: no rate."""
    burst: int = 1
    """How many may start at once after a pause, at that rate."""
    next_start: float = 0.0
    """Seconds until delay and rate allow the next start."""
    backoff_left: float = 0.0
    """Seconds for which nothing starts, because the site refused a request, did not respond, or
    asked for a pause; 0: none."""
    backoff_last: float = 0.0
    """Seconds of the last pause that the site did not set itself; good answers lower it."""
    paused: bool = False
    """Whether an operator lets nothing start."""
    set_by: str | None = None
    """Which operator has set a rule on the server; None: the nodes' settings hold."""
    started: int = 0
    """Requests that got a permit since the scope was last idle."""
    down_for: float | None = None
    """Seconds for which the site has not responded, if it is down; None: it is not."""
    jobs: tuple[JobShare, ...] = ()
    """What each job has of it, by name, each group before its jobs; none if all are of one."""

    @property
    def held(self) -> int:
        """Permits that are held, on all nodes."""
        return sum(member.held for member in self.members)

    @property
    def strictest(self) -> tuple[Member, ...]:
        """The nodes whose limit, or a part of it, is in force though others ask for a looser one;
        empty where all ask for the same.
        """
        asked = [member.asks_for.strictness for member in self.members]
        ranges = [(min(part), max(part)) for part in zip(*asked, strict=True)]
        return tuple(
            member
            for member, parts in zip(self.members, asked, strict=True)
            if any(least < part == most for part, (least, most) in zip(parts, ranges, strict=True))
        )

    @property
    def waiting(self) -> int:
        """Requests that wait for a permit, on all nodes."""
        return sum(member.waiting for member in self.members)

    @property
    def longest_wait(self) -> float:
        """For how long the oldest request waits; 0: none does."""
        return max((member.longest_wait for member in self.members), default=0.0)

    def __str__(self) -> str:
        return f"{self.scope}: {self.held}/{self.limit or '-'} held, {self.waiting} waiting"
