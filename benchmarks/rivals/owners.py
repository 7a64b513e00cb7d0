"""py-redis-semaphore: a sorted set of owners with leases, a heartbeat, and BLPOP to be woken."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from redis.asyncio import Redis
from redis_semaphore import Semaphore, SemaphoreConfig

from benchmarks.contest import Place


class Owners:
    """Its defaults: it waits by BLPOP, takes the time from the server and renews at lease/3."""

    def __init__(self, place: Place) -> None:
        self._client = Redis(unix_socket_path=place.path, socket_timeout=None)
        self._semaphore = Semaphore(
            self._client,
            SemaphoreConfig(name=place.scope, limit=place.limit, lock_timeout=place.lease),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.aclose()

    async def acquire(self) -> None:
        await self._semaphore.aacquire()

    async def release(self) -> None:
        await self._semaphore.arelease()

    async def holds(self) -> bool | None:
        status: Any = await self._semaphore.astatus()
        return bool(status.is_owner)
