"""The scripts of robots.txt: one node fetches, and what is kept is bounded and expires."""

from __future__ import annotations

from typing import Any

from semaphore_middleware.model.robotstxt import MAX_BYTES, RobotsTxt
from semaphore_middleware.redis.location import Server
from semaphore_middleware.redis.robotstxt import RobotsTxtReply, RobotsTxtStore
from semaphore_middleware.redis.scripts import evaluate, source_of
from tests.support.nodes import ENDLESS_S, KEYS, Outside, eventually, in_asyncio
from tests.support.servers import RedisServer

SITE = "https://example.com"
FILE = RobotsTxt(b"User-agent: *\nDisallow: /x\n", 200)
DAY_S = 86400.0


class Asker:
    """A node reduced to its calls about robots.txt."""

    def __init__(self, server: RedisServer, node: str, lease: float = ENDLESS_S) -> None:
        self._node = node
        self._server = Server(server.url, 5.0)
        self._store = RobotsTxtStore(KEYS, lease)

    async def ask(self, origin: str = SITE) -> RobotsTxtReply:
        return self._store.read(await self._say(self._store.ask(self._node, origin)))

    async def put(
        self, robotstxt: RobotsTxt | None = FILE, valid: float = DAY_S, origin: str = SITE
    ) -> bool:
        return bool(await self._say(self._store.put(self._node, origin, robotstxt, valid)))

    async def _say(self, call: tuple[Any, ...]) -> Any:
        connection = await self._server.connect()
        try:
            (reply,) = await evaluate(connection, [call])
            return reply
        finally:
            await connection.close()


def kept(outside: Outside) -> set[str]:
    """The origins of which there is a record."""
    fields = {field.decode() for field in outside.client.hkeys(KEYS.robotstxt)} - {"bytes"}
    assert fields == {name.decode() for name in outside.client.zrange(KEYS.robotstxt_ends, 0, -1)}
    return fields


def kept_bytes(outside: Outside) -> int:
    """Their size, as it was counted and as it is."""
    records = outside.client.hgetall(KEYS.robotstxt)
    counted = int(records.pop(b"bytes"))
    assert counted == sum(len(origin) + len(record) for origin, record in records.items())
    return counted


@in_asyncio
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


@in_asyncio
async def test_a_clock_that_is_set_back_keeps_nothing_for_longer(server: RedisServer) -> None:
    a, b = Asker(server, "a"), Asker(server, "b")
    await a.ask()
    await a.put(FILE, DAY_S + 3600)  # as it looks an hour before
    assert (await b.ask()).step == "fetch"
    c = Asker(server, "c", lease=ENDLESS_S / 2)
    assert (await c.ask()).step == "fetch"


@in_asyncio
async def test_there_are_not_too_many_nor_too_old(server: RedisServer, outside: Outside) -> None:
    a = Asker(server, "a")
    big = RobotsTxt(bytes(range(256)) * (MAX_BYTES // 256), 200)
    for number in range(3):
        await a.ask(f"http://{number}")
        await a.put(big, origin=f"http://{number}")
    assert kept(outside) == {f"http://{number}" for number in range(3)}
    kept_bytes(outside)
    assert 0 < outside.ttl(KEYS.robotstxt) <= 1000 * DAY_S
    assert 0 < outside.ttl(KEYS.robotstxt_ends) <= 1000 * DAY_S

    outside.client.zadd(KEYS.robotstxt_ends, {"http://1": 1})  # a day later
    await a.ask("http://3")
    assert kept(outside) == {"http://0", "http://2", "http://3"}
    assert await a.put(None, origin="http://3")
    kept_bytes(outside)

    most = 64 * 2**20
    assert f"MOST_BYTES = 100000, {most}" in source_of("shared/robotstxt")
    outside.client.hset(KEYS.robotstxt, "bytes", 2 * most)
    await a.ask("http://3")
    assert kept(outside) == {"http://3"}, "the oldest go first, and never the one that is written"


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
