"""`watch` in a terminal: it lives, it ends when it is told to, and leaves all as it was."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from rich.cells import cell_len

from tests.support.cli import LONG_NAME, SITE, terminal, three_nodes
from tests.support.nodes import Outside
from tests.support.servers import RedisServer


def has(*words: str) -> Callable[[list[str]], bool]:
    """Whether a line of the screen begins with these words."""
    return lambda frame: any(line.split()[: len(words)] == [*words] for line in frame)


async def test_it_follows_the_size_and_changes_nothing(
    server: RedisServer, outside: Outside
) -> None:
    nodes = await three_nodes(server)
    before = outside.dump()
    async with terminal(server, "watch") as shown:
        frame = await shown.shows(has(SITE, "2/2", "█", "3", "3", "h", "0.0"))
        assert len(frame) == 24
        assert max(map(cell_len, frame)) <= 80
        assert frame[0].endswith("2 scopes  5 held  3 waiting  0.0 starts/s")
        assert frame[1].split() == ["scope", "held", "waiting", "longest", "starts/s"]
        assert [line.split()[0] for line in frame[2:4]] == [SITE, LONG_NAME]
        assert frame[-1].startswith("1-2 of 2 by waiting   q quit  s sort")
        shown.size(60, 6)
        frame = await shown.shows(lambda frame: len(frame) == 6)
        assert "…" in frame[3]
        assert max(map(cell_len, frame)) <= 60
        assert outside.dump() == before

        shown.size(80, 24)
        await nodes[0].give_back(SITE, limit=2)
        await shown.shows(
            lambda frame: frame[0].rstrip().split()[3:7] == ["5", "held", "2", "waiting"]
        )
        shown.press(b"q")
        assert await shown.ended() == 0


@pytest.mark.parametrize("how", [b"xQ", b"\x03", signal.SIGTERM])
async def test_q_ctrl_c_and_a_signal_end_it_and_leave_the_terminal_as_it_was(
    server: RedisServer, how: bytes | signal.Signals
) -> None:
    async with terminal(server, "watch") as shown:
        await shown.shows(lambda frame: "q quit" in frame[-1])
        assert "\x1b[?1049h" in shown.drawn  # the other screen
        assert "\x1b[?25l" in shown.drawn  # without a cursor
        if isinstance(how, bytes):
            shown.press(how)
        else:
            os.kill(shown.pid, how)
        assert await shown.ended() == 0
        ends = shown.drawn.rpartition("\x1b[H")[2]
        assert "\x1b[?1049l" in ends
        assert "\x1b[?25h" in ends
        assert "Traceback" not in shown.drawn


async def test_ctrl_z_gives_the_terminal_back_and_fg_takes_it(server: RedisServer) -> None:
    await three_nodes(server)
    async with terminal(server, "watch") as shown:
        await shown.shows(has(SITE, "2/2"))
        os.kill(shown.pid, signal.SIGTSTP)
        await shown.stopped()
        assert shown.drawn.count("\x1b[?1049l") == 1
        os.kill(shown.pid, signal.SIGCONT)
        await shown.has_drawn("\x1b[?1049h", times=2)
        shown.press(b"q")
        assert await shown.ended() == 0
        assert shown.drawn.count("\x1b[?1049l") == 2


@pytest.mark.slow
async def test_a_server_that_is_gone_is_said_until_it_is_back(server: RedisServer) -> None:
    await three_nodes(server)
    async with terminal(server, "watch", width=120) as shown:
        await shown.shows(has(SITE, "2/2"))
        server.freeze()
        frame = await shown.shows(lambda frame: frame[-1].startswith("trying again: "))
        assert f"{server.url}: no answer within " in frame[-1]
        assert any(line.startswith(SITE) for line in frame)  # what was seen last
        server.thaw()
        await shown.shows(lambda frame: "q quit" in frame[-1])

        server.restart()  # with nothing: what was seen falls idle
        await shown.shows(has(SITE, "0/2"))
        await three_nodes(server)  # who wait, for nobody knows what was held before
        await shown.shows(lambda frame: "0 held  8 waiting" in frame[0])
        server.kill()
        cannot = f"trying again: cannot reach {server.url}: "
        await shown.shows(lambda frame: frame[-1].startswith(cannot))
        shown.press(b"q")
        assert await shown.ended() == 0


async def test_a_server_that_is_not_there_is_said_before_anything_is_drawn() -> None:
    async with terminal("unix:///nowhere", "watch") as shown:
        assert await shown.ended() == 3
        assert shown.drawn.startswith("scrapy semaphore: cannot reach unix:///nowhere: ")
        assert "\x1b" not in shown.drawn
