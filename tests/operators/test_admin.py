"""`Admin`: its connection, its errors, and what `inspect` shows."""

import asyncio

import pytest

from semaphore_middleware import Admin, FairSemaphore, Rule
from semaphore_middleware.errors import ClosedError, ServerUnreachableError, SettingsError
from tests.support.crawls import Patch
from tests.support.nodes import Caller, Outside, eventually
from tests.support.servers import RedisServer
from tests.support.simulated import SimulatedServer, in_simulated_time
from tests.support.times import ENDLESS_S

HOST = "www.example.org"


async def test_rule_is_that_of_exactly_this_name(server: RedisServer) -> None:
    async with Admin(server.url, name="boss", lease=ENDLESS_S) as admin:
        await admin.configure("*.example.org", 3)
        assert await admin.rule(HOST) is None
        await admin.configure(HOST, {"delay": 0.5})
        rules = [
            Rule("*.example.org", "boss", {"concurrency": 3}),
            Rule(HOST, "boss", {"delay": 0.5}),
        ]
        assert [await admin.rule("*.Example.ORG"), await admin.rule(HOST)] == rules
        assert await admin.rules() == rules


@in_simulated_time
async def test_a_server_that_is_mute_is_waited_for_for_so_long(monkeypatch: Patch) -> None:
    server = SimulatedServer(lease=3.0)
    async with server.node() as node:
        await node.admin.configure(HOST, 2)
        server.network.freeze_server(1.0)
        with monkeypatch.context() as patch:
            with pytest.raises(ServerUnreachableError, match=r"no answer within 0\.5 s"):
                await node.admin.inspect(HOST)
            patch.setattr("semaphore_middleware.operators.admin.CALL_TIMEOUT_S", 0.1)
            with pytest.raises(ServerUnreachableError, match=r"no answer within 0\.1 s"):
                await node.admin.inspect(HOST)
        await asyncio.sleep(1.0)
        assert (await node.admin.inspect(HOST)).limit == 2


async def test_after_an_error_it_connects_anew(server: RedisServer) -> None:
    async with Admin(server.url, lease=ENDLESS_S) as admin:
        await admin.inspect(HOST)
        server.restart()
        with pytest.raises(ServerUnreachableError, match=f"lost the connection to {server.url}"):
            await admin.inspect(HOST)
        assert (await admin.inspect(HOST)).limit is None


async def test_nobody_there_is_an_error_at_once() -> None:
    admin = Admin("unix:///nowhere/s")
    assert admin.server == "unix:///nowhere/s"
    with pytest.raises(ServerUnreachableError, match="cannot reach unix:///nowhere/s: "):
        await admin.survey()
    with pytest.raises(ServerUnreachableError, match="no embedded server runs"):
        Admin()
    with pytest.raises(SettingsError, match="--url"):
        Admin("http://example.org", url_from="--url")


async def test_a_semaphore_s_own_has_one_connection_and_ends_with_it(server: RedisServer) -> None:
    async with FairSemaphore(server.url, history=0.0) as semaphore:
        admin = semaphore.admin
        assert admin is semaphore.admin
        await asyncio.gather(*(admin.inspect(f"s{number}") for number in range(20)))
        with server.client() as client:
            # The node's two, its admin's, and the tests' two.
            await eventually(lambda: len(client.client_list()) == 5)
    with pytest.raises(ClosedError):
        await admin.inspect("s")


async def test_inspect_tells_all_and_changes_nothing(server: RedisServer, outside: Outside) -> None:
    """Waiting nodes come first, in the order of the queue, then the others by name."""
    c, dead, b, a = [await Caller.join(server, name) for name in ("c", "dead", "node:b", "a")]
    assert str(await a.inspect("s")) == "s: 0/- held, 0 waiting"
    await c.take("s", 3, limit=2)
    await c.update("s", limit=2, held_age=7000.0, wait_age=5.0)
    for caller in (dead, b):
        await caller.take("s", limit=2)
    outside.end_leases("dead", "s")
    outside.notified()
    before = outside.dump()
    seen = await a.inspect("s")
    await a.inspect("never used")
    assert (outside.dump(), outside.notified()) == (before, [])
    counts = [(member.node, member.held, member.waiting) for member in seen.members]
    assert counts == [("node:b", 0, 1), ("c", 2, 1)], "the first holds fewer"
    for member in seen.members:
        assert 0 < member.lease_left <= ENDLESS_S
    holder = seen.members[1]
    assert 7000.0 <= holder.oldest < 7000.0 + ENDLESS_S
    assert 5.0 <= holder.longest_wait < ENDLESS_S
    assert str(seen) == "s: 2/2 held, 2 waiting"
