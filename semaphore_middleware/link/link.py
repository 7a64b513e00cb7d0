"""A link to the server: a connection that is opened when it is needed, and again after a break."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from semaphore_middleware.errors import ServerRefusedError, ServerUnreachableError
from semaphore_middleware.link import chance, stderr
from semaphore_middleware.link.connection import Connection
from semaphore_middleware.link.location import Server
from semaphore_middleware.link.scripts import ECHO, Call, run_scripts

logger = logging.getLogger(__name__)

FIRST_LOG_INTERVAL_S, LONGEST_LOG_INTERVAL_S = 5.0, 300.0  # between lines about an absence
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0  # between two attempts to reach it, on average
COMPANION_S = 10.0  # after which the companion has logged that the server is away, if it is

T = TypeVar("T")


class TwoServersError(ServerUnreachableError):
    """Two connections to one address lead to different servers.

    `is_sure`: they also did at the last comparison; a failover would be over by now.
    """

    def __init__(self, server: Server, is_sure: bool) -> None:
        super().__init__(
            f"{server} leads to two servers, each of which holds the limits by itself: a site may "
            "get twice as many requests; give all nodes the address of one"
        )
        self.is_sure = is_sure


class NoEchoError(ServerUnreachableError):
    """A message to this node's own channel did not arrive."""


class Link:
    """A connection to the server, and another one after an error.

    `while_away` is the log's text on what happens while the server is away. It is logged at once,
    then at doubling intervals; None: never. A link with a `companion`, another link to the server,
    logs only what that one does not.
    """

    def __init__(
        self,
        server: Server,
        while_away: Callable[[], str] | None = None,
        companion: Link | None = None,
    ) -> None:
        self.server = server
        self.incarnation = ""
        """The server's incarnation at the last call; a change means that calls may be lost."""
        self.problem: Exception | None = None
        """Why the last attempt failed; None: it succeeded, or there was none."""
        self._while_away = while_away
        self._companion = companion
        self._lock = asyncio.Lock()  # one call at a time
        self._connection: Connection | None = None
        self._failures = 0
        self._failing_since = math.inf
        self._away_since = math.inf  # the first log line's time
        self._differed_from = ""  # the calls' server, when another connection led elsewhere
        self._log_at = -math.inf  # the next line, at the earliest

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
        """True from the first log line that the server is away until it is reached."""
        return self._away_since < math.inf

    async def open(self) -> Connection:
        """The connection; a new one if there is none. One attempt, which raises what
        `Server.connect` does.
        """
        if self._connection is None or not self._connection.is_open:
            self._connection = await self.server.connect()
            self.incarnation = self._connection.incarnation
        return self._connection

    async def connect_again(self) -> Connection:
        """Open another connection like the last one, for another thread."""
        assert self._connection is not None, "there are leases to renew"
        return await self._connection.connect_again()

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Connection]:
        """The connection, for one caller at a time. Raises as `open` does."""
        async with self._lock:
            yield await self.open()

    async def insist(
        self, call: Callable[[], Awaitable[T]], give_up: tuple[type[Exception], ...]
    ) -> T:
        """Repeat a call until it succeeds, and return its result. Raises errors in `give_up`.

        A failed attempt closes the connection: if the server allows few, another node may need it.
        """
        while True:
            try:
                result = await call()
            except give_up:
                raise
            except (ServerUnreachableError, ServerRefusedError) as error:
                await self.close()
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
                logger.exception("Unexpected error (a bug); the call is retried.")
            await self.failed(error)
            return False
        self.succeeded()
        return True

    async def check_server(self) -> None:
        """Check for another master, and for another incarnation of the server."""
        async with self.use() as connection:
            connection.check_master()
            await connection.check_server()
            self.incarnation = connection.incarnation

    async def failed(self, error: Exception) -> None:
        """Log a failed attempt, at growing intervals, and wait before the next one."""
        self.problem = error
        self._failures += 1
        now = asyncio.get_running_loop().time()
        self._failing_since = min(self._failing_since, now)
        if self._while_away is not None and now >= self._log_at and not self._may_pass(now):
            self._away_since = min(self._away_since, now)
            interval = max(FIRST_LOG_INTERVAL_S, now - self._away_since)
            self._log_at = now + min(LONGEST_LOG_INTERVAL_S, interval)
            if isinstance(error, TwoServersError):
                stderr.log(logger, logging.ERROR, "%s.", error)
            else:
                problem = str(error).removesuffix(".")  # servers end their messages with one
                stderr.log(logger, logging.WARNING, "%s. %s.", problem, self._while_away())
        # The first attempt after a break is often too early, so the second one comes as soon.
        doubled = FIRST_PAUSE_S * 2.0 ** min(max(0, self._failures - 2), 10)
        # Random, so that not all nodes come back at once.
        await asyncio.sleep(min(LONGEST_PAUSE_S, doubled) * (0.5 + chance.fraction()))

    def succeeded(self) -> None:
        """Forget failed attempts, and log that the server was reached if they were logged."""
        if self.is_away:
            now = asyncio.get_running_loop().time()
            away_s = now - self._away_since
            logger.warning("Reached %s, after %.0f s.", self.server, away_s)
            self._away_since = math.inf
            self._log_at = min(self._log_at, now + FIRST_LOG_INTERVAL_S)
        self._failures, self._failing_since, self.problem = 0, math.inf, None

    def _may_pass(self, now: float) -> bool:
        """True if the companion may log the problem, or it may soon be over."""
        if self._companion is None:
            return False
        if isinstance(self.problem, NoEchoError):  # calls are answered
            return self._failures == 1
        if isinstance(self.problem, TwoServersError):
            return not self.problem.is_sure
        return self._companion.is_away or now < self._failing_since + COMPANION_S

    async def check_subscription(self, channels: Sequence[bytes]) -> None:
        """Subscribe over a second connection, and close it. Raises `ServerRefusedError` if a right
        is missing, and `ServerUnreachableError`.
        """
        connection = await self.server.connect()
        try:
            await connection.subscribe(channels)
            with suppress(TwoServersError):  # the subscription will report it
                await self.compare(connection)
        finally:
            await connection.close()

    async def compare(self, other: Connection) -> None:
        """Check that another connection leads to this link's server, or to a replica of it. Raises
        `TwoServersError` if it does not, or if an earlier one did not while this link had the same
        server.
        """
        if not self.server.is_one_name:
            return
        if self._differed_from or not self._is_same(other):  # either may have changed
            await self.check_server()
        if not self._is_same(other):
            await asyncio.sleep(self.server.call_timeout)  # a failover takes a moment
            await self.check_server()
        own = self._connection.replication if self._connection is not None else ""
        is_sure = self._differed_from == own
        is_other = not self._is_same(other)
        self._differed_from = own if is_other and not is_sure else ""
        if is_other or is_sure:
            raise TwoServersError(self.server, is_sure)

    def _is_same(self, other: Connection) -> bool:
        own = self._connection
        return own is not None and own.replication == other.replication

    async def close(self) -> None:
        """Close the connection; the next call opens another."""
        if self._connection is not None:
            await self._connection.close()


class Subscription:
    """Calls `on_message(payload)` for each message on the channels, from `start` to `close`, over a
    link of its own. The first channel is this node's alone: the link for `calls` sends an echo
    there to each new subscription, which is replaced unless the echo arrives.

    `on_message(None)` means that a subscription has begun, and that earlier messages may be lost.
    After `ping_after` seconds without a message the server is pinged. `without` is the log's text
    on what happens while calls are answered but there is no subscription.
    """

    def __init__(
        self,
        calls: Link,
        channels: Sequence[bytes],
        ping_after: float,
        on_message: Callable[[bytes | None], None],
        without: str,
    ) -> None:
        self._calls = calls
        self._link = Link(calls.server, lambda: f"Without it {without}", companion=calls)
        self._channels = channels
        self._ping_after = ping_after
        self._on_message = on_message
        self._has_begun = asyncio.Event()  # and its echo was not sent yet
        self._has_received = asyncio.Event()
        self._no_echo: NoEchoError | None = None  # why the subscription was closed, if so
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to listen."""
        self._tasks = [asyncio.create_task(work) for work in (self._listen(), self._check())]

    async def _listen(self) -> None:
        while True:
            try:
                self._no_echo = None
                connection = await self._link.open()
                await self._calls.compare(connection)
                await connection.listen(self._channels, self._ping_after, self._on_payload)
            except Exception as error:  # any: without this task, no message would ever come
                await self._link.close()
                await self._link.failed(self._no_echo or error)

    def _on_payload(self, payload: bytes | None) -> None:
        if payload is None:
            self._has_begun.set()
        else:
            self._link.succeeded()
            self._has_received.set()
        if payload != b"echo":
            self._on_message(payload)

    async def _check(self) -> None:
        """Close each new subscription that its echo does not reach: nobody would notice that no
        messages arrive.
        """
        server = self._calls.server
        while True:
            await self._has_begun.wait()
            self._has_begun.clear()
            await self._send_echo()
            try:
                async with asyncio.timeout(server.call_timeout):
                    await self._has_received.wait()
            except TimeoutError:
                if not self._has_begun.is_set():  # else the echo was an earlier subscription's
                    self._no_echo = NoEchoError(f"{server} delivers no messages")
                    await self._link.close()

    async def _send_echo(self) -> None:
        """Publish a message, as the scripts do."""
        while True:
            self._has_received.clear()
            try:
                async with self._calls.use() as connection:
                    await run_scripts(connection, [Call(ECHO, self._channels[:1], ())])
                return
            except (ServerUnreachableError, ServerRefusedError):  # calls log it
                await asyncio.sleep(self._ping_after)

    async def renew(self) -> None:
        """Subscribe again: another server may be the master now."""
        await self._link.close()

    async def close(self) -> None:
        """Stop listening."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._link.close()  # it was open already if its server was still being compared
