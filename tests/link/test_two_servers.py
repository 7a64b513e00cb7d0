"""One name that leads to two servers: each would hold the limit by itself."""

import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import chain, cycle, repeat
from pathlib import Path
from typing import Any

import pytest

from semaphore_middleware import FairSemaphore
from semaphore_middleware.link.connection import Connection
from semaphore_middleware.link.location import Server
from tests.support.crawls import Log, Patch
from tests.support.nodes import eventually, renew
from tests.support.restricted import Restricted
from tests.support.servers import RedisServer, free_port
from tests.support.times import ENDLESS_S

NAME = "redis.test"
LINE = "leads to two servers, each of which holds the limits by itself"
Order = Callable[[Path, Path], Iterator[Path]]


@pytest.fixture
def other() -> Iterator[RedisServer]:
    with RedisServer(started_empty=True) as other:
        yield other


class Balancer(Restricted):
    """Leads each connection to a server of its own."""

    def __init__(self, servers: Iterator[Path]) -> None:
        super().__init__(Path())
        self._servers = servers

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        self.target = next(self._servers)
        await super()._serve(reader, writer)


class Hasty(FairSemaphore):
    """Waits for so long where the server seems to be two: a failover would be over by then."""

    def __init__(self, url: str, seconds: float) -> None:
        self._seconds = seconds
        super().__init__(url, recovery_wait=0)

    def _server(self, url: str) -> Server:
        server = super()._server(url)
        server.call_timeout = self._seconds
        return server


def in_turn(one: Path, other: Path) -> Iterator[Path]:
    return cycle((one, other))


def all_but_the_first(one: Path, other: Path) -> Iterator[Path]:
    return chain((one,), repeat(other))


def the_subscription(one: Path, other: Path) -> Iterator[Path]:
    return chain((one, one), repeat(other))


@pytest.mark.parametrize("order", [in_turn, all_but_the_first, the_subscription])
async def test_a_name_that_leads_to_two_servers_is_an_error(
    server: RedisServer, other: RedisServer, caplog: Log, order: Order
) -> None:
    async with Balancer(order(server.path, other.path)) as proxy:
        async with Hasty(proxy.url, 0.1):
            await eventually(lambda: LINE in caplog.text)
        record, *_ = [one for one in caplog.records if LINE in one.message]
        assert record.levelname == "ERROR"
        assert record.message.startswith(f"{proxy.url} leads")


async def test_a_failover_is_none(server: RedisServer, other: RedisServer, caplog: Log) -> None:
    """Also where the subscription comes to the new server before the calls do."""
    order = the_subscription(server.path, other.path)
    async with Balancer(order) as proxy, Hasty(proxy.url, 1.0):
        await eventually(lambda: proxy.target == other.path)
        proxy.drop_connections()
        await eventually(lambda: is_heard(other))
    assert LINE not in caplog.text


def is_heard(server: RedisServer) -> bool:
    """Whether a node is subscribed there."""
    with server.client() as client:
        return len(client.pubsub_channels()) == 2


async def test_a_master_that_gets_another_replication_id_is_one_server(
    server: RedisServer, caplog: Log
) -> None:
    async with Restricted(server.path) as proxy, FairSemaphore(proxy.url, recovery_wait=0):
        await eventually(lambda: is_heard(server))
        with server.client() as client:
            client.replicaof("127.0.0.1", free_port())
            client.replicaof("NO", "ONE")
            assert client.client_kill_filter(_type="pubsub") == 1
        asked = [command[0] for command in proxy.commands].count(b"SUBSCRIBE")
        await eventually(
            lambda: [command[0] for command in proxy.commands].count(b"SUBSCRIBE") > asked
        )
    assert LINE not in caplog.text


# A name whose address changes ---------------------------------------------------------------------


@pytest.fixture
def addresses(monkeypatch: Patch) -> list[str]:
    """Those of the name, now."""
    given = ["127.0.0.1"]
    real = socket.getaddrinfo

    def getaddrinfo(host: str, *arguments: Any, **options: Any) -> Any:
        if host != NAME:
            return real(host, *arguments, **options)
        if not given:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return list(chain(*(real(address, *arguments, **options) for address in given)))

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return given


@asynccontextmanager
async def connected(first: RedisServer, then: RedisServer) -> AsyncIterator[Connection]:
    """By a name that leads to the one server, where another address leads to the other one."""
    async with Restricted(first.path) as proxy, Restricted(then.path, "127.0.0.2", proxy.port):
        connection = await Server(f"redis://{NAME}:{proxy.port}", ENDLESS_S).connect()
        yield connection
        await connection.close()


async def look(connection: Connection) -> bool:
    """Whether the connection is left."""
    connection.check_master()
    assert connection._search is not None
    await connection._search
    return not connection.is_open


async def test_a_server_that_the_name_no_longer_leads_to_is_left(
    server: RedisServer, other: RedisServer, addresses: list[str], caplog: Log
) -> None:
    async with connected(server, other) as connection:
        addresses.append("127.0.0.2")
        assert not await look(connection), "it is one of several"
        addresses.remove("127.0.0.1")
        assert await look(connection)
        assert caplog.messages == [f"{connection.server_name} was replaced by another server."]


@pytest.mark.parametrize("now", [["127.0.0.2"], ["127.0.0.3"], []])
async def test_another_way_to_the_same_server_changes_nothing_nor_does_a_way_to_none(
    server: RedisServer, addresses: list[str], now: list[str]
) -> None:
    async with connected(server, server) as connection:
        addresses[:] = now
        assert not await look(connection)


async def test_nodes_of_before_follow_the_name(
    server: RedisServer, other: RedisServer, addresses: list[str]
) -> None:
    async with connected(server, other) as connection:
        url = f"redis://{connection.address}"
        async with FairSemaphore(url) as before, before.permit("s", 1):
            addresses[:] = ["127.0.0.2"]

            def has_come() -> bool:
                renew(before)
                with other.client() as client:
                    return bool(client.exists("{semaphore}:scope:s"))

            await eventually(has_come)
