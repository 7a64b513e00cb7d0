"""robots.txt files that all nodes share: one node fetches a site's, the others wait for it."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, Self

from semaphore_middleware.core.observer import (
    Event,
    ObservedSemaphore,
    Observer,
    RobotsTxtNotified,
    Subscribed,
)
from semaphore_middleware.errors import ClosedError
from semaphore_middleware.model import chance
from semaphore_middleware.model.hosts import encoded, host_within, normal_host
from semaphore_middleware.model.lease import RENEWAL
from semaphore_middleware.redis.keys import Keys
from semaphore_middleware.redis.link import Link
from semaphore_middleware.redis.location import Server
from semaphore_middleware.redis.protocol import milliseconds
from semaphore_middleware.redis.scripts import evaluate

MAX_BYTES = 500 * 1024
"""How much of a robots.txt is read: RFC 9309 (2.5) asks for at least 500 KiB."""
MAX_SHARED_BYTES = 16 * 1024
"""Of a file, compressed: each node fetches a larger one by itself."""
SHUTDOWN_TIMEOUT_S = 2.0  # for telling the server which fetches are over


@dataclass(frozen=True, slots=True)
class RobotsTxt:
    """What a site answered when it was asked for its robots.txt (RFC 9309, 2.3.1)."""

    text: bytes = b""
    """What applies, at most `MAX_BYTES`; nothing, if the site has no robots.txt."""
    status: int = 0
    """Of its response; 0: there was none."""
    problem: str = ""
    """Why the file is undefined: a server's error, or no answer. Empty: it is not."""
    failures: int = 0
    """How often in a row that was so."""

    @classmethod
    def of_body(cls, body: bytes, status: int) -> Self:
        """The file with this body. Of one that is too long, the lines that are whole."""
        if len(body) > MAX_BYTES:
            body = body[:MAX_BYTES]
            # A part of a rule would be another rule: "Allow: /" is not "Allow: /one/page".
            body = body[: max(body.rfind(b"\n"), body.rfind(b"\r")) + 1]
        return cls(body, status)

    def pack(self) -> bytes:
        """The bytes that the server keeps."""
        about = json.dumps([self.status, self.problem, self.failures])
        return about.encode() + b"\n" + zlib.compress(self.text)

    @classmethod
    def unpack(cls, packed: bytes) -> Self | None:
        """Read what the server keeps. None for nothing, and for what is not in this form."""
        about, _, text = packed.partition(b"\n")
        try:
            status, problem, failures = json.loads(about)
            body = zlib.decompressobj().decompress(text, MAX_BYTES)
            return cls(body, int(status), str(problem), int(failures))
        except (ValueError, TypeError, zlib.error):
            return None


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

    A fetch is a lease (`lease`, in seconds), which its node renews: if that dies, another one
    fetches. As an observer of the crawl's semaphore it hears when a file that it waits for is
    there. It has a connection of its own, opened by the first call, so that long files do not hold
    up permits. What was obeyed is kept for `history` (in seconds).
    """

    hears = (RobotsTxtNotified, Subscribed)

    def __init__(self, server: Server, keys: Keys, lease: float, history: float = 0.0) -> None:
        self._link = Link(
            server, lambda: "Requests to sites whose robots.txt this node does not know wait"
        )
        self._keys = keys
        self._lease = lease
        self._history = history
        self._asker = chance.token(8)  # several crawls of a process are one node
        self._news: dict[str, asyncio.Event] = {}
        """By origin: set when it is worth asking the server again."""
        self._waits: set[asyncio.Timeout] = set()
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
        for wait in self._waits:
            if not wait.expired():  # this may be the second time
                wait.reschedule(_now())

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
        wait = asyncio.timeout(0 if self._is_draining else None)
        self._waits.add(wait)
        news = self._news[origin] = asyncio.Event()
        try:
            async with wait:
                while True:
                    news.clear()
                    step, data, left = await self._call("ask_robotstxt", origin)
                    if step != b"wait":
                        break
                    with while_waiting(), suppress(TimeoutError):
                        await asyncio.wait_for(news.wait(), left / 1000)
        except TimeoutError:
            raise ClosedError("the semaphore is closing") from None
        finally:
            self._waits.discard(wait)
            del self._news[origin]
        known = RobotsTxt.unpack(data)
        if step == b"valid" and known is not None:
            return Fetched(known, left / 1000, by_another=True)
        return await self._fetch(origin, fetch, known)

    async def _fetch(self, origin: str, fetch: Fetch, before: RobotsTxt | None) -> Fetched:
        result: asyncio.Future[tuple[bytes, float]] = asyncio.get_running_loop().create_future()
        holding = asyncio.create_task(self._hold(origin, result))
        data, valid_until = b"", 0.0
        try:
            fetched = await fetch(before)
            if fetched.for_others and len(packed := fetched.robotstxt.pack()) <= MAX_SHARED_BYTES:
                data, valid_until = packed, _now() + fetched.valid
            return fetched
        finally:
            result.set_result((data, valid_until))
            # Not awaited: this may be a cancellation, and what is known here can be used at once.
            self._ends.add(holding)
            holding.add_done_callback(self._ends.discard)

    async def _hold(self, origin: str, result: asyncio.Future[tuple[bytes, float]]) -> None:
        """Renew the fetch until it has a result, then end it on the server. If that fails, others
        fetch when the lease is over.
        """
        while not (await asyncio.wait([result], timeout=RENEWAL * self._lease))[0]:
            await self._call("ask_robotstxt", origin)
        data, valid_until = result.result()

        def fetched() -> tuple[Any, ...]:
            # A server that is away for an hour has what was fetched before for an hour less.
            left = max(0.0, valid_until - _now())
            return data, milliseconds(left), milliseconds(self._history)

        await self._call("put_robotstxt", origin, fetched)

    async def _call(
        self, script: str, origin: str, more: Callable[[], tuple[Any, ...]] = tuple
    ) -> Any:
        """The server's reply to a call, however many attempts it takes. Each is packed anew."""
        host = normal_host(host_within(origin) or origin)
        keys = (*self._keys.of_robotstxt(origin), self._keys.of_obeyed(host))

        async def attempt() -> Any:
            async with self._link.use() as connection:
                who = (encoded(self._semaphore.node), self._asker, milliseconds(self._lease))
                call = (script, len(keys), *keys, *who, encoded(origin), *more())
                (reply,) = await evaluate(connection, [call])
                return reply

        return await self._link.insist(attempt)


def _now() -> float:
    return asyncio.get_running_loop().time()
