"""The history of a site, minute by minute."""

from __future__ import annotations

import json
import math
import operator
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from semaphore_middleware.model.rules import LoggedChange
from semaphore_middleware.model.wire import Wire


@dataclass(slots=True, order=True)
class Minute:
    """All nodes' requests to a site in a minute, or in a longer time. Times are in seconds."""

    at: int
    """The Unix time of its beginning."""
    requests: Wire[int] = 0
    """Requests begun."""
    starts: Wire[int] = 0
    """The most requests begun in one second."""
    most: Wire[int] = 0
    """The most permits held at once."""
    limit: Wire[int] = 0
    """The highest effective limit."""
    least_interval: Wire[float] = math.inf
    """The shortest effective time between any two starts; 0: there was none at some time; infinite:
    not known."""
    interval: Wire[float] = math.inf
    """As `least_interval`, on average, if a rate that allows bursts was slower."""
    size: Wire[int] = 0
    """Bytes of the bodies of responses."""
    ok: Wire[int] = 0
    redirected: Wire[int] = 0
    client_errors: Wire[int] = 0
    server_errors: Wire[int] = 0
    silent: Wire[int] = 0
    """Requests without a response."""
    refused: Wire[int] = 0
    """Requests refused by the site."""

    @classmethod
    def sum_of(cls, parts: Iterable[Minute], at: int) -> Self:
        """The sum of the parts, beginning at `at`."""
        total = cls(at)
        for part in parts:
            for name in cls.__slots__[1:]:
                a, b = getattr(total, name), getattr(part, name)
                setattr(total, name, SUMS.get(name, operator.add)(a, b))
        return total


CLASSES = {"ok": "2xx", "redirected": "3xx", "client_errors": "4xx", "server_errors": "5xx"}
"""The counts of responses, each with its statuses."""
_CLASS_OF = {int(statuses[0]): name for name, statuses in CLASSES.items()}
SHORT_S = 7200
HIGHEST = ("starts", "most", "limit")
"""The parts with a maximum, not a sum, in a sum of minutes."""
LOWEST = ("least_interval", "interval")
"""The parts with a minimum."""
SUMS: Mapping[str, Callable[[Any, Any], Any]] = dict.fromkeys(HIGHEST, max) | dict.fromkeys(
    LOWEST, min
)


def class_of(status: int) -> str:
    """The name of the count of responses with this status, one of `CLASSES`.

    A status below 200 counts as `ok`. One above 599 is invalid, and a server error (RFC 9110, 15).
    """
    return _CLASS_OF.get(min(status // 100, 5), "ok")


@dataclass(frozen=True, slots=True, order=True)
class Pause:
    """A pause of a site, in which no request should begin. Times are in seconds."""

    at: float
    length: float
    asked: float
    """The length requested by the site itself; 0: it named none."""
    refused: bool
    """The site refused a request; otherwise it did not respond, or only asked for a pause."""
    last_start: float | None
    """Time from the pause's beginning to the last request begun in it; None: there was none."""


@dataclass(frozen=True, slots=True)
class OperatorsPause:
    """A pause that an operator has set. Times are in seconds."""

    at: float
    length: float
    """Until now if it lasts."""
    by: str
    """Who paused the site."""
    ended_by: str | None
    """Who resumed it; None: it lasts."""


@dataclass(frozen=True, slots=True)
class ObeyedFile:
    """A robots.txt obeyed by nodes."""

    at: float
    """The Unix time when it was first fetched."""
    until: float | None
    """The Unix time when another one replaced it; None: it is the newest of its origin."""
    origin: str
    status: int
    """The status of the response; 0: there was none."""
    problem: str
    """Why the file could not be read; empty: it was read."""
    text: str

    @staticmethod
    def pack(status: int, problem: str, text: bytes) -> bytes:
        """The bytes kept by the server."""
        return json.dumps([status, problem]).encode() + b"\n" + zlib.compress(text)

    @classmethod
    def read(cls, at: float, until: float | None, origin: str, packed: bytes) -> Self:
        """The file from the bytes kept by the server."""
        head, _, text = packed.partition(b"\n")
        status, problem = json.loads(head)
        body = zlib.decompress(text).decode("utf-8", "replace")
        return cls(at, until, origin, status, problem, body)


@dataclass(frozen=True, slots=True)
class History:
    """The history of a scope between two Unix times."""

    scope: str
    since: float
    until: float
    minutes: tuple[Minute, ...]
    pauses: tuple[Pause, ...]
    operators_pauses: tuple[OperatorsPause, ...]
    """Of this scope, or of all that a pattern fits."""
    changes: tuple[LoggedChange, ...]
    """Rule changes, and the last ones before `since`, whose rules were still effective; with the
    time 0 if they are older than the log.
    """
    robotstxt: tuple[ObeyedFile, ...]
    ended: tuple[tuple[str, float], ...]
    """Nodes that ended without writing their last requests, each with the time it last wrote."""
    jobs: Mapping[str, int]
    """Requests begun, by job, in whole hours of the clock, beginning with that of `since`."""

    def hours(self) -> list[Minute]:
        """The sums of all hours with requests."""
        by_hour: dict[int, list[Minute]] = {}
        for minute in self.minutes:
            by_hour.setdefault(minute.at // 3600 * 3600, []).append(minute)
        return [Minute.sum_of(by_hour[begin], begin) for begin in sorted(by_hour)]

    def sum(self) -> Minute:
        """The sum of all minutes."""
        return Minute.sum_of(self.minutes, int(self.since))

    @property
    def is_short(self) -> bool:
        """True if it is better shown by minutes than by hours."""
        return not self.minutes or self.minutes[-1].at - self.minutes[0].at < SHORT_S
