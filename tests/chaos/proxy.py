"""A proxy before the server, which does what networks do at their worst.

It is between the server and one node, or a replica.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
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
ALL_KINDS = frozenset(Kind)
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
        self.accepted = 0  # connections, since the beginning
        self.passed: Counter[tuple[Kind, Way]] = Counter()  # chunks, since the beginning
        self.held_back = asyncio.Event()  # something was, since the latest cut
        self._cuts: set[tuple[Kind, Way]] = set()
        self._healed = asyncio.Event()
        self._spoils: Spoils | None = None
        self._spoilt = asyncio.Event()

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

    def cut(self, ways: frozenset[Way] = BOTH_WAYS, kinds: frozenset[Kind] = ALL_KINDS) -> None:
        """Hold back what goes these ways, on these kinds of connections."""
        self._hold_back()
        self._cuts |= {(kind, way) for kind in kinds for way in ways}

    def cut_connections(self) -> None:
        """Hold back all that goes over the connections that there are. New ones work."""
        self._hold_back()
        for connection in self.connections:
            connection.is_cut = True

    def heal(self) -> None:
        """Let everything pass again, late where it was held back."""
        self.delay = 0.0
        self._cuts.clear()
        for connection in self.connections:
            connection.is_cut = False
        self._healed.set()

    def is_connected(self, kinds: frozenset[Kind] = ALL_KINDS) -> bool:
        return any(one.kind in kinds and not one.is_dropped for one in self.connections)

    def drop_connections(self, kinds: frozenset[Kind] = ALL_KINDS) -> int:
        """Reset them; the node may connect again at once. Returns how many there were."""
        dropped = [one for one in self.connections if one.kind in kinds and not one.is_dropped]
        for connection in dropped:
            connection.drop()
        return len(dropped)

    def _hold_back(self) -> None:
        self._healed.clear()
        self.held_back.clear()

    async def ping(self) -> float:
        """Seconds that the server's answer takes, through this proxy."""
        began = time.monotonic()
        reader, writer = await asyncio.open_connection(self.address, self.port)
        writer.write(b"*1\r\n$4\r\nPING\r\n")
        await reader.readline()
        writer.close()
        return time.monotonic() - began

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
        self.accepted += 1
        try:
            # A path that is no socket just now, or a server that is down: the node sees a reset.
            server_reader, server_writer = await asyncio.open_unix_connection(str(self.target))
            connection.writers.append(server_writer)
            if connection.is_dropped:  # meanwhile
                server_writer.close()
                return
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
            while connection.is_cut or (connection.kind, way) in self._cuts:
                self.held_back.set()
                await self._healed.wait()
            if connection.is_dropped:
                return
            if self._spoils is not None and self._spoils(connection, way, chunk):
                self._spoilt.set()
                connection.drop()
                return
            writer.write(chunk)
            self.passed[connection.kind, way] += 1
            connection.passed += 1
            await writer.drain()
        connection.drop()


class Connection:
    """A node's connection, and ours to the server that belongs to it."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.kind = Kind.COMMANDS
        self.is_cut = False
        self.is_dropped = False
        self.passed = 0  # chunks, either way
        self.writers = [writer]
        self.ended = asyncio.Event()

    def drop(self) -> None:
        self.is_dropped = True
        for writer in self.writers:
            writer.transport.abort()


def replies(connection: Connection, way: Way, _: bytes) -> bool:
    """A reply to a command that has been run."""
    return connection.kind is Kind.COMMANDS and way is Way.REPLIES


def grants(connection: Connection, way: Way, chunk: bytes) -> bool:
    """A grant on its way to the node."""
    return connection.kind is Kind.GRANTS and way is Way.REPLIES and b"granted" in chunk
