"""py-redis-semaphore: a sorted set of owners with leases, a heartbeat, and BLPOP to be woken."""

from __future__ import annotations

from typing import Any

from redis_semaphore import Semaphore, SemaphoreConfig

from benchmarks.harness.contender import Place, WithRedis


class Owners(WithRedis):
    """Its defaults: it waits by BLPOP, takes the time from the server and renews at lease/3."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._semaphore = Semaphore(
            self.redis,
            SemaphoreConfig(name=place.scope, limit=place.limit, lock_timeout=place.lease),
        )

    async def acquire(self) -> None:
        await self._semaphore.aacquire()

    async def release(self) -> None:
        await self._semaphore.arelease()

    async def holds(self) -> bool | None:
        status: Any = await self._semaphore.astatus()
        return bool(status.is_owner)
