"""Waiting for the server without holding up the node: until it answers, and for a crawl's news."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

logger = logging.getLogger(__name__)

TRY_AGAIN = 0.5  # seconds
SAY_AGAIN = 5.0  # seconds


def is_passing(error: Exception) -> bool:
    """Whether the same server may answer if asked again: it is away, or still starting."""
    refused = isinstance(error, exceptions.AuthenticationError | exceptions.AuthorizationError)
    return isinstance(error, exceptions.ConnectionError | exceptions.TimeoutError) and not refused


def client_of(url: str) -> Redis:
    # Trying again, and saying so, is its users' own task.
    return Redis.from_url(url, retry=Retry(NoBackoff(), 0))


def address_of(client: Redis) -> str:
    """Where the server is, without what a log must not show."""
    where = client.connection_pool.connection_kwargs
    return where.get("path") or f"{where.get('host', 'localhost')}:{where.get('port', 6379)}"


async def end(task: asyncio.Task[None]) -> None:
    """Cancel it until it ends: redis-py 8 loses a cancellation in the middle of a subscription."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.05)


class News:
    """A crawl's news channel; `tell` is called whenever it is worth looking at the crawl again."""

    def __init__(self, client: Redis, channel: bytes, tell: Callable[[], None]) -> None:
        self._client = client
        self._channel = channel
        self._tell = tell
        self._listening: asyncio.Task[None] | None = None

    async def meet_server(
        self, act: Callable[[], Awaitable[None]], wanted: Callable[[], bool]
    ) -> bool:
        """Wait for the server, then `act`; False if it was no longer `wanted` before that."""
        quiet_until = 0.0
        while wanted():
            try:
                await act()
                return True
            except exceptions.RedisError as error:
                if not is_passing(error):
                    raise
                now = asyncio.get_running_loop().time()
                if now >= quiet_until:
                    where = address_of(self._client)
                    logger.warning("Waiting for the crawl's server at %s: %s", where, error)
                    quiet_until = now + SAY_AGAIN
            await asyncio.sleep(TRY_AGAIN)
        return False

    def listen(self) -> None:
        self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        while True:
            try:
                async with self._client.pubsub() as pubsub:
                    await pubsub.subscribe(self._channel)
                    # Even the answer to subscribe is worth a look: what came before it is lost.
                    async for _ in pubsub.listen():
                        self._tell()
            except exceptions.RedisError as error:
                logger.debug("Lost the crawl's news, Scrapy's heartbeat stands in: %s", error)
            await asyncio.sleep(TRY_AGAIN)

    async def close(self) -> None:
        if self._listening is not None:
            await end(self._listening)
