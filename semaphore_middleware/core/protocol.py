"""To and from the wire: a node's updates, and the scripts' replies.

No raw reply travels further than this file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import islice
from operator import attrgetter
from typing import Self, TypeVar

from semaphore_middleware.core.records import (
    HEAD,
    LIMIT,
    OF_KEYS,
    Record,
    Status,
    numbers_of,
)
from semaphore_middleware.link.lease import STEP
from semaphore_middleware.link.text import decoded, encoded
from semaphore_middleware.model.feedback import Backoff, FeedbackSummary
from semaphore_middleware.model.hosts import clean
from semaphore_middleware.model.inspection import Finding
from semaphore_middleware.model.limits import BY_NAME, Limit
from semaphore_middleware.model.reasons import Reason
from semaphore_middleware.model.wire import Wire
from semaphore_middleware.politeness import NO_FINDINGS, POLICIES

VERSION = "+".join(["12", *(policy.name for policy in POLICIES)])
"""Of the protocol: nodes of different versions, or with other policies, do not share a server."""

CLOSE_S = 0.002
"""Two intervals so close are the same: on the wire they are rounded up to milliseconds."""

T = TypeVar("T")


def milliseconds(seconds: float) -> int:
    """Seconds as the server counts them, rounded up."""
    return math.ceil(seconds * 1000)


# Updates ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaseUpdate:
    """The totals of a node's lease on a scope, as the node sends them. Times are in seconds.

    `requested`, `returned`, `granted_ack` and `started` count from the beginning of the lease, so
    an update may be applied twice, late, or not at all.
    """

    scope: str
    limit: Limit
    lease_id: Wire[int]
    """The lease's number, chosen by its node; it only grows."""
    seq: Wire[int]
    """Number of the update under this lease."""
    requested: Wire[int]
    """Permits asked for, less those no longer wanted."""
    returned: Wire[int]
    """Permits given back."""
    granted_ack: Wire[int]
    """Permits granted, as far as the node knows."""
    started: Wire[int]
    """Requests begun."""
    unstarted: Wire[int]
    """Permits held without a request begun under them."""
    suspended: Wire[int]
    """Further requests that wait while this node pauses, without asking for a permit."""
    held_age: Wire[float]
    """For how long its oldest request has held a permit."""
    wait_age: Wire[float]
    """For how long its oldest request has waited for one."""
    start_age: Wire[float]
    """How long ago the last request began."""
    feedback: FeedbackSummary | None = None
    """How the site answered the requests whose permits this update gives back."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The server's reply to an update. Times are in seconds."""

    update: LeaseUpdate
    status: Wire[Status]
    """`lost`: the server has no entry of the lease, under which the node still claims permits.
    `old`: the server knows a higher `lease_id`. `refused`: the update makes no sense. `unreadable`:
    the scope's keys hold something else.
    """
    lease_id: Wire[int]
    """Of the node's entry on the server: with `old`, higher than the update's; 0: it has none."""
    granted: Wire[int]
    """Permits granted in all under that lease."""
    available: Wire[int]
    """Free permits of the scope, less those waited for, of all nodes."""
    limit: Wire[int]
    """How many may hold a permit of the scope now."""
    starts_count: Wire[bool]
    """Whether starts are spaced, forbidden or measured, so that no permit is reused."""
    interval: Wire[float | None]
    """The time from one start to the next, by a rate, a learned interval, or a delay at its
    shortest; None: there is none. While it is set, each start is reported before the next one is
    due.
    """
    least_interval: Wire[float | None]
    """As `interval`, without a rate that allows bursts: no two starts are closer."""
    wants_feedback: Wire[bool]
    """Whether nodes should report ordinary responses, too."""
    is_stricter: Wire[bool]
    """Whether another node asks for a stricter limit than this one."""
    retry_in: Wire[float | None]
    """In how long to ask again, if the first in the queue only waits for time to pass."""
    backoff: Wire[float | None]
    """For how long no request may start at the site, if this feedback has begun the pause."""
    answered_ago: Wire[float | None]
    """How long ago the newest request with a good answer began."""
    held: Wire[int]
    """Permits of the scope held now, by all nodes."""
    paused_at: Wire[int]
    """When the last pause of the site began, in milliseconds by the server's wall clock."""
    pause_length: Wire[float]
    """The length of that pause, in milliseconds."""
    reason: Wire[Reason | None]
    """Why no waiting request of any node may start; None: none waits, or one may."""
    findings: tuple[Finding, ...] = NO_FINDINGS
    """Of the policies, in their order."""
    problem: str = ""
    """A problem with the server's data of the scope; empty: none."""

    @property
    def held_back_by(self) -> str:
        """The reason in a word or two: limit 2; delay 1.5 s; backoff. A delay or a rate has its
        number only if it is that of this node: operators or other nodes may have set another one.
        """
        if self.reason is None:
            return ""
        name, own = self.reason.name, self.update.limit
        its_interval = {"delay": own.least_interval, "rate": own.interval}.get(name)
        if name == "full":
            return BY_NAME["concurrency"].word(self.limit)
        if its_interval and abs(its_interval - (self.interval or 0.0)) < CLOSE_S:
            return BY_NAME[name].word(getattr(own, name))
        return name

    @classmethod
    def read(cls, update: LeaseUpdate, reply: bytes) -> Self:
        """Read the script's reply for one scope."""
        end = REPLY.size + FINDINGS.size
        findings = read_findings(reply[REPLY.size : end])
        problem = reply[end:].decode("utf-8", "replace")
        values = (*REPLY.values(reply), findings, problem)
        return cls(update, *values)


UPDATE = Record({**numbers_of(LeaseUpdate), **LIMIT})
FEEDBACK = Record(numbers_of(FeedbackSummary, Backoff))
REPLY = Record(numbers_of(Reply))
OF_POLICIES = {policy.name: Record(numbers_of(policy.finding)) for policy in POLICIES}
FINDINGS = Record(numbers_of(*(policy.finding for policy in POLICIES)))
RECORDS: Mapping[str, Record] = {
    **OF_KEYS,
    "head": HEAD,
    "update": UPDATE,
    "feedback": FEEDBACK,
    "reply": REPLY,
    "findings": FINDINGS,
}
"""By their names in scripts."""


NUMBERS = {
    "granted": 2,
    "retry": 1,
    "backoff": 2,
    "changed": 0,
    **{name: len(record.names) for name, record in OF_POLICIES.items()},
}
"""How many numbers each kind of notification has, before the scope. Times are in milliseconds.

- `granted`: the lease id, and how many permits are granted under it.
- `retry`: in how long to ask again.
- `backoff`: when the pause began, by the server's wall clock, and how long it is.
- `changed`: an operator has changed something, which may let waiting requests start: who has done
  what, as text. To all nodes.
- The name of a policy: its finding.
"""
_NUMBER = re.compile("[0-9]{1,16}")


@dataclass(frozen=True, slots=True)
class Notification:
    """A message on a node's channel, or on the one for all nodes (without a scope)."""

    kind: str
    scope: str = ""
    numbers: tuple[int, ...] = ()
    change: str = ""
    """Who has done what, as in: me@here has paused example.com."""

    @classmethod
    def read(cls, payload: bytes) -> Self | None:
        """Read a message; None if it is not a notification."""
        try:
            kind, _, rest = decoded(payload).partition(" ")
        except UnicodeDecodeError:
            return None
        *numbers, scope = rest.split(" ", NUMBERS.get(kind, 0))
        if kind == "changed":
            return cls(kind, change=clean(scope))
        is_whole = len(numbers) == NUMBERS.get(kind) and all(map(_NUMBER.fullmatch, numbers))
        return cls(kind, scope, tuple(map(int, numbers))) if is_whole else None

    @property
    def finding(self) -> Finding | None:
        """The finding in a policy's notification; None: it is of another kind."""
        for policy in POLICIES:
            if policy.name == self.kind:
                return policy.finding(*OF_POLICIES[self.kind].read(self.numbers))
        return None


@lru_cache(8)  # about most sites nothing is found
def read_findings(packed: bytes) -> tuple[Finding, ...]:
    """The findings of all policies."""
    values = iter(FINDINGS.values(packed))
    return tuple(
        policy.finding(*islice(values, len(OF_POLICIES[policy.name].names))) for policy in POLICIES
    )


def pack_change(by: str, what: str) -> bytes:
    """The notification of a change, to all nodes."""
    return encoded(f"changed {by} has {what}")


def pack_head(
    lease: float, random_number: float = 0.0, silent: float = math.inf, machine: int = 0
) -> bytes:
    """The head of each call (see `clock.lua`). Times are in seconds."""
    return HEAD.pack(1000 * lease, 1000 * STEP * lease, random_number, 1000 * silent, machine)


_numbers_of = attrgetter(*numbers_of(LeaseUpdate))


def pack_update(update: LeaseUpdate, backoff: Backoff) -> bytes:
    """An update as the script takes it (see `sync.lua`), with its feedback if there is any."""
    packed = UPDATE.pack(*_numbers_of(update), *update.limit.pack())
    if update.feedback is None:
        return packed
    numbers = asdict(update.feedback) | asdict(backoff)
    return packed + FEEDBACK.pack(*(numbers[name] for name in FEEDBACK.names))
