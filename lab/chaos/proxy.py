"""A proxy before a server, which does what networks do at their worst."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from pathlib import Path

from tests.support.proxy import CHUNK, SocketProxy


class Proxy(SocketProxy):
    """Passes everything on.

    It is between the server and one node, or a replica. A cut holds bytes back, as a network does
    that drops packets: both ends believe in the connection until they tire of it, and what was sent
    arrives if the cut heals in time. New connections are taken and get no answer.
    """

    def __init__(self, target: Path) -> None:
        super().__init__(target)
        self.delay = 0.0  # seconds that every chunk takes longer, each way
        self.passed = 0  # chunks, since the beginning
        self.held_back = asyncio.Event()  # something was, since the latest cut
        self._healed = asyncio.Event()
        self._healed.set()

    def cut(self) -> None:
        """Hold back all that comes, both ways."""
        self._healed.clear()
        self.held_back.clear()

    def heal(self) -> None:
        """Let everything pass again, late where it was held back."""
        self._healed.set()

    async def converse(
        self, client: tuple[StreamReader, StreamWriter], server: tuple[StreamReader, StreamWriter]
    ) -> None:
        """Pass on both ways, each as late as it is to be."""
        await asyncio.gather(
            self._pass_on(client[0], server[1]), self._pass_on(server[0], client[1])
        )

    async def _pass_on(self, reader: StreamReader, writer: StreamWriter) -> None:
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
