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

    learned_gap: Wire[float | None] = None
    """In seconds; None: none."""

    @property
    def lesson(self) -> str:
        """See `Finding`."""
        gap = self.learned_gap
        if not gap:
            return ""
        return f"{digits(1 / gap)}/s" if gap < 2 else f"{digits(60 / gap)}/m"


INTERVAL = Policy(
    name="learned_interval",
    finding=IntervalFinding,
    learned=(
        *("learned_gap", "held_gap", "widest_gap", "steps", "clean", "calm_until", "next_by_gap"),
        *("incident_at", "is_unjudged", "span_since", "span_rest", "span_started", "span_refused"),
    ),
    reasons=(
        Reason("learned", "not_yet", "A pace learned from the site's refusals spaces the starts."),
    ),
)
