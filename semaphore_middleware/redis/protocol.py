"""To and from the wire: what a node says to the scripts, and what it hears from them.

No raw reply travels further than this file.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from operator import attrgetter
from struct import Struct
from typing import Any, Self, TypeVar

from semaphore_middleware.model.feedback import Backoff, FeedbackSummary
from semaphore_middleware.model.history import HIGHEST, Change, History, Minute, ObeyedFile, Pause
from semaphore_middleware.model.hosts import decoded
from semaphore_middleware.model.inspection import Inspection, Member, ServerState
from semaphore_middleware.model.jobs import JobShare
from semaphore_middleware.model.lease import STEP
from semaphore_middleware.model.limits import LIMITLESS, Limit, rate_text
from semaphore_middleware.model.rules import PARTS, Rule
from semaphore_middleware.redis.records import (
    HEAD,
    LIMIT,
    OF_KEYS,
    Record,
    Status,
    numbers_of,
)

SILENT_S = 90.0
"""A node that was silent for longer than this says nothing any more: it would each minute."""

VERSION = "5"
"""Of the protocol: nodes that speak different ones do not share a server."""

T = TypeVar("T")


def milliseconds(seconds: float) -> int:
    """Seconds as the server counts them, rounded up."""
    return math.ceil(seconds * 1000)


# Statements -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Statement:
    """All that a node has to say of its account with a scope. Times are in seconds.

    `asked`, `returned`, `believed` and `started` count from the account's opening, so a statement
    may be heard twice, late, or not at all.
    """

    scope: str
    limit: Limit
    term: int
    """Number of the account: the node's own, and only growing."""
    seq: int
    """Number of the statement under this term."""
    asked: int
    """Permits asked for, less those no longer wanted."""
    returned: int
    """Permits given back."""
    believed: int
    """Permits granted, as far as the node has heard."""
    started: int
    """Requests that began."""
    pending: int
    """Of the permits that it holds, those under which no request has begun."""
    held_age: float
    """For how long its oldest request has held a permit."""
    wait_age: float
    """For how long its oldest request has waited for one."""
    feedback: FeedbackSummary | None = None
    """How the site answered the requests whose permits this statement gives back."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The server's reply to a statement. Times are in seconds."""

    statement: Statement
    status: Status
    """`lost`: the account is gone, though the node believes that it holds permits. `old`: the
    server knows a higher `term`. `refused`: the statement makes no sense. `unreadable`: the scope's
    keys hold something else.
    """
    term: int
    granted: int
    available: int
    """Permits of the scope that are free now, less those that are waited for, of all nodes."""
    limit: int
    """How many may hold a permit of the scope now."""
    is_counted: bool
    """True if each start counts or is to be reported, so that no permit is handed on."""
    is_paced: bool
    """True if a delay or a rate is in force, so that each start is to be said at once."""
    wants_feedback: bool
    """True if the server wants feedback for ordinary responses too."""
    is_stricter: bool
    """True if another node asks for a stricter limit than this one."""
    retry_in: float | None
    """Time until asking again is worth it, if only time keeps the first in the queue waiting."""
    backoff: float | None
    """How long nothing starts at the site from now on, if this feedback was the cause."""
    down_for: float | None
    """For how long the site has not responded, if it counts as down."""
    answered_ago: float | None
    """How long ago the youngest request began that is known to be answered well."""
    held: int
    """Permits of the scope that are held now, by all nodes."""
    paused_at: int
    """When the last pause of the site began, in milliseconds by the server's wall clock."""
    problem: str = ""
    """What is wrong with what the server knows of the scope; empty: nothing."""

    @classmethod
    def read(cls, statement: Statement, reply: bytes) -> Self:
        """From the script's reply for one scope."""
        said = *REPLY.values(reply), reply[REPLY.size :].decode("utf-8", "replace")
        return cls(statement, *said)


STATEMENT = Record((*numbers_of(Statement), *LIMIT))
FEEDBACK = Record(numbers_of(FeedbackSummary, Backoff))
REPLY = Record(numbers_of(Reply))
MINUTE = Record({name: kind for name, kind in numbers_of(Minute).items() if name != "at"})
PAUSE, _LIMIT = OF_KEYS["pause"], OF_KEYS["limit"]
INSPECTION, MEMBER = Record(numbers_of(Inspection)), Record(numbers_of(Member))
RECORDS: Mapping[str, Record] = {
    **OF_KEYS,
    "head": HEAD,
    "statement": STATEMENT,
    "feedback": FEEDBACK,
    "reply": REPLY,
    "minute": MINUTE,
    "highest": Record(HIGHEST),
    "inspection": INSPECTION,
    "member": MEMBER,
}
"""By the names that scripts have for them."""


NUMBERS = {"granted": 2, "retry": 1, "backoff": 1, "down": 1, "robotstxt": 0, "changed": 0}
"""How many numbers each kind of notification has, before the scope. Times are in milliseconds.

- `granted`: the term, and how many permits are granted under it.
- `retry`: time until asking again is worth it.
- `backoff`: when the pause began, by the server's wall clock.
- `down`: for how long the site has not responded.
- `robotstxt`: a file that this node waits for was fetched, or is to be.
- `changed`: an operator has changed a rule, which may let waiting requests start. To all nodes.
"""
_NUMBER = re.compile("[0-9]{1,16}")


@dataclass(frozen=True, slots=True)
class Notification:
    """A message on a node's channel, or on the one for all nodes (without a scope)."""

    kind: str
    scope: str = ""
    """Of a robots.txt its origin: scheme, host and port."""
    numbers: tuple[int, ...] = ()

    @classmethod
    def read(cls, payload: bytes) -> Self | None:
        """None if it is not one of ours."""
        try:
            kind, _, rest = decoded(payload).partition(" ")
        except UnicodeDecodeError:
            return None
        *numbers, scope = rest.split(" ", NUMBERS.get(kind, 0))
        is_whole = len(numbers) == NUMBERS.get(kind) and all(map(_NUMBER.fullmatch, numbers))
        if not is_whole or (kind == "changed" and scope):
            return None
        return cls(kind, scope, tuple(map(int, numbers)))


def batches(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """Cut what is for the server into calls of at most `most`, in the same order, so that none
    keeps it from others for long.
    """
    for start in range(0, len(items), most):
        yield items[start : start + most]


def pack_head(
    lease: float, random_number: float = 0.0, silent: float = math.inf, history: float = 0.0
) -> bytes:
    """What each call begins with (see `clock.lua`). Times are in seconds."""
    times = 1000 * silent, 1000 * history
    return HEAD.pack(1000 * lease, 1000 * STEP * lease, random_number, *times)


_numbers_of = attrgetter(*numbers_of(Statement))


def pack_statement(statement: Statement, backoff: Backoff) -> bytes:
    """A statement as the script takes it (see `sync.lua`)."""
    numbers = STATEMENT.pack(*_numbers_of(statement), *pack_limit(statement.limit))
    feedback = statement.feedback
    return numbers + pack_feedback(feedback, backoff) if feedback else numbers


@lru_cache(maxsize=512)
def pack_limit(limit: Limit) -> tuple[float, ...]:
    """A limit as the script takes it."""
    return (
        min(limit.concurrency, LIMITLESS),
        milliseconds(limit.delay),
        limit.jitter,
        limit.adaptive,
        1000 * limit.interval,
        limit.burst,
    )


def pack_feedback(feedback: FeedbackSummary, backoff: Backoff) -> bytes:
    """Feedback as the script takes it (see `read_feedback`)."""
    said = asdict(feedback) | asdict(backoff)
    said["retry_after"] = min(feedback.retry_after, backoff.most)
    return FEEDBACK.pack(*(said[name] for name in FEEDBACK.names))


# The history ------------------------------------------------------------------------------------

_SECONDS = Struct(">60H")


@dataclass(slots=True, kw_only=True)
class Tally(Minute):
    """What a node did to a site in one minute, for the history. It goes to the server once."""

    scope: str
    seconds: list[int] = field(default_factory=lambda: [0] * 60)
    """The starts in each."""
    late: dict[int, float] = field(default_factory=dict)
    """By the beginning of a pause: how many milliseconds later the last request began."""

    def pack(self) -> bytes:
        """As the script takes it: the record `minute`; the starts in each second, in 2 bytes; then
        two numbers for each pause during which a request has begun: when the pause began, and how
        much later the last request did.
        """
        self.starts = max(self.seconds)
        starts = _SECONDS.pack(*(min(one, 65535) for one in self.seconds))
        late = b"".join(_PAIR.pack(*pair) for pair in self.late.items())
        return MINUTE.pack(*_counts_of(self)) + starts + late


_PAIR, _DOUBLE = Struct(">2d"), Struct(">d")
_counts_of = attrgetter(*MINUTE.names)


@dataclass(frozen=True, slots=True)
class Batch:
    """What a node says for the history in one call. Each number counts once."""

    number: int
    minute: int
    tallies: Sequence[Tally]
    is_last: bool
    """True if the node says no more."""


def read_history(
    scope: str,
    since: float,
    until: float,
    hours: Iterable[tuple[int, Sequence[bytes]]],
    nodes: Sequence[Any],
    changes: Sequence[bytes],
    files: Sequence[bytes],
) -> History:
    """The history of a scope between two Unix times: from the fields of its hours; the nodes that
    have not said the last, with when they last spoke; changes of rules; and robots.txt files.
    """
    minutes, pauses, jobs = [], [], Counter[str]()
    for hour, fields_ in hours:
        for name, value in zip(fields_[::2], fields_[1::2], strict=True):
            kind, _, rest = name.decode().partition(":")
            if kind == "job":
                jobs[rest or "-"] += int(value)
            elif kind == "pause":
                pauses.append(_read_pause(int(rest), *PAUSE.unpack_from(value)))
            else:
                minutes.append(Minute(3600 * hour + 60 * int(kind), *MINUTE.values(value)))
    silent = [
        (node.decode(), float(at) / 1000) for node, at in zip(nodes[::2], nodes[1::2], strict=True)
    ]
    rules = [one for text in changes if (one := _read_change(text)).fits(scope)]
    return History(
        scope=scope,
        since=since,
        until=until,
        minutes=tuple(sorted(one for one in minutes if since - 60 < one.at)),
        pauses=tuple(sorted(one for one in pauses if since < one.at)),
        changes=tuple(one for one in rules if since < one.at),
        robotstxt=tuple(_read_files(files)),
        ended=tuple((node, at) for node, at in silent if since < at < until - SILENT_S),
        jobs=dict(jobs),
    )


def _read_pause(at: int, length: float, asked: float, refused: float, last: float) -> Pause:
    times = at / 1000, length / 1000, asked / 1000
    return Pause(*times, refused == 1, last / 1000 if last >= 0 else None)


def _read_change(text: bytes) -> Change:
    at, _, rest = text.decode("utf-8", "replace").partition(" ")
    name, _, rule = rest.partition("\n")
    return Change(int(at) / 1000, name, json.loads(rule) if rule else {})


def _read_files(files: Sequence[bytes]) -> Iterator[ObeyedFile]:
    """The robots.txt files of a host, the oldest first."""
    known = dict(zip(files[::2], files[1::2], strict=True))
    for name in sorted(known):
        at, _, origin = name.decode().partition(" ")
        if at.isdigit():
            last = int(known[b"last " + origin.encode()]) / 1000
            yield ObeyedFile(int(at) / 1000, origin, last, known[name])


# Scopes -----------------------------------------------------------------------------------------


def read_server_state(times: bytes, weights: Sequence[bytes]) -> ServerState:
    """From the first two parts of the reply of the script `inspect`."""
    pairs = zip(weights[::2], weights[1::2], strict=True)
    by_job = {decoded(name): float(text) for name, text in pairs}
    recovery_left, silent_for = _PAIR.unpack(times)
    return ServerState(recovery_left, silent_for, by_job)


def read_inspection(
    scope: str, reply: tuple[bytes, bytes, Sequence[Any]], set_weights: Mapping[str, float]
) -> Inspection:
    """A scope, from what the script `inspect` replies for it."""
    packed, set_by, rows = reply
    members = tuple(_read_member(*row) for row in rows)
    (interval,) = _DOUBLE.unpack_from(packed, INSPECTION.size)
    return Inspection(
        scope,
        members=members,
        rate=rate_text(interval / 1000) if interval else None,
        set_by=set_by.decode("utf-8", "replace") or None,
        jobs=JobShare.of(members, set_weights),
        **INSPECTION.fields(packed),
    )


def _read_member(node: bytes, job: bytes, packed: bytes) -> Member:
    concurrency, delay, jitter, adaptive, interval, burst = _LIMIT.unpack_from(packed, MEMBER.size)
    asks_for = Limit(
        int(concurrency),
        delay / 1000,
        jitter,
        adaptive == 1,
        rate_text(interval / 1000) if interval else None,
        int(burst),
    )
    return Member(decoded(node), asks_for=asks_for, job=decoded(job), **MEMBER.fields(packed))


# Rules ------------------------------------------------------------------------------------------


def pack_parts(parts: Mapping[str, Any]) -> bytes:
    """Parts of a rule as the server keeps them: a JSON object."""
    return json.dumps(parts, default=str).encode()


def read_rule(name: str, text: bytes) -> Rule | None:
    """The rule for one name; None: the text is no JSON object, and the server ignores it."""
    try:
        read = json.loads(text)
    except ValueError:
        return None
    if not isinstance(read, dict):
        return None
    parts = {part: value for part, value in read.items() if part in PARTS}
    if "concurrency" in parts:  # the server's JSON knows no integers
        parts["concurrency"] = int(parts["concurrency"])
    if "burst" in parts:
        parts["burst"] = int(parts["burst"])
    return Rule(**{"by": "", "name": name, **parts})
