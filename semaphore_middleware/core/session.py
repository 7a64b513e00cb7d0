"""One node's talk with the server.

What the ledger has to say goes in one round trip, and what comes up meanwhile goes in the next.
Where nobody waits for it, a little more is gathered: a call costs more than what it carries.
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
MANY = 5  # failures in a row, after which it is said that something does not work
GATHER = 0.010  # seconds to gather what may be said later
FAREWELL = 2.0  # seconds that leaving may take to give everything back


class Node:
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
        self._gathering: asyncio.TimerHandle | None = None
        self._in_a_hurry = False
        self._ledger = Ledger(lease, emit, self._something_to_say)
        self.ask = self._ledger.ask
        self.drain = self._ledger.drain
        self.limit_of = self._ledger.limit_of
        self.permits = self._ledger.permits
        self._logged_at = -LOG_INTERVAL_S
        self._ears: Connection | None = None
        self._deaf = True
        self._tasks: list[asyncio.Task[None]] = []

    def __str__(self) -> str:
        return str(self._ledger)

    async def start(self, wait: bool = True) -> None:
        """Reach the server. Raises `ServerRefusedError` where waiting is in vain; and, unless it is
        to wait, `ServerUnreachableError`.
        """
        give_up = ServerRefusedError if wait else (ServerRefusedError, ServerUnreachableError)
        self._connection = await self._server.reach(self._log_unavailable, give_up)
        self._store.meet(self._connection)
        self._tasks = [asyncio.create_task(self._serve()), asyncio.create_task(self._listen())]

    async def stop(self) -> None:
        """Give everything back and leave."""
        try:
            self._ledger.give_all_back()
            with suppress(TimeoutError):
                async with asyncio.timeout(FAREWELL):
                    while not self._ledger.settled:
                        self._settled.clear()
                        await self._settled.wait()
        finally:
            self._ledger.stop_timers()
            if self._gathering is not None:
                self._gathering.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _something_to_say(self, at_once: bool) -> None:
        if at_once:
            self._in_a_hurry = True
            self._work.set()
        elif self._gathering is None:
            self._gathering = self._loop.call_later(GATHER, self._end_gathering)

    def _end_gathering(self) -> None:
        self._gathering = None
        self._work.set()

    # The two tasks ------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Say what is to be said, a round trip at a time; what comes up meanwhile goes together."""
        failures = 0
        try:
            while True:
                await self._work.wait()
                self._work.clear()
                try:
                    if failures:
                        await self._reconnect()
                    sent, in_a_hurry = self._loop.time(), self._in_a_hurry
                    self._in_a_hurry = False
                    asks = self._ledger.gather(sent)
                    answers = await self._store.run(self._connection, asks, in_a_hurry)
                    if answers:
                        self._emit(RoundTrip(self._loop.time() - sent))
                    for answer in answers:
                        self._ledger.settle(answer, sent)
                    failures = 0
                except Exception as error:
                    # Whatever it is: those who wait would wait for ever for a task that is gone.
                    if not isinstance(error, ServerUnreachableError | ServerRefusedError):
                        logger.exception("This should not happen; going on with a new connection.")
                    self._log_unavailable(error)
                    await self._connection.close()
                    await asyncio.sleep(retry_delay(failures))
                    failures += 1
                    self._ledger.say_all()
                if self._ledger.settled:
                    self._settled.set()
        finally:
            await self._connection.close()

    async def _listen(self) -> None:
        """Hear of grants that other nodes' calls have caused."""
        failures = 0
        while True:
            try:
                self._ears = await self._server.connect()
                channels = self._store.channels
                await self._ears.listen(channels, RENEWAL * self._lease, self._hear)
            except Exception as error:
                failures = failures + 1 if self._deaf else 0
                self._deaf = True
                if failures == MANY:
                    logger.warning("%s. Grants are heard late, with the renewals.", error)
            await asyncio.sleep(retry_delay(failures))

    def _hear(self, payload: bytes | None) -> None:
        if payload is None:  # subscribed, maybe anew: what was said before was not heard
            self._deaf = False
            self._ledger.say_all()
        else:
            self._ledger.hear(payload)

    async def _reconnect(self) -> None:
        before = self._connection.state.run_id
        self._connection = await self._server.reach(self._log_unavailable)
        self._store.meet(self._connection)
        self._emit(Reconnected())
        if self._ears is not None and self._connection.state.run_id != before:
            await self._ears.close()  # they may listen at a server that nobody speaks to any more

    def _log_unavailable(self, error: Exception) -> None:
        if self._loop.time() - self._logged_at >= LOG_INTERVAL_S:
            self._logged_at = self._loop.time()
            logger.warning(
                "%s. No permit is granted until it serves again; %s.", error, self._ledger
            )
