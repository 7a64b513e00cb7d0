"""Small values that all nodes share, kept by the server for a while."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from semaphore_middleware.core.keys import Keys
from semaphore_middleware.link.connection import Connection
from semaphore_middleware.link.scripts import batches

logger = logging.getLogger(__name__)

VALUES_PER_CALL = 100


class Cache:
    """Gets and puts values on the connection of a session.

    Values should be small, as permits use the same connection. Nothing depends on the cache: if the
    server does not reply, or refuses, a node does without it.
    """

    def __init__(self, keys: Keys, wake: Callable[[], None]) -> None:
        self._keys = keys
        self._wake = wake
        self._now = asyncio.get_running_loop().time
        self._gets: dict[bytes, asyncio.Future[tuple[bytes, float] | None]] = {}
        """The values that are awaited, by key."""
        self._puts: list[tuple[float, tuple[Any, ...]]] = []
        """The end of each value, on the loop's clock, and the command without its expiry."""
        self._has_complained = False

    async def get(self, name: str) -> tuple[bytes, float] | None:
        """The value of a name, and its remaining seconds. None: there is none, or no reply."""
        key = self._keys.cached(name)
        reply = self._gets.get(key)
        if reply is None:
            reply = self._gets[key] = asyncio.get_running_loop().create_future()
            self._wake()
        return await asyncio.shield(reply)

    def put(self, name: str, value: bytes, seconds: float, replace: bool = True) -> None:
        """Keep a value for `seconds`. It is sent before any later update.

        Without `replace`, a value that is still valid stays as it is.
        """
        command = ("SET", self._keys.cached(name), value, *(() if replace else ("NX",)))
        self._puts.append((self._now() + seconds, command))
        self._wake()

    async def exchange(self, connection: Connection) -> None:
        """Send all gets, then puts, until none is left.

        Commands that could not be sent are dropped. Raises `ServerUnreachableError`.
        """
        for keys in batches([*self._gets], VALUES_PER_CALL):
            # In this order: a value may end between the two commands.
            commands = [(command, key) for key in keys for command in ("PTTL", "GET")]
            replies = await self._call(connection, commands)
            for key, left, value in zip(keys, replies[::2], replies[1::2], strict=True):
                is_valid = isinstance(left, int) and left > 0 and isinstance(value, bytes)
                self._gets.pop(key).set_result((value, left / 1000) if is_valid else None)
        while self._puts:
            puts = self._puts[:VALUES_PER_CALL]
            del self._puts[:VALUES_PER_CALL]
            left_ms = [int(1000 * (end - self._now())) for end, _ in puts]
            pairs = zip(left_ms, puts, strict=True)
            await self._call(connection, [(*put[1], "PX", left) for left, put in pairs if left > 0])

    async def _call(self, connection: Connection, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The replies to some commands. Logs the first error among them."""
        replies = await connection.call(commands) if commands else []
        errors = [reply for reply in replies if isinstance(reply, Exception)]
        if errors and not self._has_complained:
            self._has_complained = True
            logger.warning(
                "Nodes cannot share values on %s (%s): each node fetches them itself.",
                connection.server_name,
                errors[0],
            )
        return replies

    def give_up(self) -> None:
        """Answer waiting `get` calls with None: the server is out of reach, or the session ends."""
        while self._gets:
            _, reply = self._gets.popitem()
            reply.set_result(None)
