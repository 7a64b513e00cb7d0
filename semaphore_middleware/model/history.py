"""What was done to a site, minute by minute."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from semaphore_middleware.model.rules import Rule
from semaphore_middleware.model.validation import UNITS_S, check_period

parse_period = partial(
    check_period,
    most=366 * UNITS_S["d"],
    allowed="'0', or a number of s, m, h or d, like '7d', of at most 366 days",
    needs_unit=True,
)
"""The seconds of a history's period. Raises `SettingsError`."""


@dataclass(slots=True, order=True)
class Minute:
    """What nodes did to a site in a minute, or in a longer time. Times are in seconds."""

    at: int
    """The Unix time when it began."""
    requests: int = 0
    """Requests begun."""
    starts: int = 0
    """The most of them that began in one second."""
    most: int = 0
    """The most permits that were held at once."""
    limit: int = 0
    """The highest limit that was in force."""
    gap: float = 0.0
    """Between two starts, the shortest by the nodes' delay; 0: there was none."""
    interval: float = 0.0
    """Between two starts, on average, by the nodes' rate; 0: there was none."""
    size: int = 0
    """Bytes of the bodies of responses."""
    ok: int = 0
    redirected: int = 0
    client_errors: int = 0
    server_errors: int = 0
    silent: int = 0
    """Requests that ended without a response."""
    refused: int = 0
    """Requests that the site refused."""

    @classmethod
    def sum_of(cls, parts: Iterable[Minute], at: int) -> Self:
        """All parts together, as of `at`."""
        known = list(parts)
        return cls(
            at,
            **{
                name: (max if name in HIGHEST else sum)(
                    [getattr(one, name) for one in known] or [0]
                )
                for name in cls.__slots__[1:]
            },
        )


CLASSES = {"ok": "2xx", "redirected": "3xx", "client_errors": "4xx", "server_errors": "5xx"}
"""The counts of responses, and the statuses that they are of."""
CLASS_OF = {int(statuses[0]): name for name, statuses in CLASSES.items()}
"""The count by a status's first digit; that of other digits is `ok`."""
HIGHEST = ("starts", "most", "limit", "gap", "interval")
"""Of these a sum has the highest, not the sum."""


@dataclass(frozen=True, slots=True, order=True)
class Pause:
    """A pause of a site, in which no request was to begin. Times are in seconds."""

    at: float
    length: float
    asked: float
    """By the site itself; 0: it named no time."""
    refused: bool
    """True if the site refused a request; else it did not respond, or only asked for a pause."""
    last_start: float | None
    """How long after the beginning the last request began, on any node; None: none did."""


@dataclass(frozen=True, slots=True)
class Change:
    """What an operator has set for a name: a limit or a pause, or that nothing is set any more."""

    at: float
    name: str
    rule: Mapping[str, Any]

    def fits(self, scope: str) -> bool:
        """True if it holds for this scope."""
        return Rule(self.name, by="").fits(scope)


@dataclass(frozen=True, slots=True)
class ObeyedFile:
    """A robots.txt that nodes have obeyed, as the server keeps it."""

    at: float
    """When it was first fetched."""
    origin: str
    last: float
    """When its origin's file was last fetched."""
    packed: bytes


@dataclass(frozen=True, slots=True)
class History:
    """What was done to a scope between two Unix times."""

    scope: str
    since: float
    until: float
    minutes: tuple[Minute, ...]
    pauses: tuple[Pause, ...]
    changes: tuple[Change, ...]
    robotstxt: tuple[ObeyedFile, ...]
    ended: tuple[tuple[str, float], ...]
    """Nodes that ended without saying what they did last, and when they last spoke."""
    jobs: Mapping[str, int]
    """Requests begun, by job."""

    def hours(self) -> list[Minute]:
        """The sums of the hours in which anything was done."""
        by_hour: dict[int, list[Minute]] = {}
        for one in self.minutes:
            by_hour.setdefault(one.at // 3600 * 3600, []).append(one)
        return [Minute.sum_of(by_hour[begin], begin) for begin in sorted(by_hour)]

    def sum(self) -> Minute:
        """The sum of all minutes."""
        return Minute.sum_of(self.minutes, int(self.since))
