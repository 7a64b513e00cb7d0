"""Unresponsive sites: one request at a time tries a site that responds to nobody.

After a long time it is down, and all other requests fail at once. `lua/unresponsive.lua` finds such
sites; any response ends this.
"""

from __future__ import annotations

from dataclasses import dataclass

from semaphore_middleware.link.text import time_of
from semaphore_middleware.model.inspection import Finding
from semaphore_middleware.model.reasons import Reason
from semaphore_middleware.model.wire import Wire
from semaphore_middleware.politeness.policy import Policy, SiteShut


class HostDown(SiteShut):
    """A site now counts as down: it did not answer this node's request either."""

    __slots__ = ()

    counter = "hosts_down"


@dataclass(frozen=True, slots=True)
class UnresponsiveFinding(Finding):
    """Whether a site responds. Times are in seconds."""

    state = "down"

    is_failing: Wire[bool] = False
    """Whether it responds to none of the nodes that have tried it."""
    down_for: Wire[float | None] = None
    """For how long it has not responded, if it counts as down for the node that gets this finding;
    None: it does not.
    """

    @property
    def shut_for(self) -> float | None:
        return self.down_for

    @property
    def why(self) -> str:
        return "" if self.down_for is None else f"It has not responded for {time_of(self.down_for)}"

    @property
    def explains_failures(self) -> bool:
        return self.is_failing


UNRESPONSIVE = Policy(
    name="unresponsive",
    finding=UnresponsiveFinding,
    learned=("failed_in_a_row", "failing_since", "failing_end", "is_failing", "is_down"),
    learned_texts=("tried_by", "first_try"),
    reasons=(
        Reason("down", "closed", "The site is down: it has not responded for a long time."),
        Reason(
            "failing", "no_room", "The site does not respond, so one request at a time tries it."
        ),
    ),
    event=HostDown,
)
