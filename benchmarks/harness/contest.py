"""What semaphores have to offer to be compared: a client each, and a place for it to stand."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from redis.asyncio import Redis

from semaphore_middleware import FairSemaphore, Permit


@dataclass(frozen=True, slots=True)
class Place:
    """Where a client stands. All clients of one race have the same scope, limit and lease."""

    path: str  # the server's Unix socket
    scope: str
    limit: int
    lease: float = 10.0  # seconds until a holder that does not renew counts as dead
    number: int = 0  # of this client: two processes that play in turns need to know who begins
    clock_ahead: float = 0.0  # seconds by which this client's wall clock is wrong


class Client(Protocol):
    """One who wants permits, at most one at a time."""

    async def acquire(self) -> None:
        """Wait for a permit, however long that takes."""

    async def release(self) -> None: ...

    async def holds(self) -> bool | None:
        """Whether the semaphore still counts it as a holder; None if it keeps no names."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A semaphore by name. `join` must be importable: other processes join too."""

    name: str
    join: Callable[[Place], AbstractAsyncContextManager[Client]]


class WithRedis:
    """What clients have in common that use redis-py themselves: a connection for their time."""

    def __init__(self, place: Place) -> None:
        self.place = place
        # Without redis-py's own time limit, 5 s: it would end a BLPOP that waits longer, and Python
        # 3.11 can lose a cancellation in it.
        self.redis: Any = Redis(unix_socket_path=place.path, socket_timeout=None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.redis.aclose()


class Ours:
    """A client that is a node of its own, which is the dearest way to use this project."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._semaphore = FairSemaphore(f"unix://{place.path}", lease=place.lease)
        self._permit: Permit | None = None

    async def __aenter__(self) -> Self:
        await self._semaphore.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._semaphore.close()

    async def acquire(self) -> None:
        self._permit = await self._semaphore.acquire(self._place.scope, self._place.limit)

    async def release(self) -> None:
        assert self._permit is not None
        self._permit.release()

    async def holds(self) -> bool | None:
        assert self._permit is not None
        id = f"{self._semaphore.node}:{self._permit.number}"
        seen = await self._semaphore.admin.inspect(self._place.scope)
        return id in [holder.id for holder in seen.holders]


OURS = Contender("ours", Ours)
