"""The link of one party to the server: opened when it is needed, and anew where it has broken."""

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

FIRST_LOG_INTERVAL_S, LONGEST_LOG_INTERVAL_S = 5.0, 300.0  # between lines about one that is away
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0  # between two attempts to reach it, on average
BESIDE_S = 10.0  # after which the other link reports that the server is away, if it is

T = TypeVar("T")


class TwoServersError(ServerUnreachableError):
    """Another connection leads to another server than the calls' does.

    `is_sure`: it was so before, with these calls: a failover would be over.
    """

    def __init__(self, server: Server, is_sure: bool) -> None:
        super().__init__(
            f"{server} leads to two servers, each of which holds the limits by itself: a site may "
            "get twice as many requests; give all nodes the address of one"
        )
        self.is_sure = is_sure


class NoEchoError(ServerUnreachableError):
    """A message to oneself has not come."""


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
        self.incarnation = ""
        """The server's incarnation at the last call: in another one some of the last calls may be
        lost.
        """
        self.problem: Exception | None = None
        """Why the last attempt has failed; None: it has not, or there was none."""
        self._while_away = while_away
        self._beside = beside
        self._lock = asyncio.Lock()  # one call at a time
        self._connection: Connection | None = None
        self._failures = 0
        self._failing_since = math.inf
        self._away_since = math.inf  # as logged
        self._doubted = ""  # the calls' server, when another connection led elsewhere
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
            self.incarnation = self._connection.incarnation
        return self._connection

    async def connect_again(self) -> Connection:
        """Another connection, as the last one was. For another thread."""
        if self._connection is None:
            raise ServerUnreachableError(f"{self.server} was not reached yet")
        return await self._connection.connect_again()

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
        """The result of a call, with as many attempts as it takes. Raises errors in `give_up`.

        An attempt that fails keeps no connection: where there are few, another node may need it.
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
        """Log a failed attempt, now and then, and wait before the next one."""
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
                stderr.log(logger, logging.WARNING, "%s. %s.", error, self._while_away())
        # The first attempt after a break is often too early, so the second one comes as soon.
        doubled = FIRST_PAUSE_S * 2.0 ** min(max(0, self._failures - 2), 10)
        # By chance, so that not all nodes come back at once.
        await asyncio.sleep(min(LONGEST_PAUSE_S, doubled) * (0.5 + chance.fraction()))

    def succeeded(self) -> None:
        """An attempt has not failed."""
        if self.is_away:
            now = asyncio.get_running_loop().time()
            away_s = now - self._away_since
            logger.warning("Reached %s, after %.0f s.", self.server, away_s)
            self._away_since = math.inf
            self._log_at = min(self._log_at, now + FIRST_LOG_INTERVAL_S)
        self._failures, self._failing_since, self.problem = 0, math.inf, None

    def _may_pass(self, now: float) -> bool:
        """Whether the link beside this one may log the same, or soon both will be back."""
        if self._beside is None:
            return False
        if isinstance(self.problem, NoEchoError):  # calls are answered
            return self._failures == 1
        if isinstance(self.problem, TwoServersError):
            return not self.problem.is_sure
        return self._beside.is_away or now < self._failing_since + BESIDE_S

    async def check_subscription(self, channels: Sequence[bytes]) -> None:
        """Subscribe over a second connection, and leave. Raises `ServerRefusedError` where a right
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
        """Check that another connection leads to the server of this one, or to a replica of it.
        Raises `TwoServersError`; an earlier difference counts, too, if this one is where it was.
        """
        if not self.server.is_one_name:
            return
        if self._doubted or not self._is_same(other):  # either may have changed
            await self.check_server()
        if not self._is_same(other):
            await asyncio.sleep(self.server.call_timeout)  # a failover takes a moment
            await self.check_server()
        own = self._connection.replication if self._connection is not None else ""
        is_sure = self._doubted == own
        is_other = not self._is_same(other)
        self._doubted = own if is_other and not is_sure else ""
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
    link of its own, beside the one for calls. The first channel is only this node's: over the other
    link each new subscription is sent an echo there, and without that it is made anew.

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
        self._calls = calls
        self._link = Link(calls.server, lambda: f"Without it {without}", beside=calls)
        self._channels = channels
        self._ping_after = ping_after
        self._on_message = on_message
        self._has_begun = asyncio.Event()  # and its echo was not sent yet
        self._has_received = asyncio.Event()
        self._deaf: NoEchoError | None = None  # why it was closed, if so
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to listen."""
        self._tasks = [asyncio.create_task(work) for work in (self._listen(), self._check())]

    async def _listen(self) -> None:
        while True:
            try:
                self._deaf = None
                connection = await self._link.open()
                await self._calls.compare(connection)
                await connection.listen(self._channels, self._ping_after, self._on_payload)
            except Exception as error:  # any: without this task, no message would ever come
                await self._link.close()
                await self._link.failed(self._deaf or error)

    def _on_payload(self, payload: bytes | None) -> None:
        if payload is None:
            self._has_begun.set()
        else:
            self._link.succeeded()
            self._has_received.set()
        if payload != b"echo":
            self._on_message(payload)

    async def _check(self) -> None:
        """Leave each new subscription that its echo does not reach: nobody would notice that no
        message ever comes.
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
                    self._deaf = NoEchoError(f"{server} brings no messages")
                    await self._link.close()

    async def _send_echo(self) -> None:
        """Publish a message, as the scripts do."""
        while True:
            self._has_received.clear()
            try:
                async with self._calls.use() as connection:
                    await run_scripts(connection, [Call(ECHO, self._channels[:1], ())])
                return
            except (ServerUnreachableError, ServerRefusedError):  # it is the calls' to log that
                await asyncio.sleep(self._ping_after)

    async def renew(self) -> None:
        """Subscribe anew: another server may be the master now."""
        await self._link.close()

    async def close(self) -> None:
        """Stop listening."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._link.close()  # it was open already if its server was still being compared
