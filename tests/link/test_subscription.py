"""Messages come, or the subscription is made anew, and somebody is told."""

import asyncio
from typing import Any

import pytest

from lab.simulation.network import CALM, Weather
from semaphore_middleware.errors import ServerUnreachableError
from semaphore_middleware.link.connection import Connection
from semaphore_middleware.link.link import Link, Subscription
from semaphore_middleware.link.location import Server
from tests.support.crawls import Log, Patch
from tests.support.nodes import calls_of, eventually
from tests.support.servers import RedisServer
from tests.support.simulated import SimulatedServer, in_simulated_time
from tests.support.times import ENDLESS_S

MILLISECONDS = 0.01


async def test_a_closed_connection_is_not_opened_again_to_send(server: RedisServer) -> None:
    """redis-py would connect again, without the subscription: PING is answered, no more comes."""
    connection = await Server(server.url, ENDLESS_S).connect()
    raw: Any = connection._connection
    read = raw.read_response

    async def read_response(**options: Any) -> Any:
        reply = await read(**options)
        if reply is None:  # time is up, and just now somebody renews the subscription
            await connection.close()
        return reply

    raw.read_response = read_response
    with pytest.raises(ServerUnreachableError, match="the connection is closed"):
        await connection.listen([b"channel"], MILLISECONDS, lambda _: None)
    assert not raw.is_connected


@in_simulated_time
async def test_a_subscription_that_brings_no_message_is_made_anew_and_said(
    monkeypatch: Patch, caplog: Log
) -> None:
    subscribed = calls_of(monkeypatch, Connection, "subscribe")
    server = SimulatedServer(lease=15.0, recovery_wait=0.0)
    server.network.weather = Weather(message_lost=1.0)
    async with server.node() as semaphore:
        await eventually(lambda: "delivers no messages" in caplog.text)
        assert len(subscribed) == 3, "one was tried at the start; the first to fail is not said"
        [line] = caplog.messages
        assert line.endswith("delivers no messages. Without it some permits come up to 4.5 s late.")
        server.network.weather = CALM
        await eventually(lambda: "Reached" in caplog.text)
        async with semaphore.permit("s", 1):
            pass


async def test_one_that_ends_while_servers_are_compared_keeps_no_connection(
    server: RedisServer, monkeypatch: Patch
) -> None:
    async def compare(_: Link, connection: Connection) -> None:
        compared.append(connection)
        await asyncio.Event().wait()

    compared: list[Connection] = []
    monkeypatch.setattr(Link, "compare", compare)
    link = Link(Server(server.url, ENDLESS_S))
    subscription = Subscription(link, [b"channel"], ENDLESS_S, lambda _: None, "nothing comes")
    subscription.start()
    await eventually(lambda: compared)
    await subscription.close()
    assert not compared[0].is_open
