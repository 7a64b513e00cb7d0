"""A proxy between one node and the server, which does what networks do at their worst."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Self

CHUNK = 65536


class Way(Enum):
    """Where bytes are going."""

    REQUESTS = "requests"
    REPLIES = "replies"


class Kind(Enum):
    """What a node uses a connection for."""

    COMMANDS = "commands"
    GRANTS = "grants"


BOTH_WAYS = frozenset(Way)
Spoils = Callable[["Connection", Way, bytes], bool]


class Proxy:
    """Listens on a TCP port of its own and passes everything on to the server's Unix socket.

    A cut holds bytes back, as a network does that drops packets: both ends believe in the
    connection until they tire of it, and what was sent arrives if the cut heals in time. New
    connections are taken and get no answer.
    """

    def __init__(self, target: Path, address: str = "127.0.0.1") -> None:
        self.target = target
        self.address = address
        self.port = 0
        self.delay = 0.0  # seconds that every chunk takes longer, each way
        self.connections: set[Connection] = set()
        self._open = {(kind, way): asyncio.Event() for kind in Kind for way in Way}
        self._spoils: Spoils | None = None
        self._spoilt = asyncio.Event()
        self.heal()

    @property
    def url(self) -> str:
        return f"redis://{self.address}:{self.port}/0"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self.address, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.drop_connections()
        self.heal()
        await asyncio.gather(*(connection.ended.wait() for connection in self.connections))

    # What a network does ------------------------------------------------------------------------

    def cut(
        self, ways: frozenset[Way] = BOTH_WAYS, kinds: frozenset[Kind] = frozenset(Kind)
    ) -> None:
        """Hold back what goes these ways, on these kinds of connections."""
        for kind in kinds:
            for way in ways:
                self._open[kind, way].clear()

    def heal(self) -> None:
        """Let everything pass again, late where it was held back."""
        self.delay = 0.0
        for gate in self._open.values():
            gate.set()

    def drop_connections(self, kinds: frozenset[Kind] = frozenset(Kind)) -> None:
        """Reset them; the node may connect again at once."""
        for connection in self.connections:
            if connection.kind in kinds:
                connection.drop()

    @contextmanager
    def spoiling(self, spoils: Spoils) -> Iterator[asyncio.Event]:
        """Reset each connection on which `spoils` sees its prey, which does not arrive.

        Gives an event that tells when it has happened.
        """
        self._spoilt = asyncio.Event()
        self._spoils = spoils
        try:
            yield self._spoilt
        finally:
            self._spoils = None

    # Passing on ---------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(writer)
        self.connections.add(connection)
        try:
            # A path that is no socket just now, or a server that is down: the node sees a reset.
            server_reader, server_writer = await asyncio.open_unix_connection(str(self.target))
            connection.writers.append(server_writer)
            with suppress(OSError):
                await asyncio.gather(
                    self._pass_on(connection, Way.REQUESTS, reader, server_writer),
                    self._pass_on(connection, Way.REPLIES, server_reader, writer),
                )
        except OSError:
            pass
        finally:
            connection.drop()
            self.connections.discard(connection)
            connection.ended.set()

    async def _pass_on(
        self,
        connection: Connection,
        way: Way,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        while chunk := await reader.read(CHUNK):
            if way is Way.REQUESTS and b"SUBSCRIBE" in chunk:
                connection.kind = Kind.GRANTS
            if self.delay:
                await asyncio.sleep(self.delay)
            await self._open[connection.kind, way].wait()
            if self._spoils is not None and self._spoils(connection, way, chunk):
                self._spoilt.set()
                connection.drop()
                return
            writer.write(chunk)
            await writer.drain()
        connection.drop()


class Connection:
    """A node's connection, and ours to the server that belongs to it."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.kind = Kind.COMMANDS
        self.writers = [writer]
        self.ended = asyncio.Event()

    def drop(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


def replies(connection: Connection, way: Way, _: bytes) -> bool:
    """A reply to a command that has been run."""
    return connection.kind is Kind.COMMANDS and way is Way.REPLIES


def grants(connection: Connection, way: Way, chunk: bytes) -> bool:
    """A grant on its way to the node."""
    return connection.kind is Kind.GRANTS and way is Way.REPLIES and b"granted" in chunk
