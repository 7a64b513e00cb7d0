"""The third witness: the server's own books, looked at from outside all through a run."""

from __future__ import annotations

import asyncio
from typing import Self

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from tests.chaos.history import History
from tests.servers import RedisServer

PAUSE = 0.1  # seconds between two looks

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

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._look_again_and_again())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _look_again_and_again(self) -> None:
        seen: set[bytes] = set()
        while True:
            for id in set(await self._look()) - seen:
                seen.add(id)
                self._history.note("problem", id=f"{id.decode()} was held and in the line at once")
            await asyncio.sleep(PAUSE)

    async def _look(self) -> list[bytes]:
        """Nothing, while the server is away."""
        client = Redis(
            unix_socket_path=str(self.server.path), socket_timeout=5, retry=Retry(NoBackoff(), 0)
        )
        async with client:
            try:
                found: list[bytes] = await client.eval(IN_BOTH, 0)
            except (RedisError, OSError):
                return []
            return found
