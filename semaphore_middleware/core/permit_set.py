"""The permits of one request that needs several, one of each of its scopes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack

from semaphore_middleware.core.permit import Permit
from semaphore_middleware.model.feedback import Feedback
from semaphore_middleware.model.hosts import site_index


class PermitSet:
    """The permits of one request: begun, used and given back together.

    Get it from `FairSemaphore.acquire_all`, with the permits in the order in which they were taken.
    """

    __slots__ = ("permits", "site_permit")

    def __init__(self, permits: Sequence[Permit]) -> None:
        self.permits = permits
        index = site_index([permit.scope for permit in permits])
        self.site_permit = None if index is None else permits[index]
        """The permit of the request's site, on which its answer is noted; None: there is none."""

    @property
    def starts_count(self) -> bool:
        """True if the request is to begin soon after the last grant (see `Permit`)."""
        return any(permit.starts_count for permit in self.permits)

    @property
    def withdrawn(self) -> bool:
        """True if a site has refused a request since the grants: do not begin one now."""
        return any(permit.withdrawn for permit in self.permits)

    def begin(self) -> None:
        """Say that the request begins: now, for all of its scopes."""
        for permit in self.permits:
            permit.begin()

    def release(self) -> None:
        """Give all back. Does nothing the second time; raises nothing.

        An adaptive limit of any of the scopes learns from the site's latency.
        """
        outcome = self.site_permit.outcome if self.site_permit else None
        for permit in self.permits:
            if (
                outcome is not None
                and outcome.latency is not None
                and permit is not self.site_permit
            ):
                permit.outcome = Feedback(outcome.latency)  # a pause is asked for at the site only
            permit.release()

    def until_lost(self) -> AbstractContextManager[object]:
        """Cancel what this task does in the `with` when one of them is lost (see `Permit`)."""
        with ExitStack() as watched:
            for permit in self.permits:
                watched.enter_context(permit.until_lost())
            return watched.pop_all()
