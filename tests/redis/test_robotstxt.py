"""The scripts of robots.txt: one node fetches, and what is kept is bounded and expires."""

from __future__ import annotations

from typing import Any, NamedTuple

from semaphore_middleware.core.robotstxt import MAX_BYTES, RobotsTxt
from semaphore_middleware.redis.location import Server
from semaphore_middleware.redis.scripts import evaluate, source_of
from tests.support.nodes import ENDLESS_S, KEYS, Outside, eventually
from tests.support.servers import RedisServer

SITE = "https://example.com"
FILE = RobotsTxt(b"User-agent: *\nDisallow: /x\n", 200)
DAY_S = 86400.0


class Reply(NamedTuple):
    step: str
    robotstxt: RobotsTxt | None


class Asker:
    """A node reduced to its calls about robots.txt."""

    def __init__(self, server: RedisServer, node: str, lease: float = ENDLESS_S) -> None:
        self._server = Server(server.url, 5.0)
        self._who = (node, f"{node}'s crawl", round(1000 * lease))

    async def ask(self, origin: str = SITE) -> Reply:
        step, data, _ = await self._say("ask_robotstxt", origin)
        return Reply(step.decode(), RobotsTxt.unpack(data))

    async def put(
        self, robotstxt: RobotsTxt | None = FILE, valid: float = DAY_S, origin: str = SITE
    ) -> bool:
        data = robotstxt.pack() if robotstxt else b""
        return bool(await self._say("put_robotstxt", origin, data, round(1000 * valid), 0))

    async def _say(self, script: str, origin: str, *more: Any) -> Any:
        connection = await self._server.connect()
        try:
            keys = (*KEYS.of_robotstxt(origin), KEYS.of_obeyed(origin))
            call = (script, len(keys), *keys, *self._who, origin, *more)
            (reply,) = await evaluate(connection, [call])
            return reply
        finally:
            await connection.close()


def kept(outside: Outside) -> set[str]:
    """The origins of which there is a record."""
    first = KEYS.robotstxt + b":"
    keys = set(outside.client.scan_iter(first + b"*"))
    assert keys == {first + name for name in outside.client.zrange(KEYS.robotstxt, 0, -1)}
    return {key.removeprefix(first).decode() for key in keys}


async def test_of_a_node_that_is_not_heard_of_another_takes_over(server: RedisServer) -> None:
    a, b = Asker(server, "a", lease=0.1), Asker(server, "b")
    late = RobotsTxt(b"late", 200)
    await a.ask()

    async def is_taken_over() -> bool:
        return (await b.ask()).step == "fetch"

    await eventually(is_taken_over)
    assert not await a.put(late), "what a frozen node has fetched is too old"
    assert (await b.ask("http://example.com")).step == "fetch", "that is another site"
    assert await b.put()
    assert not await a.put(late)
    assert (await a.ask()).robotstxt == FILE


async def test_a_clock_that_is_set_back_keeps_nothing_for_longer(server: RedisServer) -> None:
    a, b = Asker(server, "a"), Asker(server, "b")
    await a.ask()
    await a.put(FILE, DAY_S + 3600)  # as it looks an hour before
    assert (await b.ask()).step == "fetch"
    c = Asker(server, "c", lease=ENDLESS_S / 2)
    assert (await c.ask()).step == "fetch"


async def test_there_are_not_too_many_nor_too_old(server: RedisServer, outside: Outside) -> None:
    a, most = Asker(server, "a"), 50_000
    assert f"MOST = {most}" in source_of("shared/robotstxt")
    for number in range(3):
        await a.ask(f"http://{number}")
        await a.put(origin=f"http://{number}")
    assert kept(outside) == {f"http://{number}" for number in range(3)}
    for key in (*KEYS.of_robotstxt("http://0"), *KEYS.of_robotstxt("http://2")):
        assert 0 < outside.ttl(key) <= 1000 * DAY_S
    others = {f"other {number}": 10**15 for number in range(most - 2)}
    outside.client.zadd(KEYS.robotstxt, others)
    await a.ask("http://3")
    outside.client.zrem(KEYS.robotstxt, *others)
    assert kept(outside) == {"http://2", "http://3"}, "the oldest go first"


def test_what_no_node_has_written_is_not_read() -> None:
    for junk in (b"", b"x", b"[]\nx", b'[200, "", 0]\nnot compressed', b"\xff\n"):
        assert RobotsTxt.unpack(junk) is None
    assert RobotsTxt.unpack(FILE.pack()) == FILE


def test_of_a_file_that_is_too_long_whole_lines_are_read() -> None:
    line = b"Allow: /0123456789\n"
    body = line * (MAX_BYTES // len(line) + 10)
    text = RobotsTxt.of_body(body, 200).text
    assert MAX_BYTES - len(line) < len(text) <= MAX_BYTES
    assert text == line * (len(text) // len(line))
    assert RobotsTxt.of_body(b"Allow: /" * MAX_BYTES, 200).text == b""
    assert RobotsTxt.of_body(body[:MAX_BYTES], 200).text == body[:MAX_BYTES]
