"""robots.txt files that all nodes share: one node fetches a site's, the others wait for it."""

from __future__ import annotations

import asyncio
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
from semaphore_middleware.errors import ClosedError
from semaphore_middleware.model.lease import RENEWAL
from semaphore_middleware.model.robotstxt import RobotsTxt
from semaphore_middleware.redis.connection import Connection
from semaphore_middleware.redis.keys import Keys
from semaphore_middleware.redis.link import Link
from semaphore_middleware.redis.location import Server
from semaphore_middleware.redis.robotstxt import RobotsTxtReply, RobotsTxtStore
from semaphore_middleware.redis.scripts import evaluate

SHUTDOWN_TIMEOUT_S = 2.0  # for telling the server which fetches are over


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
        self._link = Link(
            server, lambda: "Requests to sites whose robots.txt this node does not know wait"
        )
        self._store = RobotsTxtStore(keys, lease)
        self._lease = lease
        self._news: dict[str, asyncio.Event] = {}
        """By origin: set when it is worth asking the server again."""
        self._calls: set[asyncio.Timeout] = set()
        self._ends: set[asyncio.Task[None]] = set()
        """Fetches that are over, until the server knows."""
        self._is_draining = False

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
            if not timeout.expired():  # this may be the second time
                timeout.reschedule(_now())

    async def close(self) -> None:
        """Tell the server which fetches are over, and disconnect."""
        self.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(SHUTDOWN_TIMEOUT_S):
                await asyncio.gather(*self._ends)
        await self._link.close()

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
        over = asyncio.Event()
        renewal = asyncio.create_task(self._renew(origin, over))
        robotstxt, valid_until = None, 0.0
        try:
            fetched = await fetch(before)
            if fetched.for_others:
                robotstxt, valid_until = fetched.robotstxt, _now() + fetched.valid
            return fetched
        finally:
            over.set()
            # Not awaited: this may be a cancellation, and what is known here can be used at once.
            end = asyncio.create_task(self._end(origin, robotstxt, valid_until, renewal))
            self._ends.add(end)
            end.add_done_callback(self._ends.discard)

    async def _renew(self, origin: str, over: asyncio.Event) -> None:
        """Keep the fetch until it is over."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(RENEWAL * self._lease):
                    await over.wait()
                    return
            await self._reach(lambda: self._store.ask(self._semaphore.node, origin))

    async def _end(
        self,
        origin: str,
        robotstxt: RobotsTxt | None,
        valid_until: float,
        renewal: asyncio.Task[None],
    ) -> None:
        """End a fetch on the server. If that fails, others fetch when the lease is over."""
        await renewal  # a call that comes later would begin the fetch anew
        node = self._semaphore.node
        # A server that is away for an hour has what was fetched before for an hour less.
        await self._reach(lambda: self._store.put(node, origin, robotstxt, valid_until - _now()))

    async def _ask(self, origin: str) -> RobotsTxtReply:
        """Ask the server. Raises `ClosedError`."""
        timeout = asyncio.timeout(0 if self._is_draining else None)
        self._calls.add(timeout)
        try:
            async with timeout:
                node = self._semaphore.node
                return self._store.read(await self._reach(lambda: self._store.ask(node, origin)))
        except TimeoutError:
            raise ClosedError("the semaphore is closing") from None
        finally:
            self._calls.discard(timeout)

    async def _reach(self, call: Callable[[], tuple[Any, ...]]) -> Any:
        """The server's reply to a call, however many attempts it takes. Each is packed anew."""

        async def attempt(connection: Connection) -> Any:
            (reply,) = await evaluate(connection, [call()])
            return reply

        return await self._link.insist(attempt)


def _now() -> float:
    return asyncio.get_running_loop().time()
