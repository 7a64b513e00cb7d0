"""The proxy that keeps its clients' connections does to them what real ones do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.asyncio.connection import UnixDomainSocketConnection
from redis.exceptions import ResponseError

from tests.support.command_proxy import CommandProxy, Subscriptions
from tests.support.nodes import eventually, in_asyncio
from tests.support.servers import RedisServer


@pytest.fixture
def heir() -> Iterator[RedisServer]:
    server = RedisServer().start()
    yield server
    server.remove()


class Client:
    """One connection to a proxy."""

    def __init__(self, proxy: CommandProxy) -> None:
        self._connection: Any = UnixDomainSocketConnection(path=str(proxy.path), protocol=2)

    async def call(self, *command: str) -> Any:
        await self._connection.send_command(*command)
        return await self._connection.read_response(disconnect_on_error=False)

    async def hear(self) -> Any:
        return await self._connection.read_response(disconnect_on_error=False)


async def publish(server: RedisServer) -> None:
    """Once somebody has subscribed there."""

    async def is_heard() -> bool:
        with server.client() as client:
            return bool(client.publish("channel", "news"))

    await eventually(is_heard)


@in_asyncio
async def test_a_connection_is_led_to_another_server_with_what_was_said_of_it(
    server: RedisServer, heir: RedisServer, tmp_path: Path
) -> None:
    async with CommandProxy(tmp_path / "s", server.path) as proxy:
        client = Client(proxy)
        await client.call("CLIENT", "SETNAME", "its-name")
        await client.call("SELECT", "3")
        await client.call("SET", "key", "of the first")
        assert await proxy.switch(heir.path) == 1
        assert await client.call("GET", "key") is None
        assert await client.call("CLIENT", "GETNAME") == b"its-name"
        assert b" db=3 " in await client.call("CLIENT", "INFO")


@in_asyncio
async def test_a_command_that_a_server_does_not_answer_fails_and_the_next_may_work(
    server: RedisServer, heir: RedisServer, tmp_path: Path
) -> None:
    async with CommandProxy(tmp_path / "s", server.path) as proxy:
        client = Client(proxy)
        await client.call("PING")
        server.kill()
        with pytest.raises(ResponseError, match="upstream failure"):
            await client.call("PING")
        await proxy.switch(heir.path)
        assert await client.call("PING") == b"PONG"


@pytest.mark.parametrize("subscriptions", Subscriptions)
@in_asyncio
async def test_a_subscription_is_moved_or_closed_or_forgotten(
    server: RedisServer, heir: RedisServer, tmp_path: Path, subscriptions: Subscriptions
) -> None:
    async with CommandProxy(tmp_path / "s", server.path, subscriptions) as proxy:
        client = Client(proxy)
        await client.call("SUBSCRIBE", "channel")
        await publish(server)
        assert await client.hear() == [b"message", b"channel", b"news"]
        await proxy.switch(heir.path)
        if subscriptions is Subscriptions.MOVED:
            await publish(heir)
            assert await client.hear() == [b"message", b"channel", b"news"]
        elif subscriptions is Subscriptions.CLOSED:
            with pytest.raises(redis.ConnectionError):
                await client.hear()
        else:

            async def is_there() -> bool:
                return bool(await client.call("PING") == b"PONG")  # not as a subscriber's

            await eventually(is_there)
