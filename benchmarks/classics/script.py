"""11.2: count the holders and join them in one step on the server, so no attempt cuts in."""

from __future__ import annotations

from benchmarks.classics.asking import Asking
from benchmarks.harness.contender import Place

ACQUIRE = """
local key, limit, dead, now, id = KEYS[1], tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
redis.call('ZREMRANGEBYSCORE', key, '-inf', dead)
if redis.call('ZCARD', key) >= limit then return 0 end
return redis.call('ZADD', key, now, id)
"""


class HoldersInLua(Asking):
    """No counter, no lock; but who was refused is forgotten, and the time is still the client's."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._acquire = self.redis.register_script(ACQUIRE)

    async def attempt(self) -> bool:
        now, place = self.now, self.place
        arguments = [place.limit, now - place.lease, now, self.id]
        return bool(await self._acquire(keys=[place.scope], args=arguments))

    async def release(self) -> None:
        await self.redis.zrem(self.place.scope, self.id)

    async def holds(self) -> bool | None:
        return await self.redis.zscore(self.place.scope, self.id) is not None
