"""Reuse of permits: for how long, and the pool of those kept for this node's next requests."""

from __future__ import annotations

import math
from dataclasses import dataclass


def common_window_end(now: float, window: float) -> float:
    """The end of the reuse window of all leases: the next multiple of its length."""
    return (now // window + 1) * window


@dataclass(slots=True)
class Pool:
    """Permits not used by any request, kept for this node's next ones."""

    permits: int = 0
    unused: int = 0
    """The smallest size of the pool in this reuse window."""
    has_reused: bool = False
    """Whether one request has given its permit to the next in this reuse window."""
    until: float = -math.inf
    """Until then the site may have permits to spare: at most two windows after the last reply."""

    def take(self) -> None:
        """Take a permit for a request."""
        self.permits -= 1
        self.unused = min(self.unused, self.permits)

    def end_window(self) -> int:
        """End a reuse window. Returns how many permits go back, as no request has used them."""
        unused = self.unused
        self.permits -= unused
        self.unused = self.permits
        self.has_reused = False
        return unused

    def empty(self) -> int:
        """Remove all permits, and return their number: they go back to the server."""
        permits = self.permits
        self.permits = 0
        self.unused = 0
        return permits
