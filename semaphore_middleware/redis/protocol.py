"""What a node says to the scripts and hears from them: no raw reply travels further than here."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from semaphore_middleware.model.feedback import Report
from semaphore_middleware.model.limits import Limit

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
