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
    most: int | None = None
    """What `limit` may grow to; more than `limit` only where that adapts to the site."""
    delay: float = 0.0
    """Seconds from one start to the next; 0: none."""
    next_start: float = 0.0
    """Seconds until the delay allows the next start."""
    quiet: float = 0.0
    """Seconds for which nothing starts, because the site said "not now"."""
    backoff: float = 0.0
    """The last such pause that the site did not set itself, as far as it is not forgiven yet."""
    paused: bool = False
    """Whether an operator lets nothing start."""
    set_by: str | None = None
    """Who has set a rule on the server; None: the nodes' settings hold."""
    grants: int = 0
    """So many, since the scope was idle."""

    @classmethod
    def read(cls, scope: str, reply: Sequence[Any]) -> Self:
        """From the reply of the script `inspect`, whose times are in milliseconds."""
        limit, most, delay, next_start, quiet, backoff, paused, set_by, grants, *rest = reply
        holders, waiters = rest
        return cls(
            scope,
            limit or None,
            tuple(Member.read(*holder) for holder in holders),
            tuple(Member.read(*waiter) for waiter in waiters),
            most or None,
            delay / 1000,
            next_start / 1000,
            quiet / 1000,
            backoff / 1000,
            bool(paused),
            set_by.decode("utf-8", "replace") or None,
            grants,
        )

    def __str__(self) -> str:
        limit = self.limit or "-"
        return f"{self.scope}: {len(self.holders)}/{limit} held, {len(self.waiters)} waiting"
