"""A scope as `inspect` shows it: its limit, its holders, its waiters. Times are in seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Member:
    """A permit as `inspect` shows it, held or waited for. Times are in seconds.

    It is a lease (C. Gray and D. Cheriton, Leases: An Efficient Fault-Tolerant Mechanism for
    Distributed File Cache Consistency, 1989): a node that does not renew it in time has lost it.
    """

    id: str
    """The node's name, a colon, and a number of the node's choosing."""
    age: float
    """Since it was granted; of a waiter, since it asked."""
    lease_left: float
    """Until the node loses it, unless it renews it."""

    @property
    def node(self) -> str:
        """The name of the node that holds it or waits for it."""
        return self.id.rpartition(":")[0]

    @property
    def number(self) -> int:
        """Of the permit, on its node."""
        return int(self.id.rpartition(":")[2])


@dataclass(frozen=True, slots=True)
class Inspection:
    """A scope as the server sees it, at one moment. Times are in seconds.

    Its text is `<scope>: <held>/<limit> held, <waiting> waiting`.
    """

    scope: str
    """Its name; usually a host."""
    limit: int | None
    """How many may hold a permit now; None while the scope is idle, and no operator has set one."""
    holders: tuple[Member, ...]
    """In the order in which their leases end."""
    waiters: tuple[Member, ...]
    """In the order of the queue."""
    limit_max: int | None = None
    """The most that `limit` may grow to; above `limit` only where that adapts to the site."""
    delay: float = 0.0
    """Seconds from one start to the next; 0: none."""
    next_start: float = 0.0
    """Seconds until the delay allows the next start."""
    backoff_left: float = 0.0
    """Seconds for which nothing starts, because the site refused a request; 0: none."""
    backoff_last: float = 0.0
    """Seconds of the last pause that the site did not set itself; good answers lower it."""
    paused: bool = False
    """Whether an operator lets nothing start."""
    set_by: str | None = None
    """Which operator has set a rule on the server; None: the nodes' settings hold."""
    grants: int = 0
    """Permits granted since the scope was last idle."""

    def __str__(self) -> str:
        limit = self.limit or "-"
        return f"{self.scope}: {len(self.holders)}/{limit} held, {len(self.waiters)} waiting"
