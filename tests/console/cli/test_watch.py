"""`watch` in a terminal: it lives, it ends when it is told to, and leaves all as it was."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from rich.cells import cell_len

from tests.support.cli import LONG_NAME, SITE, Terminal, three_nodes
from tests.support.nodes import Outside, in_asyncio
from tests.support.servers import RedisServer


@asynccontextmanager
async def watching(
    server: RedisServer, width: int = 80, height: int = 24
) -> AsyncIterator[Terminal]:
    terminal = await Terminal(width, height).start(server, "watch")
    try:
        yield terminal
    finally:
        await terminal.close()


def has(*words: str) -> Callable[[list[str]], bool]:
    """Whether a line of the screen begins with these words."""
    return lambda frame: any(line.split()[: len(words)] == [*words] for line in frame)


@in_asyncio
async def test_it_shows_what_is_and_changes_nothing(server: RedisServer, outside: Outside) -> None:
    nodes = await three_nodes(server)
    before = outside.dump()
    async with watching(server) as terminal:
        frame = await terminal.shows(has(SITE, "2/2", "█", "3", "3", "h", "0.0"))
        assert len(frame) == 24
        assert max(map(cell_len, frame)) <= 80
        assert frame[0].endswith("2 scopes  5 held  3 waiting  0.0 starts/s")
        assert frame[1].split() == ["scope", "held", "waiting", "longest", "starts/s"]
        assert [line.split()[0] for line in frame[2:4]] == [SITE, LONG_NAME]
        assert frame[-1].rstrip() == "q quits"
        assert outside.dump() == before

        await nodes[0].give_back(SITE, limit=2)
        await terminal.shows(
            lambda frame: frame[0].rstrip().split()[3:7] == ["5", "held", "2", "waiting"]
        )
        terminal.press(b"q")
        assert await terminal.ended() == 0


@pytest.mark.parametrize("keys", [b"q", b"Q", b"xq", b"\x03"])
@in_asyncio
async def test_it_ends_on_q_and_on_ctrl_c_and_leaves_the_terminal_as_it_was(
    server: RedisServer, keys: bytes
) -> None:
    async with watching(server) as terminal:
        await terminal.shows(lambda frame: frame[-1].startswith("q quits"))
        assert "\x1b[?1049h" in terminal.drawn  # the other screen
        assert "\x1b[?25l" in terminal.drawn  # without a cursor
        terminal.press(keys)
        assert await terminal.ended() == 0
        ends = terminal.drawn.rpartition("\x1b[H")[2]
        assert "\x1b[?1049l" in ends
        assert "\x1b[?25h" in ends
        assert "Traceback" not in terminal.drawn


@in_asyncio
async def test_a_signal_ends_it_as_orderly(server: RedisServer) -> None:
    async with watching(server) as terminal:
        await terminal.shows(lambda frame: frame[-1].startswith("q quits"))
        os.kill(terminal.pid, signal.SIGTERM)
        assert await terminal.ended() == 0
        assert "\x1b[?1049l" in terminal.drawn


@in_asyncio
async def test_it_follows_the_size_of_the_terminal(server: RedisServer) -> None:
    await three_nodes(server)
    async with watching(server) as terminal:
        await terminal.shows(lambda frame: len(frame) == 24)
        terminal.size(132, 10)
        frame = await terminal.shows(lambda frame: len(frame) == 10)
        assert f"{LONG_NAME} " in frame[3]
        terminal.size(60, 6)
        frame = await terminal.shows(lambda frame: len(frame) == 6)
        assert "…" in frame[3]
        assert max(map(cell_len, frame)) <= 60
        terminal.press(b"q")
        assert await terminal.ended() == 0


@pytest.mark.slow
@in_asyncio
async def test_a_server_that_is_gone_is_said_and_it_goes_on_when_that_is_back(
    server: RedisServer,
) -> None:
    await three_nodes(server)
    async with watching(server, width=120) as terminal:
        await terminal.shows(has(SITE, "2/2"))
        server.freeze()
        frame = await terminal.shows(lambda frame: frame[-1].startswith("trying again: "))
        assert f"{server.url}: no answer within " in frame[-1]
        assert any(line.startswith(SITE) for line in frame)  # what was seen last
        server.thaw()
        await terminal.shows(lambda frame: frame[-1].startswith("q quits"))

        server.restart()  # with nothing: what was seen falls idle
        await terminal.shows(has(SITE, "0/2"))
        await three_nodes(server)  # who wait, for nobody knows what was held before
        await terminal.shows(lambda frame: "0 held  8 waiting" in frame[0])
        server.kill()
        cannot = f"trying again: cannot reach {server.url}: "
        await terminal.shows(lambda frame: frame[-1].startswith(cannot))
        terminal.press(b"q")
        assert await terminal.ended() == 0


@in_asyncio
async def test_ctrl_z_gives_the_terminal_to_the_shell_and_fg_takes_it_back(
    server: RedisServer,
) -> None:
    await three_nodes(server)
    async with watching(server) as terminal:
        await terminal.shows(has(SITE, "2/2"))
        os.kill(terminal.pid, signal.SIGTSTP)
        await terminal.stopped()
        assert terminal.drawn.count("\x1b[?1049l") == 1
        os.kill(terminal.pid, signal.SIGCONT)
        await terminal.has_drawn("\x1b[?1049h", times=2)
        terminal.press(b"q")
        assert await terminal.ended() == 0
        assert terminal.drawn.count("\x1b[?1049l") == 2


@in_asyncio
async def test_a_server_that_is_not_there_is_said_before_anything_is_drawn() -> None:
    terminal = await Terminal(80, 24).start("unix:///nowhere", "watch")
    try:
        assert await terminal.ended() == 3
        assert terminal.drawn.startswith("scrapy semaphore: cannot reach unix:///nowhere: ")
        assert "\x1b" not in terminal.drawn
    finally:
        await terminal.close()
