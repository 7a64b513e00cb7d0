"""The index of scopes: who looks at all of them looks at no other key of the server."""

from __future__ import annotations

from semaphore_middleware.link.index import COMPLETE
from semaphore_middleware.link.text import encoded
from semaphore_middleware.model.limits import Limit
from tests.support.nodes import KEYS, Caller, Outside
from tests.support.servers import RedisServer


async def surveyed(node: Caller) -> set[str]:
    return {seen.scope for seen in await node.admin.survey()}


async def test_a_look_scans_no_keys(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    await a.take("in use")
    await a.take("given back")
    await a.give_back("given back")
    await a.admin.pause("paused")
    delayed = Limit(1, delay=60.0)
    await a.take("delayed", limit=delayed)
    await a.update("delayed", delayed, started=1)
    await a.give_back("delayed", limit=delayed)
    scans = server.calls("scan")
    assert await surveyed(a) == {"in use", "paused", "delayed"}
    assert server.calls("scan") == scans


async def test_an_index_that_was_lost_is_made_again_by_one_look(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await a.take("s")
    outside.client.delete(KEYS.index)
    await a.take("later")
    scans = server.calls("scan")
    for _ in range(2):
        assert await surveyed(a) == {"s", "later"}
    assert server.calls("scan") == scans + 1
    assert outside.ttl(KEYS.index) > 0


async def test_an_index_of_many_is_made_in_short_calls(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    for number in range(450):
        await a.take(f"{number}")
    outside.client.delete(KEYS.index)
    calls = server.calls("zadd")
    assert len(await surveyed(a)) == 450
    begun, complete = 1, 1
    assert server.calls("zadd") == calls + begun + 3 + complete


async def test_a_scope_in_use_costs_no_more(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    await a.take("s", limit=2)
    calls = server.calls("zadd")
    for _ in range(10):
        await a.take("s", limit=2)
        await a.give_back("s", limit=2)
    assert server.calls("zadd") == calls


async def test_what_has_ended_leaves_it_in_steps(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    ended = {f"ended {number}": number for number in range(500)}
    outside.client.zadd(KEYS.index, ended)
    for number in range(1000):
        await a.take(f"{number}")
        if outside.client.zcount(KEYS.index, "-inf", 1000) == 0:
            break
    members = outside.client.zrange(KEYS.index, 0, -1)
    assert set(members) == {COMPLETE, *(encoded(f"{n}") for n in range(number + 1))}
