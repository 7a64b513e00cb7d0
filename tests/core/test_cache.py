"""Values that nodes share: they are sent before permits go back, expire, and keep nobody waiting
for long.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from typing import Any

from semaphore_middleware import FairSemaphore
from semaphore_middleware.core.cache import Cache
from semaphore_middleware.core.scripts import SYNC
from semaphore_middleware.link.scripts import sha1_of
from tests.support.crawls import Log, Patch
from tests.support.nodes import KEYS, eventually
from tests.support.servers import RedisServer
from tests.support.times import ENDLESS_S

DAY_S = 86400.0
NAME = "robotstxt:https://example.com"


@asynccontextmanager
async def nodes(server: RedisServer, many: int = 2) -> AsyncIterator[list[FairSemaphore]]:
    async with AsyncExitStack() as stack:
        opened = [
            FairSemaphore(
                server.url, lease=ENDLESS_S, recovery_wait=0.0, reuse_window=0.0, history=0.0
            )
            for _ in range(many)
        ]
        for node in opened:
            await stack.enter_async_context(node)
        yield opened


async def value_of(node: FairSemaphore, name: str = NAME) -> bytes | None:
    value, _ = await node.cache.get(name) or (None, 0.0)
    return value


async def test_what_one_node_puts_another_gets_while_it_is_valid(server: RedisServer) -> None:
    async with nodes(server) as (a, b):
        assert await b.cache.get(NAME) is None
        a.cache.put(NAME, b"value", DAY_S)
        await eventually(lambda: b.cache.get(NAME))
        cached = await b.cache.get(NAME)
        assert cached is not None
        assert cached[0] == b"value"
        assert DAY_S - 60 < cached[1] <= DAY_S
        assert await b.cache.get("another") is None
        a.cache.put(NAME, b"for a moment", 0.02)

        async def is_over() -> bool:
            return await b.cache.get(NAME) is None

        await eventually(is_over)


async def test_what_does_not_replace_leaves_what_is_still_valid(server: RedisServer) -> None:
    async with nodes(server) as (a, _):
        a.cache.put(NAME, b"first", DAY_S, replace=False)
        a.cache.put(NAME, b"second", DAY_S, replace=False)
        a.cache.put("end", b"", DAY_S)
        await eventually(lambda: a.cache.get("end"))
        assert await value_of(a) == b"first"
        a.cache.put(NAME, b"third", DAY_S)
        a.cache.put(NAME, b"fourth", DAY_S, replace=False)
        a.cache.put("other end", b"", DAY_S)
        await eventually(lambda: a.cache.get("other end"))
        assert await value_of(a) == b"third"


async def test_a_value_leaves_before_the_permit(server: RedisServer) -> None:
    async with nodes(server, 1) as (a,):
        permit = await a.acquire("s", 1)
        with server.client() as client, client.monitor() as monitor:
            a.cache.put(NAME, b"value", DAY_S)
            permit.release()
            await eventually(lambda: server.members() == {})
            commands = (monitor.next_command()["command"].split()[:2] for _ in count())
            sync = ["EVALSHA", sha1_of(SYNC.source)]
            of_node = (name for name, *first in commands if name == "SET" or [name, *first] == sync)
            assert [next(of_node), next(of_node)] == ["SET", "EVALSHA"]


class SlowConnection:
    """Another value is put before its first reply."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self.sent: list[Any] = []

    async def call(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        if not self.sent:
            self._cache.put("second", b"", DAY_S)
        self.sent += [(command[0], command[1]) for command in commands]
        return [None for _ in commands]


async def test_what_comes_up_during_an_exchange_leaves_with_it() -> None:
    """An update that is sent next may return the permit under which the value was fetched."""
    cache = Cache(KEYS, lambda: None)
    reading = asyncio.create_task(cache.get("wanted"))
    await asyncio.sleep(0)
    connection: Any = SlowConnection(cache)
    await cache.exchange(connection)
    assert await reading is None
    wanted, second = KEYS.cached("wanted"), KEYS.cached("second")
    assert connection.sent == [("PTTL", wanted), ("GET", wanted), ("SET", second)]


async def test_a_full_server_serves_only_permits(server: RedisServer, caplog: Log) -> None:
    async with nodes(server, 1) as (a,):
        a.cache.put(NAME, b"value", DAY_S)
        await eventually(lambda: a.cache.get(NAME))
        with server.client() as client:
            client.config_set("maxmemory", 1)
            for _ in range(3):
                a.cache.put("another", b"value", DAY_S)
                async with a.permit("s", 1):
                    assert await a.cache.get("another") is None
            assert await value_of(a) == b"value"
            client.config_set("maxmemory", 0)
    [line] = [line for line in caplog.messages if "cannot share values" in line]
    assert "'maxmemory'" in line


async def test_a_key_of_another_kind_is_no_value(server: RedisServer) -> None:
    with server.client() as client:
        client.hset(KEYS.cached(NAME), "field", "value")
        client.expire(KEYS.cached(NAME), 600)
    async with nodes(server, 1) as (a,):
        assert await a.cache.get(NAME) is None


async def test_nobody_waits_for_a_server_that_is_away_and_what_is_put_then_ends_in_time(
    server: RedisServer, monkeypatch: Patch
) -> None:
    async with nodes(server, 1) as (a,):
        server.kill()
        assert await a.cache.get(NAME) is None
        now = asyncio.get_running_loop().time()
        a.cache.put("short", b"value", 3600)
        a.cache.put("long", b"value", DAY_S)
        monkeypatch.setattr(a.cache, "_now", lambda: now + 3700)
        server.restart()
        await eventually(lambda: a.cache.get("long"))
        cached = await a.cache.get("long")
        assert cached is not None
        assert cached[1] <= DAY_S - 3700
        assert await a.cache.get("short") is None


async def test_nobody_waits_past_the_end(server: RedisServer) -> None:
    async with nodes(server, 1) as (a,):
        server.freeze()
        try:
            reading = asyncio.create_task(a.cache.get(NAME))
            await asyncio.sleep(0)
            await a.close()
            assert await reading is None
        finally:
            server.thaw()
