"""steindamm and redis-rate-limiters: a list of nameless tokens, taken with BLPOP.

`expiry` is how long the list lives after its last use, in whole seconds; a token has no lease.
`max_sleep=0` waits for as long as it takes.
"""

from __future__ import annotations

import math
from types import TracebackType
from typing import Any, Self

from limiters import AsyncSemaphore
from redis.asyncio import Redis
from steindamm import AsyncRedisSemaphore

from benchmarks.contest import Place


class Tokens:
    def __init__(self, place: Place) -> None:
        # Without a time limit: redis-py's own, 5 s, would end a BLPOP that waits longer.
        self._client = Redis(unix_socket_path=place.path, socket_timeout=None)
        self._semaphore = self._make(place, max(1, math.ceil(place.lease)))

    def _make(self, place: Place, expiry: int) -> Any:
        raise NotImplementedError

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
        await self._semaphore.__aenter__()

    async def release(self) -> None:
        await self._semaphore.__aexit__(None, None, None)

    async def holds(self) -> bool | None:
        return None


class Steindamm(Tokens):
    def _make(self, place: Place, expiry: int) -> Any:
        return AsyncRedisSemaphore(
            connection=self._client,
            name=place.scope,
            capacity=place.limit,
            expiry=expiry,
            max_sleep=0,
        )


class RateLimiters(Tokens):
    def _make(self, place: Place, expiry: int) -> Any:
        return AsyncSemaphore(
            connection=self._client,
            name=place.scope,
            capacity=place.limit,
            expiry=expiry,
            max_sleep=0,
        )
