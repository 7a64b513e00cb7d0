"""Feedback: sites' answers to requests, as nodes report them to the server."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from semaphore_middleware.errors import SettingsError
from semaphore_middleware.model.validation import (
    LONGEST_S,
    check_integer,
    check_number,
    check_truth,
)
from semaphore_middleware.model.wire import Wire

MAX_STATUS = 999
"""The highest status of three digits, as HTTP has them."""
BANDWIDTH_LIMIT_EXCEEDED = 509


def teaches_interval(status: int) -> bool:
    """Whether a refusal with this status alone teaches an interval: a 5xx may come from one broken
    page, except 509, which is for a limit of the site's.
    """
    return not 500 <= status < 600 or status == BANDWIDTH_LIMIT_EXCEEDED


@dataclass(frozen=True, slots=True)
class Feedback:
    """A site's answer to one request. Times are in seconds.

    Without `latency`, `refused` and `failed` the site responded with an error: it is reachable, but
    nothing more is known.
    """

    latency: float | None = None
    """The time until a good answer; None: there was none."""
    refused: bool = False
    """True if the site refused the request."""
    failed: bool = False
    """True if the site did not respond at all."""
    retry_after: float = 0.0
    """Seconds of pause requested by the site, with any answer; 0: none."""
    status: int = 0
    """The status of the refusal; 0: it has none."""
    is_metered: bool = True
    """True if the site may have refused because of too many requests: that is not an error."""
    quota_interval: float = 0.0
    """Seconds between requests by the quota that the site names; 0: none."""
    what: str = ""
    """The refusal or failure in words, for the log of this node."""

    @property
    def cause(self) -> str:
        """The refusal or failure in words, in any case."""
        return self.what or ("refused a request" if self.refused else "did not respond")

    def __post_init__(self) -> None:
        # Otherwise a bad value would be found only in the call that reports it.
        if self.latency is not None:
            check_number(self.latency, "latency")
        for name in ("retry_after", "quota_interval"):
            check_number(getattr(self, name), name)
        check_integer(self.status, "status", least=0, most=MAX_STATUS)
        check_truth(self.is_metered, "is_metered")


@dataclass(frozen=True, slots=True)
class Backoff:
    """Lengths of pauses after refusals without Retry-After, and the time until a site is down.

    No node starts a request in a pause. A pause doubles with each incident and halves with good
    answers. Raises `SettingsError` unless 0.001 <= `start` <= `most` <= 1e9 and
    0 <= `down_after` <= 1e9.
    """

    start: Wire[float] = 1.0
    """Seconds of the first pause; each further incident doubles it."""
    most: Wire[float] = 300.0
    """Seconds of the longest pause, even if the site asks for a longer one."""
    down_after: Wire[float] = 60.0
    """Seconds without any response until requests for a permit fail (`HostDownError`)."""

    def __post_init__(self) -> None:
        for name in ("start", "most", "down_after"):
            check_number(getattr(self, name), f"Backoff.{name}")
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

    good: Wire[int] = 0
    """Requests answered well."""
    mean_log_ms: Wire[float] = 0.0
    """Mean of the logarithms of their latencies in milliseconds: no single page decides."""
    good_age: Wire[float] = 0.0
    """Age of the oldest of them."""
    errors: Wire[int] = 0
    """Requests answered with an error."""
    failed: Wire[int] = 0
    """Requests without a response."""
    refused: Wire[int] = 0
    """Requests refused by the site."""
    metered: Wire[int] = 0
    """Of these, refusals that may be because of too many requests."""
    quota_interval: Wire[float] = 0.0
    """The longest interval between requests by quotas that the site names, in seconds; 0: none."""
    bad_age: Wire[float] = 0.0
    """Age of the youngest failed or refused request."""
    answer_age: Wire[float] = 0.0
    """Age of the youngest request with any response."""
    retry_after: Wire[float] = 0.0
    """The longest pause requested by the site, in seconds; 0: none."""
    status: Wire[int] = 0
    """The status of the last refusal."""
    cause: str = "asked for a pause"
    """The reason for a pause, for the log of this node."""

    @classmethod
    def of(cls, items: Iterable[tuple[Feedback, float]]) -> Self:
        """Sum up feedback, each with its request's age."""
        known = list(items)
        good = [(feedback, age) for feedback, age in known if feedback.latency is not None]
        bad = [(feedback, age) for feedback, age in known if feedback.refused or feedback.failed]
        causes = [feedback.cause for feedback, _ in bad]
        logarithms = [math.log(max(1.0, 1000 * (f.latency or 0.0))) for f, _ in good]
        return cls(
            good=len(good),
            mean_log_ms=sum(logarithms) / len(good) if good else 0.0,
            good_age=max((age for _, age in good), default=0.0),
            errors=len(known) - len(good) - len(bad),
            failed=sum(feedback.failed for feedback, _ in bad),
            refused=sum(feedback.refused for feedback, _ in bad),
            metered=sum(feedback.refused and feedback.is_metered for feedback, _ in bad),
            quota_interval=max((f.quota_interval for f, _ in bad if f.refused), default=0.0),
            bad_age=min((age for _, age in bad), default=0.0),
            answer_age=min((age for feedback, age in known if not feedback.failed), default=0.0),
            retry_after=max((feedback.retry_after for feedback, _ in known), default=0.0),
            status=next((f.status for f, _ in reversed(bad) if f.refused), 0),
            cause=causes[-1] if causes else "asked for a pause",
        )
