"""The totals of a node's lease on one scope. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from semaphore_middleware.core.protocol import LeaseUpdate


@dataclass(slots=True)
class LeaseTotals:
    """Numbers that restart with each lease, and only grow, except for `suspended`.

    A node and the server exchange totals, never changes. So the newest update replaces all earlier
    ones, and one that is lost, late or repeated does no harm.
    """

    lease_id: int
    """Higher than that of any earlier lease of this node."""
    seq: int = 0
    """The number of the last update."""
    requested: int = 0
    """Permits asked for, in the last update."""
    granted: int = 0
    """Permits granted, as far as this node knows. The server counts them."""
    returned: int = 0
    started: int = 0
    """Requests begun: more than `granted` where permits were reused."""
    started_sent: int = 0
    """`started`, in the last update."""
    last_start: float = 0.0
    """When the last request began, on the loop's clock."""
    suspended: int = 0
    """Requests that wait, but must not be granted now, in the last update."""

    @property
    def is_queued(self) -> bool:
        """Whether this node is in the server's queue: more was requested than granted."""
        return self.requested > self.granted

    def is_closed_by(self, update: LeaseUpdate) -> bool:
        """Whether the server closed the lease on this update: it is the newest, nothing was held or
        wanted when it was sent, and nothing is held now.
        """
        return (
            update.seq == self.seq
            and update.requested == update.returned
            and update.suspended == 0
            and self.granted == self.returned == update.returned
        )
