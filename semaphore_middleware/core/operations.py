"""The operators' view and actions, for programs and observers: `FairSemaphore.admin`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from semaphore_middleware.model.inspection import Inspection
    from semaphore_middleware.model.limits import GivenLimit
    from semaphore_middleware.model.rules import Rule

GROUP = "semaphore_middleware.admin"
"""The entry point `admin` of this group makes the `Operations` of each semaphore."""


class Operations(Protocol):
    """The part of `Admin` that a `FairSemaphore` offers as `admin`."""

    lease: float
    """The lease time, in seconds."""

    async def inspect(self, scope: str) -> Inspection:
        """Limit, holders and waiters of a scope, on all nodes."""

    async def survey(self) -> Sequence[Inspection]:
        """All scopes in use, with a rule, or with what sites' answers have taught; by name."""

    async def rules(self) -> Sequence[Rule]:
        """The rules set with `configure`, `pause` and `resume`, by name."""

    async def configure(self, name: str, limit: GivenLimit) -> None:
        """Set the limit of a scope, or of each host below one, on the server."""

    async def pause(self, name: str) -> None:
        """Grant no permit of this scope, or of any that matches the pattern, until `resume`."""

    async def resume(self, name: str) -> None:
        """End a `pause`, or the backoff of a site that has refused a request."""

    async def reset(self, name: str) -> None:
        """Remove the rule, and forget what the site's answers have taught."""

    async def evict(self, node: str) -> tuple[int, int]:
        """Give back a dead node's permits, and take it out of the queues; returns their numbers."""

    async def trust(self) -> None:
        """Declare that no permit granted earlier by the server is still held."""

    async def close(self) -> None:
        """Close the connection. Raises nothing."""


@cache
def find_operations() -> Callable[..., Operations]:
    """The class of the entry point, which takes the arguments of `Admin`."""
    factory: Callable[..., Operations] = entry_points(group=GROUP)["admin"].load()
    return factory
