"""Each life of a server: nothing is granted before all that was granted in the last one is over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from semaphore_middleware.errors import ServerUnreachableError
from semaphore_middleware.redis import scripts
from tests.support.nodes import ENDLESS_S, Caller, Outside, epoch_key, eventually, in_asyncio
from tests.support.servers import RedisServer


@pytest.fixture
def newborn() -> Iterator[RedisServer]:
    """A server that has just started, and nobody knows what the one before it had granted."""
    server = RedisServer(started_empty=False).start()
    try:
        yield server
    finally:
        server.remove()


# When to wait -----------------------------------------------------------------------------------


@in_asyncio
async def test_a_server_that_was_started_empty_grants_at_once(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    assert (await a.acquire("s", 1)).granted == (1,)
    assert len(a.losses) == 0


@in_asyncio
async def test_a_server_that_has_just_started_grants_nothing_for_the_recovery_wait(
    newborn: RedisServer,
) -> None:
    outside = Outside(newborn)
    a = await Caller.join(newborn, "a")
    answer = await a.acquire("s", 1)
    assert answer.granted == ()
    assert answer.retry_in is not None
    assert 0 < answer.retry_in <= ENDLESS_S
    assert outside.line() == ["a:1"]
    assert len(a.losses) == 1
    outside.end_recovery("s")
    assert (await a.acquire("s", 1)).granted == (1,)


@in_asyncio
async def test_the_time_since_the_server_started_counts_towards_the_wait(
    newborn: RedisServer,
) -> None:
    async def up_for_a_second() -> bool:
        caller = await Caller.join(newborn, "a")
        return caller.connection.state.uptime >= 1

    await eventually(up_for_a_second)
    a = await Caller.join(newborn, "a", recovery_wait=1)
    assert (await a.acquire("s", 1)).granted == (1,)
    assert len(a.losses) == 0


@in_asyncio
async def test_the_wait_ends_by_itself(newborn: RedisServer) -> None:
    a = await Caller.join(newborn, "a", recovery_wait=0.2)

    async def granted() -> bool:
        return (await a.acquire("s", 1)).granted == (1,)

    await eventually(granted)


@pytest.mark.parametrize("command", ["FLUSHALL", "FLUSHDB"])
@in_asyncio
async def test_nothing_is_granted_after_the_data_was_thrown_away(
    server: RedisServer, outside: Outside, command: str
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.acquire("s", 1)
    outside.client.execute_command(command)
    assert (await b.acquire("s", 1)).granted == ()
    late = await Caller.join(server, "late")
    assert (await late.acquire("s", 1)).granted == ()
    assert (await late.acquire("another bucket", 1)).granted == ()
    assert outside.line() == ["b:1", "late:1"]


@in_asyncio
async def test_an_epoch_that_only_expired_is_no_loss(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    await a.acquire("s", 1)
    await a.release("s", 1)
    outside.client.delete(epoch_key("s"))
    b = await Caller.join(server, "b")
    assert (await b.acquire("s", 1)).granted == (1,)
    assert len(b.losses) == 0


@in_asyncio
async def test_an_epoch_that_vanishes_before_its_time_is_a_loss(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await a.acquire("s", 1)
    outside.client.delete(*outside.client.keys("semaphore:*"))
    assert (await a.acquire("s", 2)).granted == ()
    assert len(a.losses) == 1


@in_asyncio
async def test_an_epoch_that_was_evicted_is_a_loss(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    await a.acquire("s", 1)
    outside.client.config_set("maxmemory-policy", "allkeys-random")
    outside.client.config_set("maxmemory", 1)  # less than an empty server needs
    with pytest.raises(ServerUnreachableError):  # a full server does nothing at all
        await a.acquire("t", 1)
    assert outside.client.dbsize() == 0
    outside.client.config_set("maxmemory", 0)
    assert (await a.acquire("s", 2)).granted == ()
    assert len(a.losses) == 1


@in_asyncio
async def test_nothing_is_granted_under_another_life(server: RedisServer, outside: Outside) -> None:
    """A snapshot of another life is back, with the epoch that was true then."""
    a = await Caller.join(server, "a")
    await a.acquire("s", 1)
    await a.release("s", 1)
    snapshot = {key: outside.client.dump(key) for key in outside.client.keys("*")}
    server.kill()
    restarted = RedisServer(started_empty=False).start()
    try:
        look = Outside(restarted)
        for key, value in snapshot.items():
            look.client.restore(key, 60_000, value)
        b = await Caller.join(restarted, "b")
        assert (await b.acquire("s", 1)).granted == ()
        assert look.client.hget(epoch_key("s"), "life") == b.connection.state.run_id.encode()
    finally:
        restarted.remove()


@in_asyncio
async def test_forgetting_the_scripts_is_harmless(server: RedisServer, outside: Outside) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.acquire("s", 1)
    for _ in range(3):
        outside.client.script_flush()
        await b.acquire("s", 1)
        outside.client.script_flush()
        assert (await b.inspect("s")).limit == 1
        outside.client.script_flush()
        await a.renew("s", 1)
    outside.client.script_flush()
    await a.release("s", 1)
    assert outside.held() == ["b:1"]
    assert a.losses == b.losses == []


# Hello ------------------------------------------------------------------------------------------


def test_beginning_an_epoch_again_never_lengthens_the_wait(outside: Outside) -> None:
    source = scripts.script("begin_epoch")  # looked up now: mutants replace the function

    def begin(life: str, wait: int) -> int:
        left = outside.client.eval(source, 1, "epoch", life, 0, wait, 60_000, 1000)
        assert isinstance(left, int)
        return left

    assert 0 < begin("one life", 50_000) <= 50_000
    assert 0 < begin("one life", 90_000) <= 50_000
    assert 0 < begin("one life", 0) <= 50_000
    assert 50_000 < begin("the next life", 90_000) <= 90_000
    assert outside.client.hget("epoch", "life") == b"the next life"
    outside.client.hset("epoch", "from", 1)
    assert begin("the next life", 50_000) == 0
    assert outside.ttl(b"epoch") > 90_000


@in_asyncio
async def test_each_bucket_has_an_epoch_of_its_own(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    await a.acquire("s", 1)
    await a.acquire("t", 1)
    assert epoch_key("s") != epoch_key("t")
    assert outside.client.exists(epoch_key("s"), epoch_key("t")) == 2


@in_asyncio
async def test_an_epoch_in_use_is_kept(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    await a.acquire("s", 1)
    outside.client.hset(epoch_key("s"), "expires", 1)
    outside.client.pexpire(epoch_key("s"), 1000)
    await a.renew("s", 1)
    assert outside.ttl(epoch_key("s")) > 2 * ENDLESS_S * 1000


# The living, in the recovery wait ---------------------------------------------------------------


@in_asyncio
async def test_the_living_write_down_again_what_they_hold_above_the_limit_if_need_be(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.acquire("s", 1, 2, limit=3)
    await b.acquire("s", 1, limit=3)
    outside.client.flushall()
    for _ in range(2):
        assert (await a.renew("s", 1, 2, limit=2)).lost == ()
        assert (await b.renew("s", 1, limit=2)).lost == ()
    assert outside.held() == ["a:1", "a:2", "b:1"]


@in_asyncio
async def test_nothing_is_granted_until_the_claims_above_the_limit_are_gone(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.acquire("s", 1, 2, 3, limit=3)
    outside.client.flushall()
    await b.acquire("s", 1, limit=2)
    await a.renew("s", 1, 2, 3, limit=2)
    outside.end_recovery("s")
    for number in (1, 2):
        assert (await b.acquire("s", 1, limit=2)).granted == ()
        await a.release("s", number, limit=2)
    assert sorted(outside.held()) == ["a:3", "b:1"]


@in_asyncio
async def test_nothing_is_claimed_once_the_wait_is_over(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.acquire("s", 1)
    outside.client.flushall()
    await b.acquire("s", 1)
    outside.end_recovery("s")
    assert (await a.renew("s", 1)).lost == (1,)
    assert outside.held() == ["b:1"]


@in_asyncio
async def test_waiters_keep_their_node_s_order_over_a_loss(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await a.acquire("s", 1, 2, 3, 4)
    outside.client.flushall()
    await a.renew("s", 1)
    await a.acquire("s", 2, 3, 4)
    outside.end_recovery("s")
    for number in (1, 2, 3):
        assert (await a.release("s", number)).granted == (number + 1,)


@in_asyncio
async def test_a_claim_takes_the_permit_out_of_the_line(
    server: RedisServer, outside: Outside
) -> None:
    """An old snapshot may show as waiting what has been granted since."""
    a = await Caller.join(server, "a")
    await a.acquire("s", 1, 2)
    outside.client.hset(epoch_key("s"), "from", 2**52)
    assert (await a.renew("s", 2)).lost == ()
    assert sorted(outside.held()) == ["a:1", "a:2"]
    assert outside.line() == []
    await a.release("s", 1, 2)
    assert outside.in_use() == set()
