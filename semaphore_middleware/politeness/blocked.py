"""Blocked sites: after nothing but refusals for long, one request after each pause tries the site.

All other requests fail at once. `lua/blocked.lua` finds such sites; a good answer ends it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from semaphore_middleware.errors import HostDownError, SiteWalledError
from semaphore_middleware.link.text import time_of
from semaphore_middleware.model.events import CountedEvent, Emitter
from semaphore_middleware.model.inspection import Finding
from semaphore_middleware.model.reasons import Reason
from semaphore_middleware.model.wire import Wire
from semaphore_middleware.politeness.policy import Policy

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SiteBlocked(CountedEvent):
    """A site now counts as blocked: it refused this node's request, too."""

    counter = "walled"

    scope: str
    seconds: float
    """For how long it has refused all requests."""


@dataclass(frozen=True, slots=True)
class BlockedFinding(Finding):
    """Whether a site is blocked. Times are in seconds."""

    walled_for: Wire[float | None] = None
    """For how long it has refused all requests, if it is blocked; None: it is not."""
    refused_by: Wire[int | None] = None
    """The status of its last refusal since its last good answer; None: it has none."""

    @property
    def shut(self) -> str:
        """See `Finding`."""
        return "" if self.walled_for is None else "is walled"

    @property
    def why(self) -> str:
        """See `Finding`."""
        if self.walled_for is None:
            return ""
        last = f", the last one with status {self.refused_by}" if self.refused_by else ""
        return f"It has refused all requests for {time_of(self.walled_for)}{last}"

    def failure(self, scope: str) -> HostDownError:
        """See `Finding`."""
        return SiteWalledError(
            f"{scope} {self.shut}. {self.why}; one request after each pause tries it again"
        )


def _announce(
    node: Emitter, scope: str, before: BlockedFinding, now: BlockedFinding, has_paused: bool
) -> None:
    if now.walled_for is None:
        if before.shut:
            logger.info("%s is no longer walled.", scope)
    elif has_paused and not before.shut:
        node.emit(SiteBlocked, scope, now.walled_for)
        logger.warning(
            "%s %s. %s. Requests fail at once, except for one after each pause, which tries the "
            "site again.",
            scope,
            now.shut,
            now.why,
        )


BLOCKED = Policy(
    name="blocked",
    finding=BlockedFinding,
    learned=("refusing_since", "incidents", "refuses_all", "refused_by"),
    reasons=(
        Reason(
            "walled", "closed", "The site is walled: it has refused all requests for a long time."
        ),
    ),
    events={SiteBlocked: "Sites that this node was the first to find walled."},
    announce=_announce,
)
