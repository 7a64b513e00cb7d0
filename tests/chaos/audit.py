"""The third witness: the server's own books, looked at from outside all through a run."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Self

import redis

from semaphore_middleware.redis.connection import ELSEWHERE
from semaphore_middleware.redis.keys import Keys
from semaphore_middleware.redis.protocol import pack_head
from semaphore_middleware.redis.scripts import SCOPES, source_of
from tests.chaos.history import History
from tests.support.servers import RedisServer

PAUSE_S = 0.1  # between two looks
TIMEOUT_S = 5.0  # that a look may take

# Of each scope: whether its totals are those of its accounts, and no more are held than may be.
# Totals of waiting requests are not judged once keys were evicted: the queue may have been one.
AUDIT = """
local found = {}
local evicted = string.match(redis.call('INFO', 'stats'), 'evicted_keys:(%d+)')
for _, key in ipairs(redis.call('KEYS', PREFIX .. ':scope:*')) do
  local scope = read_scope(key, '')
  local held, waiting = 0, 0
  for_each_account(scope, function(_, account)
    held, waiting = held + held_by(account), waiting + waiting_at(account)
  end)
  local function complain(...)
    table.insert(found, name_of(scope) .. ': ' .. string.format(...))
  end
  if scope.held ~= held then complain('%d are counted as held, not %d', scope.held, held) end
  if scope.waiting ~= waiting and evicted == '0' then
    complain('%d are counted as waiting, not %d', scope.waiting, waiting)
  end
  if NOW >= FROM and held > scope.concurrency then
    complain('%d are held on the server, limit %d', held, scope.concurrency)
  end
end
return found
"""


class Audit:
    """Looks at the server's own books again and again in a run, and notes what is wrong in them."""

    def __init__(self, history: History, server: RedisServer, lease: float) -> None:
        self.server = server
        self._history = history
        self._script = "".join(map(source_of, SCOPES)) + AUDIT
        keys = Keys("semaphore")
        self._keys = keys.epoch, keys.rules
        self._arguments = pack_head(lease), b""  # as no node
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
            for problem in set(await asyncio.to_thread(self._look)) - seen:
                seen.add(problem)
                self._history.note("problem", id=problem.decode())
            with suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), PAUSE_S)

    def _look(self) -> list[bytes]:
        """Nothing, while the server is away."""
        try:
            with self.server.client(socket_timeout=TIMEOUT_S) as client:
                found: Any = client.eval(
                    self._script, len(self._keys), *self._keys, *self._arguments
                )
                return list(found)
        except (ConnectionError, TimeoutError, redis.ConnectionError, redis.TimeoutError):
            return []
        except ELSEWHERE:
            return []  # in a cluster
