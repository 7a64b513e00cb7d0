"""The connection to a shared crawl's server: waiting until it is up, and its notifications."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

logger = logging.getLogger(__name__)

RETRY_DELAY_S = 0.5
LOG_INTERVAL_S = 5.0


def is_transient(error: Exception) -> bool:
    """True if the same call may succeed later: the server is unreachable, or still starting."""
    refused = isinstance(error, exceptions.AuthenticationError | exceptions.AuthorizationError)
    return isinstance(error, exceptions.ConnectionError | exceptions.TimeoutError) and not refused


def create_client(url: str) -> Redis:
    """A client that makes each call once: its users retry, and log it.

    Raises `ValueError` for an address that cannot be read.
    """
    if "+" in url.partition("://")[0]:
        raise ValueError(
            "REDIS_URL: the shared frontier needs the address of one server, redis://, rediss:// "
            "or unix://; that of the semaphore may be another one, in SEMAPHORE_REDIS_URL"
        )
    # With protocol 3 redis-py asks for notifications of maintenance, which needs a right more.
    return Redis.from_url(url, protocol=2, retry=Retry(NoBackoff(), 0))


def address_of(client: Redis) -> str:
    """The server's address without a password, for the log."""
    where = client.connection_pool.connection_kwargs
    return where.get("path") or f"{where.get('host', 'localhost')}:{where.get('port', 6379)}"


async def cancel(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end. redis-py 8 may swallow a cancellation while subscribing,
    so this is repeated.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.05)


class Subscription:
    """Listens on a crawl's channel, and calls `notify` whenever it is worth asking the server."""

    def __init__(self, client: Redis, channel: bytes, notify: Callable[[], None]) -> None:
        self._client = client
        self._channel = channel
        self._notify = notify
        self._listener: asyncio.Task[None] | None = None

    async def wait_for_server(
        self, call: Callable[[], Awaitable[None]], wanted: Callable[[], bool]
    ) -> bool:
        """Make this call until it succeeds; False if it was no longer `wanted` before that.

        Raises a `RedisError` if the server refuses it.
        """
        next_log = 0.0
        while wanted():
            try:
                await call()
                return True
            except exceptions.RedisError as error:
                if not is_transient(error):
                    raise
                now = asyncio.get_running_loop().time()
                if now >= next_log:
                    where = address_of(self._client)
                    logger.warning("Waiting for the crawl's server at %s: %s", where, error)
                    next_log = now + LOG_INTERVAL_S
            await asyncio.sleep(RETRY_DELAY_S)
        return False

    def start(self) -> None:
        """Begin to listen."""
        self._listener = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        while True:
            try:
                async with self._client.pubsub() as pubsub:
                    await pubsub.subscribe(self._channel)
                    # The confirmation counts as well: messages before it were missed.
                    async for _ in pubsub.listen():
                        self._notify()
            except exceptions.RedisError as error:
                # The engine still asks for requests every 5 s by itself.
                logger.debug("No notifications of the crawl for now: %s", error)
            await asyncio.sleep(RETRY_DELAY_S)

    async def close(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            await cancel(self._listener)
