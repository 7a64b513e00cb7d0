"""What came of requests, as far as it tells how their site is: what nodes report to the server."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from semaphore_middleware.errors import SettingsError
from semaphore_middleware.model.validation import LONGEST_S


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one request. Times are in seconds."""

    latency: float | None = None
    """Until the site answered; None: it did not, or said "not now"."""
    refused: bool = False
    """It said "not now"; else, without a latency, it gave no answer."""
    retry_after: float = 0.0
    """When it said "not now": for how long. 0: it did not say."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long nobody starts a request at a site that said "not now", but not for how long.

    A pause doubles with each incident and halves with good answers. Raises `SettingsError` unless
    0.001 <= `start` <= `most` <= 1e9.
    """

    start: float = 1.0
    """Seconds, the first time; each further incident doubles them."""
    most: float = 300.0
    """Seconds that no pause is longer than, whatever the site says."""

    def __post_init__(self) -> None:
        if not 0.001 <= self.start <= self.most <= LONGEST_S:
            raise SettingsError(f"{self}: allowed is 0.001 <= start <= most <= 1e9, in seconds")


@dataclass(frozen=True, slots=True)
class Report:
    """Of requests of one scope. Ages are in seconds since they got their permits."""

    good: int = 0
    latency: float = 0.0
    """Mean of the logarithms of milliseconds, so that no single page decides."""
    good_age: float = 0.0
    """Of the oldest."""
    failed: int = 0
    refused: int = 0
    bad_age: float = 0.0
    """Of the youngest that failed or were refused."""
    retry_after: float = 0.0
    """The longest that the site asked for, in seconds; 0: it did not say."""

    @classmethod
    def of(cls, outcomes: Iterable[tuple[Outcome, float]]) -> Self:
        """Sum up outcomes, each with its request's age."""
        good: list[tuple[Outcome, float]] = []
        bad: list[tuple[Outcome, float]] = []
        for outcome, age in outcomes:
            (bad if outcome.latency is None else good).append((outcome, age))
        logarithms = [math.log(max(1.0, 1000 * (o.latency or 0.0))) for o, _ in good]
        refused = [outcome.retry_after for outcome, _ in bad if outcome.refused]
        return cls(
            good=len(good),
            latency=sum(logarithms) / len(good) if good else 0.0,
            good_age=max((age for _, age in good), default=0.0),
            failed=len(bad) - len(refused),
            refused=len(refused),
            bad_age=min((age for _, age in bad), default=0.0),
            retry_after=max(refused, default=0.0),
        )

    def packed(self, backoff: Backoff) -> bytes:
        """As the scripts read it; times in milliseconds."""
        return b"%d %.4f %d %d %d %d %d %d %d" % (
            self.good,
            self.latency,
            1000 * self.good_age,
            self.failed,
            self.refused,
            1000 * self.bad_age,
            math.ceil(1000 * min(self.retry_after, backoff.most)),
            math.ceil(1000 * backoff.start),
            math.ceil(1000 * backoff.most),
        )
