"""The semaphores of the literature, each written here from its description.

They are those of Josiah L. Carlson, Redis in Action (Manning, 2013): chapter 6.3, in the order in
which it repairs one with the next, chapter 11.2 for the one in Lua, and the lock that Redis' own
documentation describes. Where they say "try again later", `acquire` does so.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from contextlib import suppress

from redis.exceptions import LockError

from lab.benchmarks.harness.contender import Contender, Place, WithRedis


class Asking(WithRedis):
    """A client with a clock of its own, which may be wrong. Who is refused asks again, and nobody
    remembers that it did.
    """

    retry = 0.01
    """Seconds until it asks again, on average. Varied, or all who were refused ask at once."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.id = ""

    @property
    def now(self) -> float:
        return time.time() + self.place.clock_ahead

    async def acquire(self) -> None:
        while True:
            self.id = secrets.token_hex(8)
            if await self.attempt():
                return
            await asyncio.sleep(self.retry * random.uniform(0.5, 1.5))

    async def attempt(self) -> bool:
        """Try once, as `self.id`."""
        raise NotImplementedError


class SetByTimestamp(Asking):
    """6.3.1: a sorted set of holders by the time at which they asked; the first `limit` may go in.

    Whose clock is slow stands before those that are in already: it steals their place.
    """

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


class OwnersByCounter(Asking):
    """6.3.2: a counter on the server says who came first; the clients' clocks only end leases.

    Who has counted first may write itself down last: then it goes in where another is.
    """

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
        if await self.redis.zscore(self.times, self.id) is None:
            return False
        rank = await self.redis.zrank(self.owners, self.id)
        return rank is not None and rank < self.place.limit


class LockWithToken(Asking):
    """One permit, never two: SET NX PX with a token, which only its owner takes away.

    It is redis-py's own, and its lease goes by the server's clock.
    """

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._lock = self.redis.lock(place.scope, timeout=place.lease)

    async def attempt(self) -> bool:
        return bool(await self._lock.acquire(blocking=False))

    async def release(self) -> None:
        with suppress(LockError):  # its lease has ended
            await self._lock.release()

    async def holds(self) -> bool | None:
        return bool(await self._lock.owned())


class OwnersUnderLock(OwnersByCounter):
    """6.3.4: the one with the counter, and a lock around each attempt, so that none cuts in.

    Who does not get the lock within 10 ms asks again later.
    """

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        name = f"lock:{place.scope}"
        self._lock = self.redis.lock(name, timeout=10.0, sleep=0.001, blocking_timeout=0.01)

    async def attempt(self) -> bool:
        if not await self._lock.acquire():
            return False
        try:
            return await super().attempt()
        finally:
            await self._lock.release()


class RefreshedOwners(OwnersUnderLock):
    """6.3.3: who works for longer says so in time. Here a task does, three times a lease."""

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


class HoldersInLua(Asking):
    """11.2: count the holders and join them in one step on the server, so no attempt cuts in.

    No counter, no lock; but who was refused is forgotten, and the time is still the client's.
    """

    ACQUIRE = """
    local key, limit, dead, now, id = KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
    redis.call('ZREMRANGEBYSCORE', key, '-inf', dead)
    if redis.call('ZCARD', key) >= limit then return 0 end
    return redis.call('ZADD', key, now, id)
    """

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._acquire = self.redis.register_script(self.ACQUIRE)

    async def attempt(self) -> bool:
        now, place = self.now, self.place
        arguments = [place.limit, now - place.lease, now, self.id]
        return bool(await self._acquire(keys=[place.scope], args=arguments))

    async def release(self) -> None:
        await self.redis.zrem(self.place.scope, self.id)

    async def holds(self) -> bool | None:
        return await self.redis.zscore(self.place.scope, self.id) is not None


LOCK = Contender.of("lock of 1", LockWithToken)
CLASSICS = (
    Contender.of("timestamps", SetByTimestamp),
    Contender.of("counter", OwnersByCounter),
    Contender.of("locked", OwnersUnderLock),
    Contender.of("refreshed", RefreshedOwners),
    Contender.of("in Lua", HoldersInLua),
    LOCK,
)
