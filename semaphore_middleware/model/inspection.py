"""A scope as `inspect` shows it: its limit, and the nodes there. Times are in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

from semaphore_middleware.errors import HostDownError
from semaphore_middleware.model.limits import LIMITLESS, Limit, limit_word
from semaphore_middleware.model.reasons import Reason
from semaphore_middleware.model.wire import Wire

NO_LIMIT = Limit(LIMITLESS)


@dataclass(frozen=True, slots=True)
class Member:
    """A node at a scope, as `inspect` shows it. Times are in seconds."""

    node: str
    """The node's name."""
    held: Wire[int]
    """Permits held by the node."""
    waiting: Wire[int]
    """The node's requests waiting for a permit."""
    oldest: Wire[float]
    """Time since the grant of its oldest permit; 0: it holds none."""
    longest_wait: Wire[float]
    """Waiting time of its oldest request; 0: none waits."""
    lease_left: Wire[float]
    """Time until the node loses its permits and its place in the queue, unless it renews them."""
    asks_for: Limit
    """The limit named by its requests there."""
    job: str = ""
    """The node's job: its permits count in the job's share; empty: it has none."""
    failures: Wire[int] = 0
    """The node's requests without a response, in a row."""


@dataclass(frozen=True, slots=True)
class JobShare:
    """A job's part of a scope now."""

    job: str
    """The job's name; empty for the nodes without a job."""
    held: int
    """Permits held by its nodes."""
    waiting: int
    """Requests of its nodes waiting for a permit."""
    nodes: int

    @classmethod
    def of(cls, members: Sequence[Member]) -> tuple[Self, ...]:
        """The jobs of these nodes, by name; empty if all belong to one job."""
        by_job: dict[str, list[Member]] = {}
        for member in members:
            by_job.setdefault(member.job, []).append(member)
        if len(by_job) < 2:
            return ()
        return tuple(
            cls(
                job,
                sum(member.held for member in of_job),
                sum(member.waiting for member in of_job),
                len(of_job),
            )
            for job, of_job in sorted(by_job.items())
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """What a policy has found about a site: its part of each reply and inspection. A policy's own
    class adds fields with defaults, marked with `Wire`.
    """

    state: ClassVar[str] = ""
    """The site's state while its requests fail at once, except one at a time: such as `down`."""
    error: ClassVar[type[HostDownError]] = HostDownError
    """The error of these requests."""

    @property
    def shut_for(self) -> float | None:
        """Seconds since the first cause to fail its requests at once; None: they do not fail."""
        return None

    @property
    def shut(self) -> str:
        """The `state` while requests fail; empty: they do not fail."""
        return "" if self.shut_for is None else self.state

    @property
    def why(self) -> str:
        """Why requests fail: a sentence without its full stop; empty: they do not fail."""
        return ""

    @property
    def explains_failures(self) -> bool:
        """True if requests without a response are the site's fault, not the node's."""
        return False

    @property
    def refuses_pages(self) -> bool:
        """True if the site refuses some pages, however many requests there are."""
        return False

    @property
    def no_retry(self) -> str:
        """Why a refused request is not retried; empty: it may be."""
        return ""

    @property
    def lesson(self) -> str:
        """What was learned of the site, in a word or two, such as `5/s`; empty: nothing."""
        return ""

    def failure(self, scope: str) -> HostDownError:
        """The error of a request that fails at once."""
        return self.error(
            f"{scope} is {self.shut}. {self.why}; one request after each pause tries it again"
        )


@dataclass(frozen=True, slots=True)
class ServerState:
    """The state of a server, the same for all its scopes. Times are in seconds."""

    recovery_left: float = 0.0
    """Time until the server grants permits again, as it may have lost its data; 0: it grants."""
    silent_for: float = 0.0
    """Time since the last call of any node. The leases' clock stands still meanwhile: a wall clock
    set ahead ends no lease.
    """


@dataclass(frozen=True, slots=True)
class Inspection:
    """A scope as the server sees it, at one moment. Times are in seconds.

    Its text is `<scope>: <held>/<limit> held, <waiting> waiting`.
    """

    scope: str
    """Its name; usually a host."""
    limit: Wire[int | None]
    """Permits that may be held now; None if the scope is idle, and no operator has set a limit."""
    members: tuple[Member, ...]
    """The nodes with permits or waiting requests: waiting ones first, in the order of the queue."""
    limit_max: Wire[int | None] = None
    """The upper bound of an adaptive `limit`; otherwise `limit`."""
    effective: Limit = NO_LIMIT
    """The effective limit, with all its parts, before it adapts to the site's answers. An idle
    scope has the parts set by an operator.
    """
    next_start: Wire[float] = 0.0
    """Seconds until delay and rate allow the next start."""
    backoff_left: Wire[float] = 0.0
    """Seconds left of a pause that the site has caused or asked for; 0: no pause."""
    backoff_last: Wire[float] = 0.0
    """Seconds of the last pause not set by the site itself; good answers lower it."""
    paused: Wire[bool] = False
    """True if an operator has paused the scope."""
    set_by: str | None = None
    """The operator who set the rule on the server; None: the nodes' settings apply."""
    started: Wire[int] = 0
    """Requests begun since the scope was last idle."""
    reason: Wire[Reason | None] = None
    """The reason why nothing may start now; None: something may, or the scope is idle."""
    wait: Wire[float | None] = None
    """Seconds until something may start, at the earliest; None: not a matter of time alone."""
    kept: Wire[bool] = False
    """True if the server keeps the scope: it is in use, or its last starts or answers count."""
    jobs: tuple[JobShare, ...] = ()
    """The jobs' parts of the scope, by name; empty if all nodes belong to one job."""
    findings: tuple[Finding, ...] = ()
    """Of the policies. Their fields can be read as fields of the inspection, too."""

    def __getattr__(self, name: str) -> Any:
        for finding in () if name.startswith("_") else self.findings:
            if name in type(finding).__dataclass_fields__:
                return getattr(finding, name)
        raise AttributeError(name)

    @property
    def held(self) -> int:
        """Permits held on all nodes."""
        return sum(member.held for member in self.members)

    @property
    def strictest(self) -> tuple[Member, ...]:
        """The nodes with the strictest limit, or part of one, if others ask for a looser one."""
        asked = [member.asks_for.strictness for member in self.members]
        ranges = [(min(part), max(part)) for part in zip(*asked, strict=True)]
        return tuple(
            member
            for member, parts in zip(self.members, asked, strict=True)
            if any(least < part == most for part, (least, most) in zip(parts, ranges, strict=True))
        )

    @property
    def state(self) -> str:
        """The reason's name; without one `open`, or `idle` if nothing is held or waits."""
        if self.reason is not None:
            return self.reason.name
        return "open" if self.held or self.waiting else "idle"

    @property
    def why(self) -> str:
        """The reason in words, with its remaining time; empty: something may start."""
        texts = [self.reason.text(self.wait)] if self.reason else []
        return " ".join([*texts, *(f"{each.why}." for each in self.findings if each.why)])

    @property
    def learned(self) -> str:
        """What was learned from the site's answers, in a word or two; empty: nothing."""
        return ", ".join(each.lesson for each in self.findings if each.lesson)

    @property
    def of_policies(self) -> Mapping[str, Any]:
        """The fields of all findings, by name."""
        return {name: value for each in self.findings for name, value in asdict(each).items()}

    @property
    def waiting(self) -> int:
        """Requests waiting for a permit on all nodes."""
        return sum(member.waiting for member in self.members)

    @property
    def longest_wait(self) -> float:
        """Seconds of the oldest request's wait; 0: none waits."""
        return max((member.longest_wait for member in self.members), default=0.0)

    def __str__(self) -> str:
        limit = limit_word(self.limit)
        return f"{self.scope}: {self.held}/{limit} held, {self.waiting} waiting"
