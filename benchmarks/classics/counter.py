"""6.3.2: a counter on the server says who came first; the clients' clocks only end leases."""

from __future__ import annotations

from benchmarks.classics.asking import Asking
from benchmarks.harness.contender import Place


class OwnersByCounter(Asking):
    """Who has counted first may write itself down last: then it goes in where another is."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.times = place.scope
        self.owners, self.counter = f"{place.scope}:owner", f"{place.scope}:counter"

    async def attempt(self) -> bool:
        now = self.now
        async with self.redis.pipeline() as pipe:
            pipe.zremrangebyscore(self.times, "-inf", now - self.place.lease)
            pipe.zinterstore(self.owners, {self.owners: 1, self.times: 0})
            pipe.incr(self.counter)
            *_, count = await pipe.execute()
        async with self.redis.pipeline() as pipe:
            pipe.zadd(self.times, {self.id: now})
            pipe.zadd(self.owners, {self.id: count})
            pipe.zrank(self.owners, self.id)
            *_, rank = await pipe.execute()
        if rank is not None and rank < self.place.limit:
            return True
        await self.release()
        return False

    async def release(self) -> None:
        async with self.redis.pipeline() as pipe:
            pipe.zrem(self.times, self.id)
            pipe.zrem(self.owners, self.id)
            await pipe.execute()

    async def holds(self) -> bool | None:
        async with self.redis.pipeline() as pipe:
            pipe.zscore(self.times, self.id)
            pipe.zrank(self.owners, self.id)
            time, rank = await pipe.execute()
        return time is not None and rank is not None and rank < self.place.limit
