"""6.3.3: who works for longer says so in time. Here a task does, three times a lease."""

from __future__ import annotations

import asyncio

from benchmarks.classics.locked import OwnersUnderLock


class RefreshedOwners(OwnersUnderLock):
    _refresher: asyncio.Task[None] | None = None

    async def acquire(self) -> None:
        await super().acquire()
        self._refresher = asyncio.create_task(self._refresh(self.id))

    async def release(self) -> None:
        self._stop_refreshing()
        await super().release()

    async def close(self) -> None:
        self._stop_refreshing()
        await super().close()

    def _stop_refreshing(self) -> None:
        if self._refresher is not None:
            self._refresher.cancel()

    async def _refresh(self, id: str) -> None:
        while True:
            await asyncio.sleep(self.place.lease / 3)
            if await self.redis.zadd(self.times, {id: self.now}):  # it was not there any more
                await self.redis.zrem(self.times, id)
                return
