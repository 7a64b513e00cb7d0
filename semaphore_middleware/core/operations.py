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

    async def inspect(self, scope: str) -> Inspection: ...
    async def survey(self) -> Sequence[Inspection]: ...
    async def rules(self) -> Sequence[Rule]: ...
    async def configure(self, name: str, limit: GivenLimit) -> None: ...
    async def pause(self, name: str) -> None: ...
    async def resume(self, name: str) -> None: ...
    async def reset(self, name: str) -> None: ...
    async def evict(self, node: str) -> tuple[int, int]: ...
    async def trust(self) -> None: ...
    async def close(self) -> None: ...


@cache
def find_operations() -> Callable[..., Operations]:
    """The class of the entry point, which takes the arguments of `Admin`."""
    factory: Callable[..., Operations] = entry_points(group=GROUP)["admin"].load()
    return factory
