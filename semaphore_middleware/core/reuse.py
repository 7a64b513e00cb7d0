"""Turns: the time for which a node may keep a permit for its own next request."""

from __future__ import annotations

import math
from dataclasses import dataclass


def common_turn_end(now: float, turn: float) -> float:
    """The end of the common turn of all leases: the next multiple of a turn's length."""
    return (now // turn + 1) * turn


@dataclass(slots=True)
class Hand:
    """Permits not used by any request, kept for this node's next ones."""

    permits: int = 0
    always: int = 0
    """The least of them since the last common turn."""
    has_reused: bool = False
    """Whether one request has given its permit to the next since the last common turn."""
    until: float = -math.inf
    """Until then the site may have permits to spare: two turns at most after the last reply."""

    def take(self) -> None:
        """Use one for a request."""
        self.permits -= 1
        self.always = min(self.always, self.permits)

    def end_turn(self) -> int:
        """End a common turn. Returns how many no request has used in it: these go back."""
        unused = self.always
        self.permits -= unused
        self.always = self.permits
        self.has_reused = False
        return unused

    def empty(self) -> int:
        """Remove all, and return how many there were: they go back."""
        permits = self.permits
        self.permits = 0
        self.always = 0
        return permits
