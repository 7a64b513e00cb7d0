"""Listens on channels, over a connection of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from semaphore_middleware.redis.connection import Connection, retry_delay
from semaphore_middleware.redis.location import Server

logger = logging.getLogger(__name__)

FAILURES_TO_LOG = 5  # attempts to subscribe that fail in a row, until the log says so


class Subscription:
    """Calls `on_message(payload)` for each message on the channels, from `start` to `close`.

    `on_message(None)` says that it has begun, maybe anew: earlier messages were missed. After
    `ping_after` seconds without a message the server is asked whether it is there. `without` says
    in the log what happens as long as there is no subscription.
    """

    def __init__(
        self,
        server: Server,
        channels: Sequence[bytes],
        ping_after: float,
        on_message: Callable[[bytes | None], None],
        without: str,
    ) -> None:
        self._server = server
        self._channels = channels
        self._ping_after = ping_after
        self._on_message = on_message
        self._without = without
        self._connection: Connection | None = None
        self._failures = 0
        self._has_begun = False
        self._listener: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to listen."""
        self._listener = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        while True:
            try:
                self._connection = await self._server.connect()
                await self._connection.listen(self._channels, self._ping_after, self._hear)
            except Exception as error:  # any: without this task, no message would ever come
                self._failures = 0 if self._has_begun else self._failures + 1
                self._has_begun = False
                if self._failures == FAILURES_TO_LOG:
                    logger.warning("%s. Without a subscription %s.", error, self._without)
            await asyncio.sleep(retry_delay(self._failures))

    def _hear(self, payload: bytes | None) -> None:
        self._has_begun = True
        self._on_message(payload)

    async def renew(self) -> None:
        """Subscribe anew: another server may be the master now."""
        if self._connection is not None:
            await self._connection.close()

    async def close(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
