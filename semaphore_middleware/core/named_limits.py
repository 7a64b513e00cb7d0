"""The limits that a node names at a scope: those of its requests, and its own."""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce

from semaphore_middleware.model.limits import Limit, strictest


class NamedLimits:
    """The limits that a node names at a scope, and the strictest of them."""

    def __init__(self, limit: Limit) -> None:
        self.strictest = limit
        """Of all: what the node asks for."""
        self.of_requests: dict[Limit, int] = {}
        """How many requests, waiting or with a permit, name each."""
        self._strictest_of_requests = limit
        self._own: Collection[Limit] = ()

    @property
    def has_own(self) -> bool:
        """Whether the node names limits for all its requests, as AutoThrottle does."""
        return bool(self._own)

    def add(self, limit: Limit) -> None:
        """Add the limit of a request."""
        self.of_requests[limit] = self.of_requests.get(limit, 0) + 1
        if limit != self.strictest:  # promise: strictest of a node's requests
            self._combine()

    def drop(self, limit: Limit) -> None:
        """Forget the limit of one request. That of the last one stays."""
        self.of_requests[limit] -= 1
        if not self.of_requests[limit]:
            del self.of_requests[limit]  # promise: limit goes with its requests
            self._combine()

    def set_own(self, limits: Collection[Limit]) -> None:
        """Set the limits that the node names for all its requests."""
        self._own = limits
        self._combine()

    def _combine(self) -> None:
        if self.of_requests:
            self._strictest_of_requests = reduce(strictest, self.of_requests)
        self.strictest = reduce(strictest, self._own, self._strictest_of_requests)
