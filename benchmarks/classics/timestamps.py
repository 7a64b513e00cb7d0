"""6.3.1: a sorted set of holders by the time at which they asked; the first `limit` may go in."""

from __future__ import annotations

from benchmarks.classics.asking import Asking


class SetByTimestamp(Asking):
    """Whose clock is slow stands before those that are in already: it steals their place."""

    async def attempt(self) -> bool:
        key, now = self.place.scope, self.now
        async with self.redis.pipeline() as pipe:
            pipe.zremrangebyscore(key, "-inf", now - self.place.lease)
            pipe.zadd(key, {self.id: now})
            pipe.zrank(key, self.id)
            *_, rank = await pipe.execute()
        if rank is not None and rank < self.place.limit:
            return True
        await self.redis.zrem(key, self.id)
        return False

    async def release(self) -> None:
        await self.redis.zrem(self.place.scope, self.id)

    async def holds(self) -> bool | None:
        rank = await self.redis.zrank(self.place.scope, self.id)
        return rank is not None and rank < self.place.limit
