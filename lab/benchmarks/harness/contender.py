"""A semaphore that is compared with others: how its clients join, ask and give back.

This project's is here, and a yardstick: the least that a client must do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from redis.asyncio import Redis
from redis.asyncio.connection import UnixDomainSocketConnection

from semaphore_middleware import FairSemaphore, Permit


@dataclass(frozen=True, slots=True)
class Place:
    """Where a client stands. All clients of a contest have the same scope, limit and lease."""

    path: str  # the server's Unix socket
    scope: str
    limit: int
    lease: float = 10.0  # seconds until a holder that does not renew counts as dead
    number: int = 0  # of this client's process


class Client:
    """Wants permits, at most one at a time; it is joined for the time of an `async with`."""

    def __init__(self, place: Place) -> None:
        self.place = place

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Give up its connections."""

    async def acquire(self) -> None:
        """Wait for a permit, however long that takes."""
        raise NotImplementedError

    async def release(self) -> None:
        """Give the permit back."""
        raise NotImplementedError


Node = Callable[[Place, int], AbstractAsyncContextManager[Sequence[Client]]]
"""So many clients of one process."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A semaphore by name. Its `node` must be importable: other processes join too."""

    name: str
    node: Node

    @classmethod
    def of(cls, name: str, kind: Callable[[Place], Client]) -> Self:
        """One whose clients share nothing, be they of one process or not."""
        return cls(name, partial(_each_alone, kind))


@asynccontextmanager
async def _each_alone(
    kind: Callable[[Place], Client], place: Place, clients: int
) -> AsyncIterator[Sequence[Client]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(kind(place)) for _ in range(clients)]


class WithRedis(Client):
    """A client that uses redis-py itself: a connection for as long as it is joined."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        # Without redis-py's own time limit, 5 s: it would end a BLPOP that waits longer, and Python
        # 3.11 can lose a cancellation in it.
        self.redis: Any = Redis(unix_socket_path=place.path, socket_timeout=None)

    async def close(self) -> None:
        await self.redis.aclose()


# This project's ---------------------------------------------------------------------------------


class Ours(Client):
    """A client of this project's, as README shows it."""

    def __init__(self, place: Place, semaphore: FairSemaphore) -> None:
        super().__init__(place)
        self._semaphore = semaphore
        self._permit: AbstractAsyncContextManager[Permit] | None = None

    async def acquire(self) -> None:
        permit = self._semaphore.permit(self.place.scope, self.place.limit)
        await permit.__aenter__()
        self._permit = permit

    async def release(self) -> None:
        assert self._permit is not None
        await self._permit.__aexit__(None, None, None)


@asynccontextmanager
async def _our_node(place: Place, clients: int) -> AsyncIterator[Sequence[Client]]:
    """Clients of one node, as in any program that uses this project."""
    async with FairSemaphore(f"unix://{place.path}", lease=place.lease) as semaphore:
        yield [Ours(place, semaphore) for _ in range(clients)]


OURS = Contender("ours", _our_node)


# A yardstick ------------------------------------------------------------------------------------


class Publish(Client):
    """A message to the other side, which waits for it; the first side begins."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        # redis-py's connections, as ours, and without its time limits: each costs a task a reply.
        options: dict[str, Any] = {"path": place.path, "socket_timeout": None, "protocol": 2}
        self._to = UnixDomainSocketConnection(**options)
        self._from = UnixDomainSocketConnection(**options)
        self._begins = place.number == 0

    async def __aenter__(self) -> Self:
        await self._from.send_command("SUBSCRIBE", self._channel(self.place.number))
        await self._from.read_response()
        return self

    async def acquire(self) -> None:
        if self._begins:
            self._begins = False
        else:
            await self._from.read_response()

    async def release(self) -> None:
        await self._to.send_command("PUBLISH", self._channel(1 - self.place.number), "go")
        await self._to.read_response()

    async def close(self) -> None:
        await self._to.disconnect(nowait=True)
        await self._from.disconnect(nowait=True)

    def _channel(self, number: int) -> str:
        return f"{self.place.scope}:{number}"


PUBLISH = Contender.of("a bare PUBLISH", Publish)
