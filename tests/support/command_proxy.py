"""A proxy that reads commands: it keeps its clients' connections while the server behind changes.

Predixy is one, and so are the proxies of Redis Enterprise and of most cloud providers. (HAProxy
passes bytes on, and ends what it leads to a server that is down. Twemproxy and Envoy know no
SUBSCRIBE, so no node can use them.)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any, Self

import hiredis

CHUNK = 65536
MORE = object()  # where a message ends in bytes that are still to come
FAILED = b"-ERR upstream failure\r\n"  # as Envoy says it


class Subscriptions(Enum):
    """What becomes of a client's subscription when the server changes."""

    MOVED = "the next server hears of it"
    CLOSED = "its connection is closed, as Predixy does"
    FORGOTTEN = "its connection stays, and nothing comes over it any more"


class CommandProxy:
    """Listens at `path`, and passes commands on to the server at `target`, one at a time.

    A command that is under way when the server goes away is answered with an error.
    """

    def __init__(
        self, path: Path, target: Path, subscriptions: Subscriptions = Subscriptions.MOVED
    ) -> None:
        self.path = path
        self.target = target
        self.subscriptions = subscriptions
        self.clients: set[Client] = set()

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_unix_server(self._serve, self.path)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        tasks = [client.task for client in self.clients]
        for task in tasks:
            task.cancel()  # the server that it waits for may be frozen
        await asyncio.gather(*tasks)

    async def switch(self, target: Path) -> int:
        """Lead all clients to another server, each between two of its commands. Returns how many
        connections were kept.
        """
        self.target = target
        clients = list(self.clients)
        for client in clients:
            await client.leave_server()
        return sum(client in self.clients for client in clients)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = Client(self, reader, writer)
        self.clients.add(client)
        try:
            with suppress(OSError, asyncio.CancelledError):
                await client.serve()
        finally:
            client.close()
            self.clients.discard(client)


class Client:
    """A client's connection, and the one to the server that serves it."""

    def __init__(
        self, proxy: CommandProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.writer = writer
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self._proxy = proxy
        self._reader = reader
        self._subscription: list[bytes] = []
        self._is_subscribed = False
        self._server: Server | None = None
        self._between_commands = asyncio.Lock()

    async def serve(self) -> None:
        """Pass on what the client says, until it goes."""
        async for command in messages(self._reader):
            if command[0].upper() == b"SUBSCRIBE":
                self._subscription = command
                await self._pass_messages_on()
                return
            async with self._between_commands:
                self.writer.write(await self._answer(command))
                await self.writer.drain()

    async def leave_server(self) -> None:
        """End the connection to the server. The next command goes to the one that is there then."""
        async with self._between_commands:
            if self._server is not None:
                self._server.close()
                self._server = None
            if self._subscription and self._proxy.subscriptions is Subscriptions.CLOSED:
                self.close()

    def close(self) -> None:
        self.writer.close()
        if self._server is not None:
            self._server.close()

    async def _answer(self, command: list[bytes]) -> bytes:
        try:
            return await (await self._at_server()).call(command)
        except OSError:
            self._server = None
            return FAILED

    async def _at_server(self) -> Server:
        """The connection to the server; a new one has heard to what the client has subscribed."""
        if self._server is None:
            server = Server(*await asyncio.open_unix_connection(self._proxy.target))
            if self._is_subscribed and self._proxy.subscriptions is Subscriptions.MOVED:
                await server.call(self._subscription, len(self._subscription) - 1)
            self._server = server  # only now: answers are counted until here
        return self._server

    async def _pass_messages_on(self) -> None:
        """Pass messages on to the client, and what it says to the server, until it goes."""
        server = await self._at_server()
        server.say(self._subscription)
        self._is_subscribed = True
        from_client = asyncio.create_task(self._pass_on_from_client())
        try:
            while not self.writer.is_closing():
                while chunk := await server.reader.read(CHUNK):
                    self.writer.write(chunk)
                self._server = None
                while self._server is None and not self.writer.is_closing():
                    with suppress(OSError):
                        server = await self._at_server()
                    await asyncio.sleep(0.01)
        finally:
            from_client.cancel()

    async def _pass_on_from_client(self) -> None:
        with suppress(OSError):
            async for command in messages(self._reader):
                while self._server is None:  # noqa: ASYNC110 - `_pass_messages_on` is about to connect
                    await asyncio.sleep(0.01)
                self._server.say(command)
        self.close()


class Server:
    """A connection to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    def say(self, command: list[bytes]) -> None:
        packed: Any = tuple(command)  # hiredis' types know commands of one word only
        self._writer.write(hiredis.pack_command(packed))

    async def call(self, command: list[bytes], answers: int = 1) -> bytes:
        self.say(command)
        parser, answer = hiredis.Reader(notEnoughData=MORE), b""
        while answers:
            chunk = await self.reader.read(CHUNK)
            if not chunk:
                self.close()
                raise ConnectionResetError
            answer += chunk
            parser.feed(chunk)
            answers -= len(list(iter(parser.gets, MORE)))
        return answer

    def close(self) -> None:
        self._writer.close()


async def messages(reader: asyncio.StreamReader) -> AsyncIterator[list[bytes]]:
    parser = hiredis.Reader(notEnoughData=MORE)
    while chunk := await reader.read(CHUNK):
        parser.feed(chunk)
        for message in iter(parser.gets, MORE):
            yield message
