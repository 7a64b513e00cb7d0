"""Yardsticks: the least that a client must do, over connections with nothing around them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

from redis.asyncio.connection import UnixDomainSocketConnection

from benchmarks.harness.contender import Client, Contender, Place


class Bare(Client):
    """Two connections: one to send by, one to wait at."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        # redis-py's connections, as ours, and without its time limits: each costs a task a reply.
        options: dict[str, Any] = {"socket_timeout": None, "protocol": 2}
        self._to = UnixDomainSocketConnection(path=place.path, **options)
        self._from = UnixDomainSocketConnection(path=place.path, **options)

    async def close(self) -> None:
        await self._to.disconnect(nowait=True)
        await self._from.disconnect(nowait=True)

    async def _call(self, connection: UnixDomainSocketConnection, *command: object) -> Any:
        await connection.send_command(*command)
        return await connection.read_response()


class Publish(Bare):
    """A message to the other side, which waits for it; the first side begins."""

    async def __aenter__(self) -> Self:
        self._begins = self.place.number == 0
        await self._call(self._from, "SUBSCRIBE", self._channel(self.place.number))
        return self

    async def acquire(self) -> None:
        if self._begins:
            self._begins = False
        else:
            await self._from.read_response()

    async def release(self) -> None:
        await self._call(self._to, "PUBLISH", self._channel(1 - self.place.number), "go")

    def _channel(self, number: int) -> str:
        return f"{self.place.scope}:{number}"


class TokenList(Bare):
    """A list of tokens: a holder pushes its own, a waiter is blocked until one comes."""

    async def __aenter__(self) -> Self:
        if await self._call(self._to, "SETNX", f"{self.place.scope}:made", "yes"):
            tokens = ["token"] * self.place.limit
            await self._call(self._to, "RPUSH", f"{self.place.scope}:tokens", *tokens)
        return self

    async def acquire(self) -> None:
        await self._call(self._from, "BLPOP", f"{self.place.scope}:tokens", 0)

    async def release(self) -> None:
        await self._call(self._to, "RPUSH", f"{self.place.scope}:tokens", "token")


class OfOneProcess(Client):
    """A client of an `asyncio.Semaphore`, which no server knows of."""

    def __init__(self, place: Place, semaphore: asyncio.Semaphore) -> None:
        super().__init__(place)
        self._semaphore = semaphore

    async def acquire(self) -> None:
        await self._semaphore.acquire()

    async def release(self) -> None:
        self._semaphore.release()


@asynccontextmanager
async def _one_process(place: Place, clients: int) -> AsyncIterator[Sequence[Client]]:
    semaphore = asyncio.Semaphore(place.limit)
    yield [OfOneProcess(place, semaphore) for _ in range(clients)]


PUBLISH = Contender.of("a bare PUBLISH", Publish)
TOKEN_LIST = Contender.of("a bare RPUSH and BLPOP", TokenList)
ONE_PROCESS = Contender("asyncio.Semaphore, one process", _one_process)
