"""Limit 1: SET NX PX with a token, which only its owner takes away."""

from __future__ import annotations

from typing import Any

from benchmarks.classics.asking import Asking

GIVE_BACK = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


async def take(redis: Any, key: str, token: str, lease: float) -> bool:
    return bool(await redis.set(key, token, nx=True, px=int(lease * 1000)))


async def give_back(redis: Any, key: str, token: str) -> None:
    await redis.eval(GIVE_BACK, 1, key, token)


class LockWithToken(Asking):
    """Its lease goes by the server's clock; and it is one permit, never two."""

    async def attempt(self) -> bool:
        return await take(self.redis, self.place.scope, self.id, self.place.lease)

    async def release(self) -> None:
        await give_back(self.redis, self.place.scope, self.id)

    async def holds(self) -> bool | None:
        return bool(await self.redis.get(self.place.scope) == self.id.encode())
