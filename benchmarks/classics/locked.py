"""6.3.4: the one with the counter, and a lock around each attempt, so that none cuts in."""

from __future__ import annotations

import asyncio
import time

from benchmarks.classics.counter import OwnersByCounter
from benchmarks.classics.lock import give_back, take

TIMEOUT_S = 0.01  # seconds: who does not get the lock in that time asks again later
LOCK_LEASE = 10.0  # seconds


class OwnersUnderLock(OwnersByCounter):
    async def attempt(self) -> bool:
        lock = f"lock:{self.place.scope}"
        deadline = time.monotonic() + TIMEOUT_S
        while not await take(self.redis, lock, self.id, LOCK_LEASE):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.001)
        try:
            return await super().attempt()
        finally:
            await give_back(self.redis, lock, self.id)
