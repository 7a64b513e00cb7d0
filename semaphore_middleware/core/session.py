"""Background session with Redis: sends batched statements, listens for grants.

All that is due goes in one round trip, and what comes up meanwhile goes in the next. A statement
that no request waits for is held back for some milliseconds, so that others can go with it: a call
costs more than what it carries.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from semaphore_middleware.core.ledger import Ledger
from semaphore_middleware.core.observer import Event, Reconnected, RoundTrip
from semaphore_middleware.errors import ServerRefusedError, ServerUnreachableError
from semaphore_middleware.model.lease import RENEWAL
from semaphore_middleware.redis.connection import Connection, retry_delay
from semaphore_middleware.redis.location import Server
from semaphore_middleware.redis.store import Store

logger = logging.getLogger(__name__)

LOG_INTERVAL_S = 5.0  # between two log lines about a server that does not serve
FAILURES_TO_LOG = 5  # attempts to subscribe that fail in a row, until the log says so
BATCH_DELAY_S = 0.010  # for how long a statement that no request waits for is held back
SHUTDOWN_TIMEOUT_S = 2.0  # for giving everything back at the end


class Session:
    """Sends what the ledger has to say to the server, and gives it the replies and notifications.

    It has two connections: one for calls, one for the subscription. It opens new ones as long as it
    runs, and then everything is sent again.
    """

    def __init__(
        self,
        server: Server,
        store: Store,
        lease: float,
        emit: Callable[[Event], None],
    ) -> None:
        self._server = server
        self._store = store
        self._lease = lease
        self._emit = emit
        self._loop = asyncio.get_running_loop()
        self._work = asyncio.Event()
        self._settled = asyncio.Event()
        self._batch_timer: asyncio.TimerHandle | None = None
        self._urgent = False
        self.ledger = Ledger(lease, emit, self._something_to_say)
        """The permits that it sends and hears of."""
        self._logged_at = -LOG_INTERVAL_S
        self._subscription: Connection | None = None
        self._subscribed = False
        self._tasks: list[asyncio.Task[None]] = []

    def __str__(self) -> str:
        return str(self.ledger)

    async def start(self, wait: bool = True) -> None:
        """Connect to the server, and serve until `stop`.

        Raises `ServerRefusedError` if it is useless to wait; without `wait`, after one attempt,
        also `ServerUnreachableError`.
        """
        give_up = ServerRefusedError if wait else (ServerRefusedError, ServerUnreachableError)
        self._connection = await self._server.reach(self._log_unavailable, give_up)
        self._store.meet(self._connection)
        self._tasks = [asyncio.create_task(self._serve()), asyncio.create_task(self._listen())]

    async def stop(self) -> None:
        """Give everything back, for at most `SHUTDOWN_TIMEOUT_S`, and disconnect."""
        try:
            self.ledger.give_all_back()
            with suppress(TimeoutError):
                async with asyncio.timeout(SHUTDOWN_TIMEOUT_S):
                    while not self.ledger.settled:
                        self._settled.clear()
                        await self._settled.wait()
        finally:
            self.ledger.stop_timers()
            if self._batch_timer is not None:
                self._batch_timer.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _something_to_say(self, at_once: bool) -> None:
        if at_once:
            self._urgent = True
            self._work.set()
        elif self._batch_timer is None:
            self._batch_timer = self._loop.call_later(BATCH_DELAY_S, self._end_batch)

    def _end_batch(self) -> None:
        self._batch_timer = None
        self._work.set()

    # The two tasks ------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Send what is due, one round trip at a time."""
        failures = 0
        try:
            while True:
                await self._work.wait()
                self._work.clear()
                try:
                    if failures:
                        await self._reconnect()
                    sent, urgent = self._loop.time(), self._urgent
                    self._urgent = False
                    asks = self.ledger.gather(sent)
                    replies = await self._store.run(self._connection, asks, urgent)
                    if replies:
                        self._emit(RoundTrip(self._loop.time() - sent))
                    for reply in replies:
                        self.ledger.settle(reply, sent)
                    failures = 0
                except Exception as error:
                    # Any error: without this task, requests would wait for ever.
                    if not isinstance(error, ServerUnreachableError | ServerRefusedError):
                        logger.exception(
                            "Unexpected error (a bug); continuing with a new connection."
                        )
                    self._log_unavailable(error)
                    await self._connection.close()
                    await asyncio.sleep(retry_delay(failures))
                    failures += 1
                    self.ledger.say_all()
                if self.ledger.settled:
                    self._settled.set()
        finally:
            await self._connection.close()

    async def _listen(self) -> None:
        """Listen for grants that calls of other nodes have caused."""
        failures = 0
        while True:
            try:
                self._subscription = await self._server.connect()
                channels = self._store.channels
                await self._subscription.listen(channels, RENEWAL * self._lease, self._on_message)
            except Exception as error:
                failures = 0 if self._subscribed else failures + 1
                self._subscribed = False
                if failures == FAILURES_TO_LOG:
                    logger.warning(
                        "%s. Without a subscription some grants are learned late, at renewal.",
                        error,
                    )
            await asyncio.sleep(retry_delay(failures))

    def _on_message(self, payload: bytes | None) -> None:
        if payload is None:  # subscribed, maybe anew: earlier notifications were missed
            self._subscribed = True
            self.ledger.say_all()
        else:
            self.ledger.hear(payload)

    async def _reconnect(self) -> None:
        before = self._connection.state.run_id
        self._connection = await self._server.reach(self._log_unavailable)
        self._store.meet(self._connection)
        self._emit(Reconnected())
        if self._subscription is not None and self._connection.state.run_id != before:
            await self._subscription.close()  # it may be at a server that is in use no more

    def _log_unavailable(self, error: Exception) -> None:
        if self._loop.time() - self._logged_at >= LOG_INTERVAL_S:
            self._logged_at = self._loop.time()
            logger.warning(
                "%s. No permit is granted until it can be used again; %s.", error, self.ledger
            )
