"""Operators' actions over a connection of their own: what they cost, and how they fail."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from semaphore_middleware import Admin, ClosedError, FairSemaphore, Rule, ServerUnreachableError
from tests.support.nodes import ENDLESS_S, eventually, in_asyncio
from tests.support.servers import RedisServer

HOST = "www.example.org"
CONNECTING = ["INFO"]


async def commands_of(server: RedisServer, *actions: Callable[[Admin], Any]) -> list[str]:
    """The names of the commands that the server is sent by a new Admin.

    Without CLIENT: redis-py gives its name and version once, or twice on a Unix socket.
    """
    async with Admin(server.url) as before:  # loads the scripts that are needed
        for action in actions:
            await action(before)
    with server.client() as client, server.client() as marker, client.monitor() as monitor:
        marker.echo("connected")
        while not monitor.next_command()["command"].startswith("ECHO"):
            pass
        async with Admin(server.url) as admin:
            for action in actions:
                await action(admin)
        marker.echo("end")
        names: list[str] = []
        while True:
            command = monitor.next_command()
            # EVALSHA_RO is used where the server has it.
            name = command["command"].split()[0].upper().removesuffix("_RO")
            if name == "ECHO":
                return names
            if command["client_type"] != "lua" and name != "CLIENT":
                names.append(name)


@in_asyncio
async def test_limit_takes_about_ten_commands(server: RedisServer) -> None:
    """As `scrapy semaphore limit X 2` does it: set it, and say what holds from now on."""
    sent = await commands_of(
        server,
        lambda admin: admin.configure(HOST, 2),
        lambda admin: admin.rule(HOST),
        lambda admin: admin.inspect(HOST),
    )
    assert sent == [*CONNECTING, "EVALSHA", "PUBLISH", "HMGET", "EVALSHA"]


@pytest.mark.parametrize(
    ("action", "sent"),
    [
        (lambda admin: admin.pause(HOST), ["EVALSHA", "PUBLISH"]),
        # The rule, and what the site's answers have taught.
        (lambda admin: admin.reset(HOST), ["EVALSHA", "HDEL", "PUBLISH"]),
        # Its rule, and those of *.example.org and *.org; then its rule and its backoff.
        (lambda admin: admin.resume(HOST), ["HMGET", "EVALSHA", "EVALSHA", "PUBLISH"]),
        (lambda admin: admin.inspect(HOST), ["EVALSHA"]),
        (lambda admin: admin.rule("*.example.org"), ["HMGET"]),
        (lambda admin: admin.rules(), ["HGETALL"]),
        (lambda admin: admin.configure("*.example.org", 2), ["EVALSHA", "PUBLISH"]),
        (lambda admin: admin.trust(), ["EVALSHA", "PUBLISH"]),
    ],
)
@in_asyncio
async def test_commands_of_each_action(
    server: RedisServer, action: Callable[[Admin], Coroutine[Any, Any, object]], sent: list[str]
) -> None:
    assert await commands_of(server, action) == [*CONNECTING, *sent]


@in_asyncio
async def test_the_commands_of_survey_and_evict(server: RedisServer) -> None:
    async with FairSemaphore(server.url) as node:
        permit = await node.acquire(HOST, 1)
        survey = Counter(await commands_of(server, lambda admin: admin.survey()))
        evict = Counter(await commands_of(server, lambda admin: admin.evict("nobody")))
        permit.release()
    scans = {"INFO": 1, "SCAN": 1, "EVALSHA": 1}
    assert survey == {**scans, "HGETALL": 1}
    assert evict == scans


@in_asyncio
async def test_rule_is_that_of_exactly_this_name(server: RedisServer) -> None:
    async with Admin(server.url, name="boss") as admin:
        await admin.configure("*.example.org", 3)
        assert await admin.rule(HOST) is None
        await admin.configure(HOST, {"delay": 0.5})
        assert await admin.rule(HOST) == Rule(HOST, "boss", delay=0.5)
        assert await admin.rule("*.Example.ORG") == Rule("*.example.org", "boss", concurrency=3)
        assert await admin.rules() == [
            Rule("*.example.org", "boss", concurrency=3),
            Rule(HOST, "boss", delay=0.5),
        ]


@in_asyncio
async def test_it_connects_anew_after_an_error(server: RedisServer) -> None:
    async with Admin(server.url) as admin:
        await admin.configure(HOST, 2)
        server.restart()
        with pytest.raises(ServerUnreachableError, match=f"lost the connection to {server.url}"):
            await admin.inspect(HOST)
        assert (await admin.inspect(HOST)).limit is None


@in_asyncio
async def test_nobody_there_is_an_error_at_once() -> None:
    admin = Admin("unix:///nowhere/s")
    assert admin.server == "unix:///nowhere/s"
    with pytest.raises(ServerUnreachableError, match="cannot reach unix:///nowhere/s: "):
        await admin.survey()


def test_without_an_address_it_needs_the_embedded_server() -> None:
    with pytest.raises(ServerUnreachableError, match="no embedded server runs"):
        Admin()


@in_asyncio
async def test_a_call_takes_a_bounded_time(server: RedisServer) -> None:
    async with Admin(server.url, lease=3) as admin:
        await admin.survey()
        server.freeze()
        try:
            with pytest.raises(ServerUnreachableError, match=r"no answer within 0\.5 s"):
                await admin.inspect(HOST)
        finally:
            server.thaw()


@in_asyncio
async def test_many_calls_at_once_share_the_connection(server: RedisServer) -> None:
    async with Admin(server.url) as admin:
        seen = await asyncio.gather(*(admin.inspect(f"s{number}") for number in range(20)))
        assert [one.scope for one in seen] == [f"s{number}" for number in range(20)]
        with server.client() as client:
            assert len(client.client_list()) == 2  # this one, and its own


@in_asyncio
async def test_closed_is_closed(server: RedisServer) -> None:
    async with FairSemaphore(server.url, lease=ENDLESS_S) as semaphore:
        admin = semaphore.admin
        assert admin is semaphore.admin
        await admin.inspect("s")
    with pytest.raises(ClosedError):
        await admin.inspect("s")
    with pytest.raises(ClosedError):
        assert semaphore.admin


@in_asyncio
async def test_evict_says_what_the_node_held_and_how_many_of_its_requests_waited(
    server: RedisServer,
) -> None:
    async with FairSemaphore(server.url, lease=ENDLESS_S) as dead, Admin(server.url) as admin:
        await dead.acquire("s", 2)
        await dead.acquire("s", 2)
        await dead.acquire("t", 1)
        waiting = [asyncio.create_task(dead.acquire("t", 1)) for _ in range(3)]

        async def known() -> bool:
            return (await admin.inspect("t")).waiting == 3

        await eventually(known)
        assert await admin.evict("nobody") == (0, 0)
        assert await admin.evict(dead.node) == (3, 3)
        assert await admin.evict(dead.node) == (0, 0)
        assert await admin.survey() == []
        for task in waiting:
            task.cancel()
