"""Blocked sites: after only refusals for a long time, one request after each pause tries the site.

All other requests fail at once. `lua/blocked.lua` finds such sites; a good answer unblocks them.
"""

from __future__ import annotations

from dataclasses import dataclass

from semaphore_middleware.errors import SiteBlockedError
from semaphore_middleware.link.text import time_of
from semaphore_middleware.model.inspection import Finding
from semaphore_middleware.model.reasons import Reason
from semaphore_middleware.model.wire import Wire
from semaphore_middleware.politeness.policy import Policy, SiteShut


class SiteBlocked(SiteShut):
    """A site now counts as blocked: it refused this node's request, too."""

    __slots__ = ()

    counter = "blocked"


@dataclass(frozen=True, slots=True)
class BlockedFinding(Finding):
    """Whether a site is blocked. Times are in seconds."""

    state = "blocked"
    error = SiteBlockedError

    blocked_for: Wire[float | None] = None
    """For how long it has refused all requests, if it is blocked; None: it is not."""
    refused_by: Wire[int | None] = None
    """The status of its last refusal since its last good answer; None: it has none."""

    @property
    def shut_for(self) -> float | None:
        return self.blocked_for

    @property
    def why(self) -> str:
        if self.blocked_for is None:
            return ""
        last = f", the last one with status {self.refused_by}" if self.refused_by else ""
        return f"It has refused all requests for {time_of(self.blocked_for)}{last}"

    @property
    def no_retry(self) -> str:
        return "its site has refused all requests for a long time" if self.shut else ""


BLOCKED = Policy(
    name="blocked",
    finding=BlockedFinding,
    learned=("refusing_since", "incidents", "refuses_all", "refused_by"),
    reasons=(
        Reason(
            "blocked", "closed", "The site is blocked: it has refused all requests for a long time."
        ),
    ),
    event=SiteBlocked,
)
