"""The proxy does to a connection what a test asks for, and nothing else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.chaos import proxy
from tests.chaos.proxy import Kind, Proxy, Way
from tests.support.nodes import in_asyncio

SUBSCRIBE = b"SUBSCRIBE "


class Line:
    """A node's connection through the proxy, and the server's end of it."""

    def __init__(self, through: Proxy) -> None:
        self._proxy = through
        self.ran: list[bytes] = []
        self.server_has_heard = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Say everything back, loudly."""
        while request := await reader.read(100):
            self.ran.append(request)
            self.server_has_heard.set()
            writer.write(request + b"!")
        writer.close()

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._proxy.port)

    def say(self, text: bytes) -> None:
        self.server_has_heard.clear()
        self._writer.write(text)

    async def hear(self) -> bytes:
        """The next reply; empty once the connection is gone."""
        try:
            return await self._reader.read(100)
        except ConnectionError:
            return b""

    async def call(self, text: bytes) -> bytes:
        self.say(text)
        return await self.hear()


@asynccontextmanager
async def line(directory: Path) -> AsyncIterator[tuple[Proxy, Line]]:
    path = directory / "server"
    async with Proxy(path) as through:
        line = Line(through)
        server = await asyncio.start_unix_server(line.serve, path)
        await line.open()
        yield through, line
    server.close()


@in_asyncio
async def test_everything_passes_both_ways(tmp_path: Path) -> None:
    async with line(tmp_path) as (_, node):
        assert await node.call(b"a") == b"a!"
        assert await node.call(b"b") == b"b!"


@in_asyncio
async def test_requests_that_are_cut_off_arrive_when_the_cut_heals(tmp_path: Path) -> None:
    async with line(tmp_path) as (through, node):
        await node.call(b"a")
        through.cut(frozenset({Way.REQUESTS}))
        node.say(b"b")
        answer = asyncio.create_task(node.hear())
        other = Line(through)
        await other.open()  # taken, as by a host that is behind a cut
        assert node.ran == [b"a"]
        assert not answer.done()
        through.heal()
        assert await answer == b"b!"


@in_asyncio
async def test_a_command_runs_though_its_reply_is_cut_off(tmp_path: Path) -> None:
    async with line(tmp_path) as (through, node):
        through.cut(frozenset({Way.REPLIES}))
        node.say(b"a")
        await node.server_has_heard.wait()
        answer = asyncio.create_task(node.hear())
        node.say(b"b")
        await node.server_has_heard.wait()
        assert not answer.done()
        through.heal()
        assert (await answer).startswith(b"a!")


@in_asyncio
async def test_the_grants_channel_alone_can_be_cut_off(tmp_path: Path) -> None:
    async with line(tmp_path) as (through, node):
        channel = Line(through)
        await channel.open()
        await channel.call(SUBSCRIBE)
        through.cut(kinds=frozenset({Kind.GRANTS}))
        channel.say(b"ping")
        heard = asyncio.create_task(channel.hear())
        assert await node.call(b"a") == b"a!"
        assert not heard.done()
        through.heal()
        assert await heard == b"ping!"


@in_asyncio
async def test_connections_of_one_kind_can_be_dropped(tmp_path: Path) -> None:
    async with line(tmp_path) as (through, node):
        await node.call(b"a")
        channel = Line(through)
        await channel.open()
        await channel.call(SUBSCRIBE)
        through.drop_connections(frozenset({Kind.GRANTS}))
        assert await channel.hear() == b""
        assert await node.call(b"b") == b"b!"
        through.drop_connections()
        assert await node.hear() == b""


@in_asyncio
async def test_a_dropped_reply_is_that_of_a_command_that_has_run(tmp_path: Path) -> None:
    async with line(tmp_path) as (through, node):
        with through.spoiling(proxy.replies) as spoilt:
            assert await node.call(b"a") == b""
            assert spoilt.is_set()
        assert node.ran == [b"a"]
        await node.open()
        assert await node.call(b"b") == b"b!"


@in_asyncio
async def test_a_dropped_grant_takes_its_channel_along(tmp_path: Path) -> None:
    async with line(tmp_path) as (through, node):
        channel = Line(through)
        await channel.open()
        await channel.call(SUBSCRIBE)
        with through.spoiling(proxy.grants) as spoilt:
            assert await channel.call(b"again") == b"again!"
            assert await node.call(b"granted") == b"granted!"
            assert not spoilt.is_set()
            assert await channel.call(b"granted") == b""
            assert spoilt.is_set()


@in_asyncio
async def test_a_delay_holds_each_way(tmp_path: Path) -> None:
    async with line(tmp_path) as (through, node):
        await node.call(b"a")
        through.delay = 0.05
        before = time.monotonic()
        assert await node.call(b"b") == b"b!"
        assert time.monotonic() - before >= 0.1


@in_asyncio
async def test_a_server_that_is_away_resets_connections(tmp_path: Path) -> None:
    async with Proxy(tmp_path / "nobody") as through:
        node = Line(through)
        await node.open()
        assert await node.hear() == b""


@pytest.mark.parametrize("kinds", [frozenset(Kind), frozenset({Kind.COMMANDS})])
@in_asyncio
async def test_leaving_ends_what_is_still_cut_off(tmp_path: Path, kinds: frozenset[Kind]) -> None:
    async with line(tmp_path) as (through, node):
        await node.call(b"a")
        through.cut(kinds=kinds)
        node.say(b"b")
    assert await node.hear() == b""
