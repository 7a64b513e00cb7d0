"""`scrapy semaphore watch`: `status`, redrawn in a terminal, and printed again elsewhere."""

import asyncio
import json
import os
from pathlib import Path

from tests.support.cli import NOWHERE, SITE, terminal, three_nodes
from tests.support.nodes import Outside
from tests.support.scrapy_process import start_scrapy
from tests.support.servers import RedisServer


async def test_a_terminal_is_redrawn_until_ctrl_c(server: RedisServer, outside: Outside) -> None:
    nodes = await three_nodes(server)
    before = outside.dump()
    async with terminal(server, "watch", height=6) as shown:  # of more rows than fit
        await shown.has_drawn("1 of 2 scopes (--all shows all)", times=2)
        assert outside.dump() == before
        assert "\x1b[1A\x1b[2K" in shown.drawn  # over the last tables
        await nodes[0].give_back(SITE, limit=2)
        await shown.has_drawn("2/2        2")
        assert await shown.ends_with(b"\x03") == 0
        assert shown.drawn.rfind("\x1b[?25h") > shown.drawn.rfind("\x1b[?25l")  # the cursor
        assert "Traceback" not in shown.drawn


async def test_a_server_that_is_gone_is_said_until_it_is_back(server: RedisServer) -> None:
    await three_nodes(server)
    async with terminal(server, "watch", SITE, width=200) as shown:
        await shown.has_drawn("lease left")
        server.kill()
        await shown.has_drawn(f"trying again: cannot reach {server.url}: ")
        server.restart()  # with nothing
        await shown.has_drawn(f"trying again: nothing is known of '{SITE}'")
        assert await shown.ends_with(b"\x03") == 0


async def test_a_server_that_is_not_there_is_said_before_anything_is_drawn() -> None:
    async with terminal("unix:///nowhere", "watch") as shown:
        assert await shown.ended() == 3
        assert shown.drawn.startswith("scrapy semaphore: cannot reach unix:///nowhere: ")
        assert "\x1b" not in shown.drawn


async def test_elsewhere_each_look_is_printed(server: RedisServer, tmp_path: Path) -> None:
    await three_nodes(server)
    async with terminal(server, "watch", TERM="dumb") as shown:
        await shown.has_drawn(f"\n{SITE}", times=2)
        assert "\x1b" not in shown.drawn
    ours, theirs = os.pipe()
    environment = {**os.environ, "SEMAPHORE_REDIS_URL": server.url}
    with os.fdopen(ours, "rb") as output, (tmp_path / "errors").open("wb") as errors:
        with os.fdopen(theirs, "wb") as out:
            watch = ("semaphore", "watch", "--json")
            process = start_scrapy(*watch, cwd=NOWHERE, env=environment, stdout=out, stderr=errors)
        printed = await asyncio.to_thread(output.read, 8000)  # more than one look
        output.close()  # as `head` does
        await process.ended()
    assert len(printed) == 8000
    assert (tmp_path / "errors").read_bytes() == b""
    first, _ = json.JSONDecoder().raw_decode(printed.decode())
    assert first["totals"]["scopes"] == 2
