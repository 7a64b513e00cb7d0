"""The learned interval: at a site that meters its requests, refusals teach how far apart to start.

`lua/learned_interval.lua` learns it from how many requests the site answers between two refusals.
"""

from __future__ import annotations

from dataclasses import dataclass

from semaphore_middleware.link.text import digits
from semaphore_middleware.model.inspection import Finding
from semaphore_middleware.model.reasons import Reason
from semaphore_middleware.model.wire import Wire
from semaphore_middleware.politeness.policy import Policy


@dataclass(frozen=True, slots=True)
class IntervalFinding(Finding):
    """The interval between starts that a site's refusals have taught."""

    learned_interval: Wire[float | None] = None
    """In seconds; None: none."""
    interval_is_off: Wire[bool] = False
    """True if there is none for a while, as an interval has not helped."""

    @property
    def refuses_pages(self) -> bool:
        return self.interval_is_off

    @property
    def lesson(self) -> str:
        interval = self.learned_interval
        if not interval:
            return ""
        return f"{digits(1 / interval)}/s" if interval < 2 else f"{digits(60 / interval)}/m"


INTERVAL = Policy(
    name="learned_interval",
    finding=IntervalFinding,
    learned=(
        *("learned_interval", "held_interval", "interval_by_quota", "most_interval"),
        *("steps", "clean", "calm_until", "next_by_interval", "incident_at"),
        *("is_window_open", "window_since", "window_rest", "window_started", "window_refused"),
        *("trial_since", "trial_started", "trial_refused", "share_before", "time_before"),
        *("tried_interval", "off_until", "share_when_off"),
    ),
    reasons=(
        Reason(
            "paced", "not_yet", "An interval learned from the site's refusals spaces the starts."
        ),
    ),
)
