"""The scripts, verb by verb, on a real server."""

from __future__ import annotations

from semaphore_middleware.model.limits import Limit
from semaphore_middleware.redis.protocol import Ask
from tests.support.nodes import Caller, Outside, in_asyncio
from tests.support.servers import RedisServer

# Acquire --------------------------------------------------------------------------------------


@in_asyncio
async def test_a_free_permit_is_granted_in_the_reply(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    assert (await a.acquire("s", 1)).granted == (1,)
    assert outside.held() == ["a:1"]
    assert outside.line() == []


@in_asyncio
async def test_who_finds_none_free_stands_in_line(server: RedisServer, outside: Outside) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.acquire("s", 1)
    answer = await b.acquire("s", 1)
    assert (answer.granted, answer.retry_in) == ((), None)
    assert outside.held() == ["a:1"]
    assert outside.line() == ["b:1"]


@in_asyncio
async def test_as_many_are_granted_as_the_limit_allows(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    assert (await a.acquire("s", 1, 2, 3, 4, 5, limit=3)).granted == (1, 2, 3)
    assert outside.line() == ["a:4", "a:5"]


@in_asyncio
async def test_asking_again_for_a_held_permit_tells_of_it_again(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    for _ in range(3):
        assert (await a.acquire("s", 1, 2)).granted == (1,)
    assert outside.held() == ["a:1"]
    assert outside.line() == ["a:2"]


@in_asyncio
async def test_asking_again_keeps_the_place_in_line(server: RedisServer, outside: Outside) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.acquire("s", 1)
    await b.acquire("s", 1)
    await a.acquire("s", 2)
    await b.acquire("s", 2)
    line = outside.line()
    for caller in (b, a, b):
        await caller.acquire("s", 1, 2)
    assert outside.line() == line


# Release --------------------------------------------------------------------------------------


@in_asyncio
async def test_a_permit_given_back_is_handed_to_the_head_of_the_line(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.acquire("s", 1)
    await b.acquire("s", 7, 8)
    await a.release("s", 1)
    assert outside.told() == [("b", "granted 7")]
    assert outside.held() == ["b:7"]
    assert outside.line() == ["b:8"]


@in_asyncio
async def test_the_one_who_gives_back_hears_of_its_own_grant_in_the_reply(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await a.acquire("s", 1, 2)
    assert (await a.release("s", 1)).granted == (2,)
    assert outside.told() == []


@in_asyncio
async def test_giving_back_twice_frees_one_permit(server: RedisServer, outside: Outside) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.acquire("s", 1)
    await b.acquire("s", 1, 2, 3)
    await a.release("s", 1)
    await a.release("s", 1)
    assert outside.held() == ["b:1"]
    assert outside.line() == ["b:2", "b:3"]


@in_asyncio
async def test_giving_back_what_one_waits_for_leaves_the_line(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await a.acquire("s", 1, 2, 3)
    await a.release("s", 2)
    await a.release("s", 2)
    assert outside.held() == ["a:1"]
    assert outside.line() == ["a:3"]


@in_asyncio
async def test_giving_back_what_nobody_has_changes_nothing(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.acquire("s", 1, 2)
    await b.release("s", 1, 2, 3)
    await b.release("never used", 1)
    assert outside.held() == ["a:1"]
    assert outside.line() == ["a:2"]


# Renew ----------------------------------------------------------------------------------------


@in_asyncio
async def test_renewing_lengthens_the_lease(server: RedisServer) -> None:
    brief, long = await Caller.join(server, "a", lease=60), await Caller.join(server, "a")
    await brief.acquire("s", 1)
    (before,) = (await brief.inspect("s")).holders
    assert (await long.renew("s", 1)).lost == ()
    assert (await long.renew("s", 1)).lost == ()
    (after,) = (await brief.inspect("s")).holders
    assert before.lease_left <= 60 < after.lease_left


@in_asyncio
async def test_renewing_tells_what_is_lost(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    await a.acquire("s", 1)
    for _ in range(2):
        assert (await a.renew("s", 1, 2, limit=5)).lost == (2,)
    assert outside.held() == ["a:1"]


@in_asyncio
async def test_a_permit_whose_lease_is_over_cannot_be_renewed(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await a.acquire("s", 1)
    outside.end_leases("a", "s")
    assert (await a.renew("s", 1)).lost == (1,)
    assert outside.held() == []


# All of them ----------------------------------------------------------------------------------


@in_asyncio
async def test_one_call_takes_many_scopes_and_many_permits(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    asks = [Ask("acquire", f"s{n}", Limit(n), tuple(range(10 * n, 10 * n + 5))) for n in (1, 2, 3)]
    answers = await a.store.run(a.connection, asks)
    assert [answer.ask for answer in answers] == asks
    assert [answer.granted for answer in answers] == [(10,), (20, 21), (30, 31, 32)]
    assert outside.line("s2") == ["a:22", "a:23", "a:24"]


@in_asyncio
async def test_verbs_of_one_batch_are_done_in_their_order(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await a.acquire("s", 1)
    one = Limit(1)
    release, renew, acquire = await a.store.run(
        a.connection,
        [
            Ask("release", "s", one, (1,)),
            Ask("renew", "s", one, (1,)),
            Ask("acquire", "s", one, (2,)),
        ],
    )
    assert (renew.lost, acquire.granted) == ((1,), (2,))
    assert release.granted == ()
    assert outside.held() == ["a:2"]
