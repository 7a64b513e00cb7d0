"""A proxy before a server, which does what networks do at their worst."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Self

CHUNK = 65536


class Proxy:
    """Listens on a TCP port of its own and passes everything on to the server's Unix socket.

    It is between the server and one node, or a replica. A cut holds bytes back, as a network does
    that drops packets: both ends believe in the connection until they tire of it, and what was sent
    arrives if the cut heals in time. New connections are taken and get no answer.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.port = 0
        self.delay = 0.0  # seconds that every chunk takes longer, each way
        self.passed = 0  # chunks, since the beginning
        self.held_back = asyncio.Event()  # something was, since the latest cut
        self._healed = asyncio.Event()
        self._healed.set()
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.drop_connections()

    def cut(self) -> None:
        """Hold back all that comes, both ways."""
        self._healed.clear()
        self.held_back.clear()

    def heal(self) -> None:
        """Let everything pass again, late where it was held back."""
        self._healed.set()

    def drop_connections(self) -> int:
        """Reset them; whoever it is may connect again at once. Returns how many there were."""
        for connection in self._connections:
            connection.cancel()
        return len(self._connections)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        writers = [writer]
        try:
            # A path that is no socket just now, or a server that is down: the node sees a reset.
            answers, server = await asyncio.open_unix_connection(str(self.target))
            writers.append(server)
            with suppress(ConnectionError):
                await asyncio.gather(self._pass_on(reader, server), self._pass_on(answers, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            for one in writers:
                one.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(CHUNK):
            while not self._healed.is_set():
                self.held_back.set()
                await self._healed.wait()
            if self.delay:
                await asyncio.sleep(self.delay)
            writer.write(chunk)
            self.passed += 1
            await writer.drain()
        raise ConnectionResetError  # the other way ends, too
