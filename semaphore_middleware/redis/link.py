"""The link of one party to the server: opened when it is needed, and anew where it has broken."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from semaphore_middleware.errors import ServerRefusedError, ServerUnreachableError
from semaphore_middleware.redis.connection import Connection
from semaphore_middleware.redis.location import Server

logger = logging.getLogger(__name__)

FIRST_LOG_INTERVAL_S, LONGEST_LOG_INTERVAL_S = 5.0, 300.0  # between lines about one that is away
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0  # between two attempts to reach it
BESIDE_S = 10.0  # after which the other link reports that the server is away, if it is

T = TypeVar("T")


class Link:
    """A connection to the server, and another one after an error.

    `while_away` tells people, in the log, what happens as long as the server does not serve: at
    once, then after twice as long each time. None: it logs nothing, as another link does. A link
    `beside` another one to the server logs only what that one does not.
    """

    def __init__(
        self,
        server: Server,
        while_away: Callable[[], str] | None = None,
        beside: Link | None = None,
    ) -> None:
        self.server = server
        self.life = ""
        """The server's life at the last call: in another one some of the last calls may be lost."""
        self.problem: Exception | None = None
        """Why the last attempt has failed; None: it has not, or there was none."""
        self._while_away = while_away
        self._beside = beside
        self._lock = asyncio.Lock()  # one call at a time
        self._connection: Connection | None = None
        self._failures = 0
        self._away_since = math.inf  # as logged
        self._log_at = -math.inf  # not before

    @property
    def is_open(self) -> bool:
        """False if the next call opens a connection, perhaps to another server."""
        return self._connection is not None and self._connection.is_open

    @property
    def may_evict(self) -> bool:
        """True if the server of the connection evicts keys when its memory is full."""
        return self._connection is not None and self._connection.may_evict

    @property
    def is_away(self) -> bool:
        """True if the server does not serve, and that was logged."""
        return self._away_since < math.inf

    async def open(self) -> Connection:
        """The connection; a new one if there is none. One attempt, which raises what
        `Server.connect` does.
        """
        if self._connection is None or not self._connection.is_open:
            self._connection = await self.server.connect()
            self.life = self._connection.life
        return self._connection

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Connection]:
        """The connection, for one caller at a time. One attempt, which raises what `Server.connect`
        does.
        """
        async with self._lock:
            yield await self.open()

    async def insist(
        self, call: Callable[[], Awaitable[T]], give_up: tuple[type[Exception], ...]
    ) -> T:
        """The result of a call, with as many attempts as it takes. Raises errors in `give_up`."""
        while True:
            try:
                result = await call()
            except give_up:
                raise
            except (ServerUnreachableError, ServerRefusedError) as error:
                await self.failed(error)
            else:
                self.succeeded()
                return result

    async def attempt(self, call: Callable[[], Awaitable[None]]) -> bool:
        """Try once. On failure: log, pause, return False.

        Any error is caught: without the task that calls this, others would wait for ever.
        """
        try:
            await call()
        except Exception as error:
            if not isinstance(error, ServerUnreachableError | ServerRefusedError):
                logger.exception("Unexpected error (a bug); the call is made again.")
            await self.failed(error)
            return False
        self.succeeded()
        return True

    async def look(self) -> None:
        """Check for another master, and for another life of the server."""
        connection = await self.open()
        connection.look_for_master()
        await connection.check_server()
        self.life = connection.life

    async def failed(self, error: Exception) -> None:
        """Log a failed attempt, now and then, and wait before the next one."""
        self.problem = error
        self._failures += 1
        now = asyncio.get_running_loop().time()
        if self._beside is not None and self._failures == 1:
            self._log_at = max(self._log_at, now + BESIDE_S)
        is_other_logging = self._beside is not None and self._beside.is_away
        if self._while_away is not None and now >= self._log_at and not is_other_logging:
            self._away_since = min(self._away_since, now)
            interval = max(FIRST_LOG_INTERVAL_S, now - self._away_since)
            self._log_at = now + min(LONGEST_LOG_INTERVAL_S, interval)
            logger.warning("%s. %s.", error, self._while_away())
        # The first attempt after a break is often too early, so the second one comes as soon.
        doubled = FIRST_PAUSE_S * 2.0 ** min(max(0, self._failures - 2), 10)
        await asyncio.sleep(min(LONGEST_PAUSE_S, doubled))

    def succeeded(self) -> None:
        """An attempt has not failed."""
        if self.is_away:
            now = asyncio.get_running_loop().time()
            away_s = now - self._away_since
            logger.warning("Reached %s, after %.0f s.", self.server, away_s)
            self._away_since = math.inf
            self._log_at = min(self._log_at, now + FIRST_LOG_INTERVAL_S)
        self._failures, self.problem = 0, None

    async def check_subscription(self, channels: Sequence[bytes]) -> None:
        """Subscribe over a second connection, and leave. Raises `ServerRefusedError` where a right
        is missing, and `ServerUnreachableError`.
        """
        connection = await self.server.connect()
        try:
            await connection.subscribe(channels)
        finally:
            await connection.close()

    async def close(self) -> None:
        """Close the connection; the next call opens another."""
        if self._connection is not None:
            await self._connection.close()


class Subscription:
    """Calls `on_message(payload)` for each message on the channels, from `start` to `close`, over a
    link of its own, beside the one for calls.

    `on_message(None)`: the subscription has begun, maybe anew: earlier messages were missed. After
    `ping_after` seconds without a message the server is asked whether it is there. `without` is for
    the log: what happens as long as there is no subscription though calls are answered.
    """

    def __init__(
        self,
        calls: Link,
        channels: Sequence[bytes],
        ping_after: float,
        on_message: Callable[[bytes | None], None],
        without: str,
    ) -> None:
        self._link = Link(calls.server, lambda: f"Without it {without}", beside=calls)
        self._channels = channels
        self._ping_after = ping_after
        self._on_message = on_message
        self._listener: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to listen."""
        self._listener = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        while True:
            try:
                connection = await self._link.open()
                await connection.listen(self._channels, self._ping_after, self._hear)
            except Exception as error:  # any: without this task, no message would ever come
                await self._link.failed(error)

    def _hear(self, payload: bytes | None) -> None:
        self._link.succeeded()
        self._on_message(payload)

    async def renew(self) -> None:
        """Subscribe anew: another server may be the master now."""
        await self._link.close()

    async def close(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
