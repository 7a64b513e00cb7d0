"""A layer-7 proxy: it keeps its clients' connections when it leads them to another server."""

from __future__ import annotations

import asyncio
from typing import Self

from tests.support.servers import RedisServer

CHUNK = 65536


class KeepingProxy:
    """Listens on a loopback port, and passes bytes on to one server, from `move_to` on to another.
    As such proxies do, it leaves subscriptions behind.
    """

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._listener: asyncio.Server | None = None
        self._upstream: dict[asyncio.StreamWriter, asyncio.StreamWriter] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        assert self._listener is not None
        return f"redis://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}/0"

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        self._listener.close()
        for client, server in self._upstream.items():
            client.close()
            server.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def move_to(self, server: RedisServer) -> None:
        """Lead all connections there. No reply may be under way."""
        self._server = server
        for client, before in list(self._upstream.items()):
            await self._connect(client)
            before.close()

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        await self._connect(client)
        while chunk := await reader.read(CHUNK):
            self._upstream[client].write(chunk)
        self._upstream.pop(client).close()

    async def _connect(self, client: asyncio.StreamWriter) -> None:
        reader, self._upstream[client] = await asyncio.open_unix_connection(self._server.path)
        task = asyncio.create_task(self._pass_back(reader, client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_back(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(CHUNK):
            client.write(chunk)
