"""A proxy before a server; its subclasses define how they change what they pass on."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from contextlib import suppress
from pathlib import Path
from typing import Self

CHUNK = 65536


class SocketProxy:
    """Listens on a loopback port of its own, and leads to a server's Unix socket."""

    def __init__(self, target: Path, host: str = "127.0.0.1", port: int = 0) -> None:
        self.target = target
        self.host = host
        self.port = port
        self._connections: set[asyncio.Task[None]] = set()

    async def converse(
        self, client: tuple[StreamReader, StreamWriter], server: tuple[StreamReader, StreamWriter]
    ) -> None:
        """Pass on what comes over one connection, until either side ends it."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        return f"redis://{self.host}:{self.port}/0"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.drop_connections()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def drop_connections(self) -> int:
        """Reset them; whoever it is may connect again at once. Returns how many there were."""
        for connection in self._connections:
            connection.cancel()
        return len(self._connections)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        writers = [writer]
        try:
            # A path that is no socket just now, or a server that is down: the client sees a reset.
            answers, server = await asyncio.open_unix_connection(str(self.target))
            writers.append(server)
            with suppress(ConnectionError):
                await self.converse((reader, writer), (answers, server))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            for each in writers:
                each.transport.abort()


class Wire(SocketProxy):
    """Passes everything on, each chunk `delay_s` later, until it is cut."""

    delay_s = 0.0

    def __init__(self, target: Path) -> None:
        super().__init__(target)
        self._is_cut = False

    def cut(self) -> None:
        """Hold back all that comes, as a network does that drops packets: both ends believe in the
        connection until they tire of it. New connections are taken and get no answer.
        """
        self._is_cut = True

    async def converse(
        self, client: tuple[StreamReader, StreamWriter], server: tuple[StreamReader, StreamWriter]
    ) -> None:
        await asyncio.gather(
            self._pass_on(client[0], server[1]), self._pass_on(server[0], client[1])
        )

    async def _pass_on(self, reader: StreamReader, writer: StreamWriter) -> None:
        while chunk := await reader.read(CHUNK):
            if self._is_cut:
                await asyncio.Event().wait()
            await asyncio.sleep(self.delay_s)
            writer.write(chunk)
            await writer.drain()
        raise ConnectionResetError  # the other way ends, too
