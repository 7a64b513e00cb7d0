"""One node's requests at a site that got no response, and its own pauses after them. No I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from semaphore_middleware.core.closings import Closings
from semaphore_middleware.model.feedback import Backoff

IN_A_ROW = 3
"""Requests without a response after which a node tries the site one request at a time."""


@dataclass(slots=True)
class Failures:
    """Requests without a response, in a row.

    The cause may be this node's own: its resolver, its route, or a ban of its address. So the
    server is asked first whether the site answers any other node; if it does, or may, this node
    pauses alone. Times are on the loop's clock.
    """

    in_a_row: int = 0
    failed_at: float = -math.inf
    """When the last of them failed."""
    until: float = -math.inf
    """The end of this node's own pause; infinite until it is known whether others fail, too."""
    closings: Closings = field(default_factory=Closings)
    """Those that were connections closed by the site, and whether these may be refusals."""
    _pause: float = 0.0  # the length of the last one in seconds

    @property
    def are_many(self) -> bool:
        """Whether there are so many that this node pauses, unless others fail, too."""
        return self.in_a_row >= IN_A_ROW or (self.in_a_row > 0 and self.closings.are_many)

    @property
    def are_limiting(self) -> bool:
        """Whether this node makes one request at a time, or none."""
        return self.are_many or self.closings.unanswered > 0  # rule 31: one request at a time

    @property
    def last_at(self) -> float:
        """When the last request failed, or found its connection closed."""
        return max(self.failed_at, self.closings.closed_at)

    def may_hold(self, now: float) -> int:
        """How many permits this node may hold for tries while they are limiting it."""
        return 0 if now < self.until else 1  # rule 24: one request at a time

    def is_try(self, granted_at: float) -> bool:
        """Whether a request that was granted at this time may show that the site answers. After a
        closing, those from before may be open for long, and show nothing.
        """
        return self.are_many or self.closings.is_after_last(granted_at)

    def note(self, began_at: float, now: float) -> None:
        """Note that a request that began at this time has failed. If it began before the end of the
        last pause, it causes no other.
        """
        self.failed_at = now
        self.in_a_row += 1
        if self.are_many and began_at >= self.until:
            self.until = math.inf

    def end(self) -> None:
        """Note that a request has got a response."""
        if self.in_a_row:
            self.in_a_row, self.failed_at = 0, -math.inf
            self.end_pause()

    @property
    def is_in_question(self) -> bool:
        """Whether it is not known yet if other nodes fail, too."""
        return self.until == math.inf

    def begin_pause(self, now: float, backoff: Backoff) -> float:
        """Begin a pause, twice as long as the last, and return its length."""
        self._pause = min(backoff.most, max(backoff.start, 2 * self._pause))
        self.until = now + self._pause  # rule 24: pause of one node
        return self._pause

    def end_pause(self) -> None:
        """End the pause of this node alone: the site responds to no node, so all of them pause."""
        self.until, self._pause = -math.inf, 0.0

    def end_question(self) -> None:
        """Stop waiting for the server's reply whether other nodes fail, too: it is lost."""
        if self.is_in_question:
            self.until = -math.inf
