"""Feedback: how sites answer requests, as nodes report it to the server."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from semaphore_middleware.errors import SettingsError
from semaphore_middleware.model.validation import LONGEST_S


@dataclass(frozen=True, slots=True)
class Feedback:
    """How a site answered one request. Times are in seconds."""

    latency: float | None = None
    """Until the site answered well; None: it did not."""
    refused: bool = False
    """Whether it refused the request."""
    failed: bool = False
    """Whether it did not respond at all. Without all three it responded with an error: it is there,
    and more is not known."""
    retry_after: float = 0.0
    """Seconds of pause that the site asked for, whatever its answer was; 0: none."""
    what: str = "refused a request"
    """What it did if it refused the request, for the log of this node."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to pause after a refusal without Retry-After, and when a site counts as down. No
    node starts a request in a pause.

    A pause doubles with each incident and halves with good answers. Raises `SettingsError` unless
    0.001 <= `start` <= `most` <= 1e9 and 0 <= `down_after` <= 1e9.
    """

    start: float = 1.0
    """Seconds of the first pause; each further incident doubles it."""
    most: float = 300.0
    """Seconds of the longest pause, whatever the site says."""
    down_after: float = 60.0
    """Seconds without any response, after which requests for a permit fail (`HostDownError`)."""

    def __post_init__(self) -> None:
        if not (
            0.001 <= self.start <= self.most <= LONGEST_S and 0 <= self.down_after <= LONGEST_S
        ):
            raise SettingsError(
                f"{self}: allowed is 0.001 <= start <= most <= 1e9, and 0 <= down_after <= 1e9, in "
                "seconds"
            )


@dataclass(frozen=True, slots=True)
class FeedbackSummary:
    """Feedback on several requests of one scope. Ages are in seconds since their permits' grant."""

    good: int = 0
    """Requests that were answered well."""
    mean_log_ms: float = 0.0
    """Mean of the logarithms of their latencies in milliseconds, so that no single page decides."""
    good_age: float = 0.0
    """Age of the oldest of them."""
    errors: int = 0
    """Requests that were answered with an error."""
    failed: int = 0
    """Requests without a response."""
    refused: int = 0
    """Requests that the site refused."""
    bad_age: float = 0.0
    """Age of the youngest that failed or was refused."""
    retry_after: float = 0.0
    """The longest pause that the site asked for, in seconds; 0: it did not say."""
    cause: str = "asked for a pause"
    """What the site did to begin a pause, for the log of this node."""

    @classmethod
    def of(cls, items: Iterable[tuple[Feedback, float]]) -> Self:
        """Sum up feedback, each with its request's age."""
        all_ = list(items)
        good = [(feedback, age) for feedback, age in all_ if feedback.latency is not None]
        bad = [(feedback, age) for feedback, age in all_ if feedback.refused or feedback.failed]
        causes = [feedback.what if feedback.refused else "did not respond" for feedback, _ in bad]
        logarithms = [math.log(max(1.0, 1000 * (f.latency or 0.0))) for f, _ in good]
        return cls(
            good=len(good),
            mean_log_ms=sum(logarithms) / len(good) if good else 0.0,
            good_age=max((age for _, age in good), default=0.0),
            errors=len(all_) - len(good) - len(bad),
            failed=sum(feedback.failed for feedback, _ in bad),
            refused=sum(feedback.refused for feedback, _ in bad),
            bad_age=min((age for _, age in bad), default=0.0),
            retry_after=max((feedback.retry_after for feedback, _ in all_), default=0.0),
            cause=causes[-1] if causes else "asked for a pause",
        )
