"""What all of them have in common: who is refused asks again, and nobody remembers that it did."""

from __future__ import annotations

import asyncio
import random
import secrets
import time

from benchmarks.harness.contender import Place, WithRedis


class Asking(WithRedis):
    """A client with one connection, and with a clock of its own, which may be wrong."""

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
