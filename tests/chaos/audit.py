"""The third witness: the server's own books, looked at from outside all through a run."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Self

from redis.exceptions import RedisError

from tests.chaos.history import History
from tests.support.servers import RedisServer

PAUSE = 0.1  # seconds between two looks
TIMEOUT_S = 5.0  # seconds that a look may take

# Whoever holds a permit has left the line: an id in both would be granted twice.
IN_BOTH = """
local found = {}
for _, held in ipairs(redis.call('KEYS', 'semaphore:*:held')) do
  local line = string.gsub(held, 'held$', 'line')
  for _, id in ipairs(redis.call('ZINTER', 2, held, line)) do
    table.insert(found, id)
  end
end
return found
"""


class Audit:
    def __init__(self, history: History, server: RedisServer) -> None:
        self.server = server
        self._history = history
        self._over = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._look_again_and_again())
        return self

    async def __aexit__(self, *_: object) -> None:
        # Not by cancelling: redis-py's asyncio client may swallow that.
        self._over.set()
        await self._task

    async def _look_again_and_again(self) -> None:
        seen: set[bytes] = set()
        while not self._over.is_set():
            for id in set(await asyncio.to_thread(self._look)) - seen:
                seen.add(id)
                self._history.note("problem", id=f"{id.decode()} was held and in the line at once")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), PAUSE)

    def _look(self) -> list[bytes]:
        """Nothing, while the server is away."""
        try:
            with self.server.client(socket_timeout=TIMEOUT_S) as client:
                found: list[bytes] = client.eval(IN_BOTH, 0)
                return found
        except (RedisError, OSError):
            return []
