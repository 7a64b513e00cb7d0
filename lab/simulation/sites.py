"""Sites that refuse requests, and how long they ask crawlers to wait. Times are in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

BLOCKED_S = 50.0  # after which a site that only refuses is blocked


class Site(Protocol):
    """What a site makes of a request that reaches it at a time from the run's beginning."""

    def refuses(self, at: float) -> float | None:
        """The pause that it asks for, 0: it names none; None: it answers the request."""


class Wall:  # feature: blocked
    """A site that refuses everything until a time."""

    def __init__(self, opens_at: float) -> None:
        self.opens_at = opens_at

    def refuses(self, at: float) -> float | None:
        return None if at >= self.opens_at else 0.0


class Quota:  # feature: blocked
    """A site that answers so many requests in each period, and may name its reset."""

    def __init__(self, answers: int, period: float, is_named: bool) -> None:
        self.answers = answers
        self.period = period
        self.is_named = is_named
        self._number = -1
        self._answered = 0

    def refuses(self, at: float) -> float | None:
        number, passed = divmod(at, self.period)
        if number != self._number:
            self._number, self._answered = int(number), 0
        if self._answered < self.answers:
            self._answered += 1
            return None
        return self.period - passed if self.is_named else 0.0


class Meter:
    """A token bucket: `rates` a second, each from a time on; at most `burst` are saved up."""

    def __init__(self, rates: Sequence[tuple[float, float]], burst: float) -> None:
        self.rates = rates
        self.burst = burst
        self.answered = 0
        self.refused = 0
        self._tokens = burst
        self._at = 0.0

    def rate(self, at: float) -> float:
        """Requests a second that it allows at a time."""
        return [rate for since, rate in self.rates if since <= at][-1]

    def refuses(self, at: float) -> float | None:
        """As a `Site`."""
        self._tokens = min(self.burst, self._tokens + (at - self._at) * self.rate(at))
        self._at = at
        if self._tokens < 1:
            self.refused += 1
            return 0.0
        self.answered += 1
        self._tokens -= 1
        return None
