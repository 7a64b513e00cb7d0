"""To and from the wire: what a node sends to the scripts, and what it reads from them.

No raw reply travels further than this file.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from semaphore_middleware.model.feedback import Backoff, FeedbackSummary
from semaphore_middleware.model.hosts import encoded
from semaphore_middleware.model.inspection import Inspection, Member
from semaphore_middleware.model.lease import STEP
from semaphore_middleware.model.limits import Limit
from semaphore_middleware.model.rules import LIMITLESS, PARTS, Rule

Verb = Literal["acquire", "release", "renew", "report"]
PERMITS_PER_CALL = 500  # so that no call keeps the server from others for long
# An epoch is kept for so long after its last use: a wall clock that is set an hour ahead must not
# expire it, for a node that is new could not tell that from an idle server.
EPOCH_KEPT_S = 3 * 3600.0
WORDS = rb"(?:granted \d{1,15}|again \d{1,15} \d{1,15}|quiet \d{1,15}|changed)"
NOTIFICATION = re.compile(rb"%b(?: %b)*" % (WORDS, WORDS))


def milliseconds(seconds: float) -> int:
    """Seconds as the server counts them, rounded up."""
    return math.ceil(seconds * 1000)


def clock_step_ms(lease: float) -> int:
    """By how much a bucket's clock may follow the wall clock in one call (see `clock.lua`)."""
    return milliseconds(STEP * lease)


# Permits ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ask:
    """A verb, for these permits of this scope. Only their numbers travel, never their names."""

    verb: Verb
    scope: str
    limit: Limit
    numbers: tuple[int, ...]
    feedback: FeedbackSummary | None = None
    """With the verb "report", which gives back like "release": what the site answered."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The server's reply to an ask. Times are in seconds."""

    ask: Ask
    granted: tuple[int, ...]
    """Of the node's permits, not only of those asked about."""
    lost: tuple[int, ...]
    available: int
    """Permits of the scope that are free now, less those that are waited for, of all nodes."""
    retry_in: float | None
    """Time until asking again is worth it, if only time keeps the first in the queue waiting."""
    limit: int
    """How many may hold a permit of the scope now."""
    wants_feedback: bool
    """True if the server wants feedback for ordinary responses too."""
    backoff: float | None
    """How long nothing starts at the site from now on, if this ask's feedback was the cause."""

    @classmethod
    def read(cls, ask: Ask, reply: Sequence[Any]) -> Self:
        """From a script's reply for one scope, whose times are in milliseconds."""
        _, retry_in, available, limit, wants_feedback, backoff, granted, lost = reply
        return cls(
            ask,
            tuple(int(number) for number in granted),
            tuple(int(number) for number in lost),
            available,
            retry_in / 1000 if retry_in >= 0 else None,
            limit,
            bool(wants_feedback),
            backoff / 1000 if backoff >= 0 else None,
        )


@dataclass(frozen=True, slots=True)
class Notification:
    """A message on a node's channel, or on the one for all nodes."""

    granted: tuple[int, ...] = ()
    retry_in: tuple[tuple[int, float], ...] = ()
    """A permit's number, and seconds until asking for it again is worth it."""
    backoff: tuple[int, ...] = ()
    """Permits whose site has refused a request since they were granted."""
    changed: bool = False
    """An operator has changed a rule, which may let waiting requests start."""

    @classmethod
    def read(cls, payload: bytes) -> Self | None:
        """None if it is not one of ours."""
        if not NOTIFICATION.fullmatch(payload):
            return None
        words = payload.split(b" ")
        granted: list[int] = []
        retry_in: list[tuple[int, float]] = []
        backoff: list[int] = []
        changed = False
        while words:
            word = words.pop(0)
            if word == b"granted":
                granted.append(int(words.pop(0)))
            elif word == b"again":
                retry_in.append((int(words.pop(0)), int(words.pop(0)) / 1000))
            elif word == b"quiet":
                backoff.append(int(words.pop(0)))
            else:
                changed = True
        return cls(tuple(granted), tuple(retry_in), tuple(backoff), changed)


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
        for start in range(0, len(ask.numbers), PERMITS_PER_CALL):
            numbers = ask.numbers[start : start + PERMITS_PER_CALL]
            if batch and (batch[0].verb != ask.verb or size + len(numbers) > PERMITS_PER_CALL):
                yield batch
                batch, size = [], 0
            # Feedback counts once, however many calls its permits need.
            feedback = ask.feedback if start == 0 else None
            batch.append(Ask(ask.verb, ask.scope, ask.limit, numbers, feedback))
            size += len(numbers)
    if batch:
        yield batch


def pack_ask(ask: Ask, backoff: Backoff) -> tuple[Any, ...]:
    """An ask as the scripts take it (see `prelude.lua`)."""
    limit, concurrency = ask.limit, min(ask.limit.concurrency, LIMITLESS)
    return (
        concurrency,
        milliseconds(limit.delay),
        limit.jitter,
        int(limit.adaptive),
        pack_feedback(ask.feedback, backoff) if ask.feedback else b"",
        len(ask.numbers),
        *ask.numbers,
    )


def pack_feedback(feedback: FeedbackSummary, backoff: Backoff) -> bytes:
    """Feedback as the scripts take it (see `answers.lua`)."""
    return b"%d %.4f %d %d %d %d %d %d %d" % (
        feedback.good,
        feedback.latency,
        1000 * feedback.good_age,
        feedback.failed,
        feedback.refused,
        1000 * feedback.bad_age,
        milliseconds(min(feedback.retry_after, backoff.most)),
        milliseconds(backoff.start),
        milliseconds(backoff.most),
    )


# Scopes -----------------------------------------------------------------------------------------


def read_inspection(scope: str, reply: Sequence[Any]) -> Inspection:
    """A scope from the reply of the script `inspect`, whose times are in milliseconds."""
    limit, limit_max, delay, next_start, left, last, paused, set_by, grants, *rest = reply
    holders, waiters = rest
    return Inspection(
        scope,
        limit or None,
        tuple(_read_member(*holder) for holder in holders),
        tuple(_read_member(*waiter) for waiter in waiters),
        limit_max or None,
        delay / 1000,
        next_start / 1000,
        left / 1000,
        last / 1000,
        bool(paused),
        set_by.decode("utf-8", "replace") or None,
        grants,
    )


def _read_member(id: bytes, age: int, lease_left: int) -> Member:
    return Member(id.decode("utf-8", "surrogatepass"), age / 1000, lease_left / 1000)


# Rules ------------------------------------------------------------------------------------------

# A bucket's rules key is a hash with a field "<part>:<name>" for each part of each rule.
READ_PART: Mapping[str, Callable[[bytes], Any]] = {
    "by": lambda value: value.decode("utf-8", "replace"),
    "concurrency": int,
    "delay": lambda value: int(value) / 1000,
    "jitter": float,
    "adaptive": lambda value: value == b"1",
    "paused": lambda value: value == b"1",
}


def rule_fields(name: str, parts: Iterable[str] = PARTS) -> list[bytes]:
    """The fields of some parts of the rule for one name."""
    return [encoded(f"{part}:{name}") for part in parts]


def rule_values(name: str, parts: Mapping[str, Any]) -> list[bytes]:
    """Fields and values, one after another, that set these parts of the rule for one name."""
    values: list[bytes] = []
    for part, value in parts.items():
        number = milliseconds(value) if part == "delay" else value
        values += (*rule_fields(name, [part]), encoded(value if part == "by" else str(+number)))
    return values


def read_rule(name: str, values: Sequence[bytes | None]) -> Rule | None:
    """The rule for one name from the values of all its fields; None if there is none of them."""
    found = zip(PARTS, values, strict=True)
    parts = {part: READ_PART[part](value) for part, value in found if value is not None}
    return Rule(**{"by": "", "name": name, **parts}) if parts else None


def read_rules(fields: Mapping[bytes, bytes]) -> list[Rule]:
    """All rules of one bucket."""
    rules: dict[str, dict[str, Any]] = {}
    for field, value in fields.items():
        part, _, name = field.decode("utf-8", "surrogatepass").partition(":")
        if part in READ_PART:
            rules.setdefault(name, {"by": "", "name": name})[part] = READ_PART[part](value)
    return [Rule(**rule) for rule in rules.values()]
