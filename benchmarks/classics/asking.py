"""What all of them have in common: who is refused asks again, and nobody remembers that it did."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from types import TracebackType
from typing import Any, Self

from redis.asyncio import Redis

from benchmarks.contest import Place


class Asking:
    """A client with one connection, and with a clock of its own, which may be wrong."""

    retry = 0.01
    """Seconds until it asks again, on average. Varied, or all who were refused ask at once."""

    def __init__(self, place: Place) -> None:
        self.place = place
        # Without redis-py's own time limit, in which Python 3.11 can lose a cancellation.
        self.redis: Any = Redis(unix_socket_path=place.path, socket_timeout=None)
        self.id = ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.redis.aclose()

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

    async def release(self) -> None:
        raise NotImplementedError

    async def holds(self) -> bool | None:
        raise NotImplementedError
