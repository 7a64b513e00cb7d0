"""steindamm and redis-rate-limiters: a list of nameless tokens, taken with BLPOP.

`expiry` is how long the list lives after its last use, in whole seconds; a token has no lease.
`max_sleep=0` waits for as long as it takes.
"""

from __future__ import annotations

import math
from typing import Any

from limiters import AsyncSemaphore
from steindamm import AsyncRedisSemaphore

from benchmarks.harness.contender import Place, WithRedis


class Tokens(WithRedis):
    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._semaphore = self._make(place, max(1, math.ceil(place.lease)))

    def _make(self, place: Place, expiry: int) -> Any:
        raise NotImplementedError

    async def acquire(self) -> None:
        await self._semaphore.__aenter__()

    async def release(self) -> None:
        await self._semaphore.__aexit__(None, None, None)


class Steindamm(Tokens):
    def _make(self, place: Place, expiry: int) -> Any:
        return AsyncRedisSemaphore(
            connection=self.redis,
            name=place.scope,
            capacity=place.limit,
            expiry=expiry,
            max_sleep=0,
        )


class RateLimiters(Tokens):
    def _make(self, place: Place, expiry: int) -> Any:
        return AsyncSemaphore(
            connection=self.redis,
            name=place.scope,
            capacity=place.limit,
            expiry=expiry,
            max_sleep=0,
        )
