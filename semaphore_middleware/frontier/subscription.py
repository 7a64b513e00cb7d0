"""Listens on a shared crawl's channel."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from semaphore_middleware.redis.connection import Connection, retry_delay
from semaphore_middleware.redis.location import Server

logger = logging.getLogger(__name__)


class Subscription:
    """Calls `notify` whenever it is worth asking the server. After `ping_after` seconds without a
    message, the server is asked whether it is there.
    """

    def __init__(
        self, server: Server, channel: bytes, ping_after: float, notify: Callable[[], None]
    ) -> None:
        self._server = server
        self._channel = channel
        self._ping_after = ping_after
        self._notify = notify
        self._connection: Connection | None = None
        self._failures = 0
        self._listener: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to listen."""
        self._listener = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        while True:
            try:
                self._connection = await self._server.connect()
                await self._connection.listen([self._channel], self._ping_after, self._on_message)
            except Exception as error:
                # Any error: the engine still asks for requests every 5 s by itself.
                logger.debug("No notifications of the crawl for now: %s", error)
            await asyncio.sleep(retry_delay(self._failures))
            self._failures += 1

    def _on_message(self, _payload: bytes | None) -> None:
        # That the subscription has begun counts as well: messages before it were missed.
        self._failures = 0
        self._notify()

    async def renew(self) -> None:
        """Subscribe anew: another server may be the master now."""
        if self._connection is not None:
            await self._connection.close()

    async def close(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
