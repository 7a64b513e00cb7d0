"""A proxy before a server that restricts it, as servers do that people rent."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha1
from pathlib import Path
from typing import Any

import hiredis

from tests.support.proxy import CHUNK, SocketProxy

UNSOLICITED = (b"message", b"subscribe")  # the first word of what is no reply to one command
NOT_IN_SCRIPTS = """\
local NOT_ALLOWED = 'This Redis command is not allowed from script'
local redis = setmetatable({{
  call = function(name, ...)
    if name == '{command}' then error('ERR ' .. NOT_ALLOWED, 0) end
    return redis.call(name, ...)
  end,
  pcall = function(name, ...)
    if name == '{command}' then return {{ err = NOT_ALLOWED }} end
    return redis.pcall(name, ...)
  end,
}}, {{ __index = redis }})
"""
"""Lua before a script, in which it may not use a command, as on Redis Enterprise."""


class Restricted(SocketProxy):
    """Answers some commands itself, and changes what others bring."""

    def __init__(self, path: Path, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__(path, host, port)
        self.answer: Callable[[Sequence[bytes]], bytes | None] = lambda _: None
        """The reply to a command, which then does not reach the server; None: the server's."""
        self.edit_info: Callable[[str], str] = lambda info: info
        """What the server's INFO becomes."""
        self.lua = ""
        """Put before each script."""
        self.commands: list[Sequence[bytes]] = []
        """What has come."""
        self._shas: dict[bytes, bytes] = {}

    async def converse(
        self, client: tuple[StreamReader, StreamWriter], server: tuple[StreamReader, StreamWriter]
    ) -> None:
        """Pass on command by command, and answer by answer."""
        await _Conversation(self, client[1], server[1]).go_on(client[0], server[0])

    def rewritten(self, command: Sequence[bytes]) -> Sequence[bytes]:
        """The command as it goes to the server."""
        if not self.lua:
            return command
        name, *rest = command
        if name == b"SCRIPT":
            text = self.lua.encode() + rest[1]
            self._shas[_sha(rest[1])] = _sha(text)
            return (name, rest[0], text)
        if name == b"EVAL":
            return (name, self.lua.encode() + rest[0], *rest[1:])
        if name in (b"EVALSHA", b"EVALSHA_RO"):
            return (name, self._shas.get(rest[0], b"0" * 40), *rest[1:])
        return command


class _Conversation:
    """One client's: each command is answered in its order."""

    def __init__(self, proxy: Restricted, client: StreamWriter, server: StreamWriter) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._awaited: list[tuple[Sequence[bytes], bytes | None]] = []

    async def go_on(self, commands: StreamReader, answers: StreamReader) -> None:
        both = [
            asyncio.create_task(_each(commands, self._on_command)),
            asyncio.create_task(_each(answers, self._on_answer)),
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            with suppress(ConnectionError):
                await asyncio.gather(*both, return_exceptions=True)

    def _on_command(self, command: Sequence[bytes]) -> None:
        self._proxy.commands.append(command)
        answer = self._proxy.answer(command)
        if command[0] != b"SUBSCRIBE" or answer:
            self._awaited.append((command, answer))
        if answer is None:
            sent: Any = tuple(self._proxy.rewritten(command))
            self._server.write(hiredis.pack_command(sent))
        self._answer_at_once()

    def _on_answer(self, answer: Any) -> None:
        if isinstance(answer, list) and answer and answer[0] in UNSOLICITED:
            self._client.write(_packed(answer))
            return
        command, _ = self._awaited.pop(0)
        if command[0] == b"INFO" and isinstance(answer, bytes):
            answer = self._proxy.edit_info(answer.decode()).encode()
        self._client.write(_packed(answer))
        self._answer_at_once()

    def _answer_at_once(self) -> None:
        while self._awaited and (answer := self._awaited[0][1]) is not None:
            self._awaited.pop(0)
            self._client.write(answer)


async def _each(reader: StreamReader, handle: Callable[[Any], None]) -> None:
    """Handle each thing that comes, until the connection ends."""
    parser = hiredis.Reader()
    while chunk := await reader.read(CHUNK):
        parser.feed(chunk)
        while (thing := parser.gets()) is not False:
            handle(thing)


def _packed(answer: Any) -> bytes:
    match answer:
        case None:
            return b"$-1\r\n"
        case int():
            return b":%d\r\n" % answer
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(answer), answer)
        case list():
            return b"*%d\r\n" % len(answer) + b"".join(map(_packed, answer))
    return f"-{answer}\r\n".encode()


def _sha(text: bytes) -> bytes:
    return sha1(text, usedforsecurity=False).hexdigest().encode()
