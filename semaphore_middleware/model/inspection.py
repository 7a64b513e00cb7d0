"""A scope as `inspect` shows it: its limit, its holders, its waiters. Times are in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Member:
    """A permit as `inspect` shows it, held or waited for. Times are in seconds.

    It is a lease (C. Gray and D. Cheriton, Leases: An Efficient Fault-Tolerant Mechanism for
    Distributed File Cache Consistency, 1989): who does not renew it in time has lost it.
    """

    id: str
    """The node's name, a colon, and a number of the node's choosing."""
    age: float
    """Since it was granted; of a waiter, since it asked."""
    lease_left: float
    """Until it counts as its node's no more, unless that renews it."""

    @classmethod
    def read(cls, id: bytes, age: int, lease_left: int) -> Self:
        """From a script's reply, whose times are in milliseconds."""
        return cls(id.decode("utf-8", "surrogatepass"), age / 1000, lease_left / 1000)

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
    """Its name: a host, as a rule."""
    limit: int | None
    """How many may hold a permit now; None while the scope is idle, and no operator has set one."""
    holders: tuple[Member, ...]
    """Those whose leases end first stand first."""
    waiters: tuple[Member, ...]
    """In the order of the line."""
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
    """Who has set a rule on the server; None: the nodes' settings hold."""
    grants: int = 0
    """So many, since the scope was idle."""

    @classmethod
    def read(cls, scope: str, reply: Sequence[Any]) -> Self:
        """From the reply of the script `inspect`, whose times are in milliseconds."""
        limit, limit_max, delay, next_start, left, last, paused, set_by, grants, *rest = reply
        holders, waiters = rest
        return cls(
            scope,
            limit or None,
            tuple(Member.read(*holder) for holder in holders),
            tuple(Member.read(*waiter) for waiter in waiters),
            limit_max or None,
            delay / 1000,
            next_start / 1000,
            left / 1000,
            last / 1000,
            bool(paused),
            set_by.decode("utf-8", "replace") or None,
            grants,
        )

    def __str__(self) -> str:
        limit = self.limit or "-"
        return f"{self.scope}: {len(self.holders)}/{limit} held, {len(self.waiters)} waiting"
