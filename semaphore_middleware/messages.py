"""What a node says to the scripts and hears from them: no raw reply travels further than here."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from semaphore_middleware.limits import Limit
from semaphore_middleware.outcome import Report

Verb = Literal["acquire", "release", "renew", "report"]
MOST_PERMITS = 500  # in one call, so that no call keeps the server from others for long
NEWS = rb"(?:granted \d{1,15}|again \d{1,15} \d{1,15}|quiet \d{1,15}|changed)"
MESSAGE = re.compile(rb"%b(?: %b)*" % (NEWS, NEWS))


@dataclass(frozen=True, slots=True)
class Ask:
    """A verb, for these permits of this scope. Only their numbers travel, never their names."""

    verb: Verb
    scope: str
    limit: Limit
    numbers: tuple[int, ...]
    report: Report | None = None
    """With the verb "report", which gives back like "release": what the site answered."""


@dataclass(frozen=True, slots=True)
class Answer:
    ask: Ask
    granted: tuple[int, ...]
    """Of the caller's permits, not only of those asked about."""
    lost: tuple[int, ...]
    spare: int
    """Permits of the scope that are free now, less those who stand in line, of all nodes."""
    again: float | None
    """Seconds until asking again is worth it: only time is in the way of the head of the line."""
    limit: int
    """How many may hold a permit of the scope now."""
    curious: bool
    """Whether the server wants to know what the site answers, be it as usual."""
    quiet: float | None
    """Seconds for which the site is left alone from now on, if this ask's report was the cause."""

    @classmethod
    def read(cls, ask: Ask, reply: Sequence[Any]) -> Self:
        _, again, spare, limit, curious, quiet, granted, lost = reply
        return cls(
            ask,
            tuple(int(number) for number in granted),
            tuple(int(number) for number in lost),
            spare,
            again / 1000 if again >= 0 else None,
            limit,
            bool(curious),
            quiet / 1000 if quiet >= 0 else None,
        )


@dataclass(frozen=True, slots=True)
class Message:
    """What a node is told over its channel."""

    granted: tuple[int, ...] = ()
    again: tuple[tuple[int, float], ...] = ()
    """A permit's number, and seconds until asking for it again is worth it."""
    quiet: tuple[int, ...] = ()
    """Permits whose site has said "not now" since they were granted."""
    changed: bool = False
    """An operator has changed a rule: whoever waits may be let in by it."""

    @classmethod
    def read(cls, payload: bytes) -> Self | None:
        """None if it is not one of ours."""
        if not MESSAGE.fullmatch(payload):
            return None
        words = payload.split(b" ")
        granted: list[int] = []
        again: list[tuple[int, float]] = []
        quiet: list[int] = []
        changed = False
        while words:
            word = words.pop(0)
            if word == b"granted":
                granted.append(int(words.pop(0)))
            elif word == b"again":
                again.append((int(words.pop(0)), int(words.pop(0)) / 1000))
            elif word == b"quiet":
                quiet.append(int(words.pop(0)))
            else:
                changed = True
        return cls(tuple(granted), tuple(again), tuple(quiet), changed)


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


def asks(verb: Verb, permits: Iterable[tuple[int, str, Limit]]) -> list[Ask]:
    """One ask a scope (and limit: it may have changed), in the order of the permits."""
    numbers: dict[tuple[str, Limit], list[int]] = defaultdict(list)
    for number, scope, limit in permits:
        numbers[scope, limit].append(number)
    return [Ask(verb, scope, limit, tuple(group)) for (scope, limit), group in numbers.items()]


def batches(asks: Sequence[Ask]) -> Iterator[list[Ask]]:
    """Cut the asks into calls: of one verb each, none too long, in the same order."""
    batch: list[Ask] = []
    size = 0
    for ask in asks:
        for start in range(0, len(ask.numbers), MOST_PERMITS):
            numbers = ask.numbers[start : start + MOST_PERMITS]
            if batch and (batch[0].verb != ask.verb or size + len(numbers) > MOST_PERMITS):
                yield batch
                batch, size = [], 0
            # A report counts once, however many calls its permits need.
            report = ask.report if start == 0 else None
            batch.append(Ask(ask.verb, ask.scope, ask.limit, numbers, report))
            size += len(numbers)
    if batch:
        yield batch
