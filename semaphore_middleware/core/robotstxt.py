"""robots.txt files that all nodes share: one node fetches a site's, the others wait for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

from semaphore_middleware.core.observer import (
    Event,
    ObservedSemaphore,
    Observer,
    RobotsTxtNotified,
    Subscribed,
)
from semaphore_middleware.errors import ClosedError, ServerRefusedError, ServerUnreachableError
from semaphore_middleware.model.lease import RENEWAL
from semaphore_middleware.model.robotstxt import RobotsTxt
from semaphore_middleware.redis.connection import Connection, retry_delay
from semaphore_middleware.redis.keys import Keys
from semaphore_middleware.redis.location import Server
from semaphore_middleware.redis.robotstxt import RobotsTxtReply, RobotsTxtStore
from semaphore_middleware.redis.scripts import evaluate

logger = logging.getLogger(__name__)

LOG_INTERVAL_S = 5.0  # between two log lines about a server that does not serve
PUT_TIMEOUT_S = 2.0  # for telling the server what was fetched, or that a fetch was given up


@dataclass(frozen=True, slots=True)
class Fetched:
    """A robots.txt, and for how many seconds it is valid from now on."""

    robotstxt: RobotsTxt
    valid: float
    for_others: bool = True
    """False: other nodes are to fetch it themselves."""
    by_another: bool = False
    """True if another node has fetched it."""


Fetch = Callable[[RobotsTxt | None], Awaitable[Fetched]]
"""Asks the site, and is told what it answered before, if that is known."""


class SharedRobotsTxt(Observer):
    """Reads robots.txt files from the server, and has one crawl at a time fetch each.

    A fetch is a lease, which its node renews: if that dies, another one fetches. As an observer of
    the crawl's semaphore it hears when a file that it waits for is there. It has a connection of
    its own, opened by the first call, so that long files do not hold up permits. `lease` is in
    seconds.
    """

    def __init__(self, server: Server, keys: Keys, lease: float) -> None:
        self._server = server
        self._store = RobotsTxtStore(keys, lease)
        self._lease = lease
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()
        self._news: dict[str, asyncio.Event] = {}
        """By origin: set when it is worth asking the server again."""
        self._calls: set[asyncio.Timeout] = set()
        self._ends: set[asyncio.Task[None]] = set()
        """Fetches that were given up, until the server knows."""
        self._is_draining = False
        self._logged_at = -LOG_INTERVAL_S

    async def open(self, semaphore: ObservedSemaphore) -> None:
        """Speak for this semaphore's node."""
        self._semaphore = semaphore

    def on_event(self, event: Event) -> None:
        """A file that this node waits for is there, or may have come while nothing was heard."""
        if isinstance(event, RobotsTxtNotified):
            if event.origin in self._news:
                self._news[event.origin].set()
        elif isinstance(event, Subscribed):
            for news in self._news.values():
                news.set()

    def drain(self) -> None:
        """Let no one wait any more: calls of `get` raise `ClosedError`, unless they fetch."""
        self._is_draining = True
        for news in self._news.values():
            news.set()
        for timeout in self._calls:
            timeout.reschedule(asyncio.get_running_loop().time())

    async def close(self) -> None:
        """Tell the server what was given up, and disconnect."""
        self.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(PUT_TIMEOUT_S):
                await asyncio.gather(*self._ends)
        if self._connection is not None:
            await self._connection.close()

    async def get(
        self, origin: str, fetch: Fetch, while_waiting: Callable[[], AbstractContextManager[None]]
    ) -> Fetched:
        """The robots.txt of an origin; `fetch` is called if this node is to ask the site.

        `while_waiting()` is entered while another node does. One call at a time for each origin.
        Waits while the server cannot be reached. Raises `ClosedError`, and what `fetch` raises:
        then another node fetches.
        """
        news = self._news[origin] = asyncio.Event()
        try:
            while True:
                news.clear()
                reply = await self._ask(origin)
                if reply.step == "wait":
                    with while_waiting(), suppress(TimeoutError):
                        async with asyncio.timeout(reply.left):
                            await news.wait()
                elif reply.step == "valid" and reply.robotstxt is not None:
                    return Fetched(reply.robotstxt, reply.left, by_another=True)
                else:
                    return await self._fetch(origin, fetch, reply.robotstxt)
        finally:
            del self._news[origin]

    async def _fetch(self, origin: str, fetch: Fetch, before: RobotsTxt | None) -> Fetched:
        renewal = asyncio.create_task(self._renew(origin))
        try:
            fetched = await fetch(before)
        except BaseException:
            # Not awaited: this may be a cancellation.
            end = asyncio.create_task(self._put(origin, None, 0.0))
            self._ends.add(end)
            end.add_done_callback(self._ends.discard)
            raise
        finally:
            renewal.cancel()
        await self._put(origin, fetched.robotstxt if fetched.for_others else None, fetched.valid)
        return fetched

    async def _renew(self, origin: str) -> None:
        """Keep the fetch, as long as this node does."""
        with suppress(ClosedError):
            while True:
                await asyncio.sleep(RENEWAL * self._lease)
                await self._ask(origin)

    async def _put(self, origin: str, robotstxt: RobotsTxt | None, valid: float) -> None:
        """Tell the server; one attempt. If it fails, others fetch when the lease is over."""
        with suppress(TimeoutError, ServerUnreachableError, ServerRefusedError):
            async with asyncio.timeout(PUT_TIMEOUT_S):
                await self._evaluate(
                    self._store.put(self._semaphore.node, origin, robotstxt, valid)
                )

    async def _ask(self, origin: str) -> RobotsTxtReply:
        """Ask the server, however many attempts it takes. Raises `ClosedError`."""
        timeout = asyncio.timeout(None)
        self._calls.add(timeout)
        failures = 0
        try:
            async with timeout:
                while not self._is_draining:
                    try:
                        call = self._store.ask(self._semaphore.node, origin)
                        return self._store.read(await self._evaluate(call))
                    except (ServerUnreachableError, ServerRefusedError) as error:
                        self._log_unavailable(error)
                        await asyncio.sleep(retry_delay(failures))
                        failures += 1
        except TimeoutError:
            pass
        finally:
            self._calls.discard(timeout)
        raise ClosedError("the semaphore is closing")

    async def _evaluate(self, call: tuple[Any, ...]) -> Any:
        async with self._lock:
            if self._connection is None or not self._connection.is_open:
                self._connection = await self._server.connect()
            (reply,) = await evaluate(self._connection, [call])
            return reply

    def _log_unavailable(self, error: Exception) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._logged_at >= LOG_INTERVAL_S:
            self._logged_at = now
            logger.warning(
                "%s. Requests to sites whose robots.txt this node does not know wait.", error
            )
