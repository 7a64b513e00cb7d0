"""Each life of a server: nothing is granted before all that was granted in the last one is over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from redis.exceptions import ResponseError

from semaphore_middleware import FairSemaphore, ServerRefusedError
from semaphore_middleware.core.observer import StoreLost
from semaphore_middleware.errors import ServerUnreachableError
from semaphore_middleware.redis import protocol, scripts
from semaphore_middleware.redis.connection import Address
from semaphore_middleware.redis.location import Server
from tests.support.nodes import (
    ENDLESS_S,
    KEYS,
    Caller,
    Outside,
    Recorder,
    eventually,
    in_asyncio,
)
from tests.support.servers import RedisServer, free_port


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
    assert (await a.take("s")).granted == 1
    assert a.losses == []


@in_asyncio
async def test_a_server_without_an_epoch_grants_nothing_for_the_recovery_wait(
    newborn: RedisServer,
) -> None:
    outside = Outside(newborn)
    a = await Caller.join(newborn, "a")
    reply = await a.take("s")
    assert reply.granted == 0
    assert reply.retry_in is not None
    assert 0 < reply.retry_in <= ENDLESS_S
    assert outside.queue() == ["a"]
    assert len(a.losses) == 1
    outside.end_recovery()
    assert (await a.renew("s")).granted == 1


@in_asyncio
async def test_a_node_that_knows_no_epoch_waits_on_a_server_that_may_have_lost_it(
    server: RedisServer, outside: Outside
) -> None:
    outside.client.flushall()
    a = await Caller.join(server, "a")
    assert a.losses == [ENDLESS_S]
    assert (await a.take("s")).granted == 0


@in_asyncio
async def test_the_server_s_age_does_not_count_towards_the_wait(newborn: RedisServer) -> None:
    """It is a difference of wall clocks, and a cold standby is old and empty."""

    async def has_run_for_seconds() -> bool:
        with newborn.client() as client:
            return int(client.info("server")["uptime_in_seconds"]) >= 2

    await eventually(has_run_for_seconds)
    a = await Caller.join(newborn, "a", recovery_wait=ENDLESS_S)
    assert a.losses == [ENDLESS_S]
    assert (await a.take("s")).granted == 0


@in_asyncio
async def test_the_wait_is_paid_once_and_not_by_each_node_or_site(newborn: RedisServer) -> None:
    outside = Outside(newborn)
    a = await Caller.join(newborn, "a")
    outside.end_recovery()
    b = await Caller.join(newborn, "b")
    assert (await b.take("s")).granted == (await b.take("t")).granted == 1
    assert (len(a.losses), len(b.losses)) == (1, 0)


@in_asyncio
async def test_a_flush_costs_one_wait_and_each_new_site_after_it_none(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    outside.client.flushall()
    assert (await a.take("s")).granted == 0
    outside.end_recovery()
    for i in range(3):
        assert (await a.take(f"new {i}")).granted == (await b.take(f"other {i}")).granted == 1
    late = await Caller.join(server, "late")
    assert (await late.take("newest")).granted == 1
    assert [len(node.losses) for node in (a, b, late)] == [1, 0, 0]


@in_asyncio
async def test_the_wait_ends_by_itself(newborn: RedisServer) -> None:
    a = await Caller.join(newborn, "a", recovery_wait=0.2)
    await a.take("s")

    async def granted() -> bool:
        return (await a.renew("s")).granted == 1

    await eventually(granted)


@pytest.mark.parametrize("command", ["FLUSHALL", "FLUSHDB"])
@in_asyncio
async def test_nothing_is_granted_after_the_data_was_thrown_away(
    server: RedisServer, outside: Outside, command: str
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s")
    outside.client.execute_command(command)
    assert (await b.take("s")).granted == 0
    late = await Caller.join(server, "late")
    assert (await late.take("s")).granted == 0
    assert (await late.take("another scope")).granted == 0
    assert outside.queue() == ["b", "late"]


@in_asyncio
async def test_that_a_server_was_started_empty_counts_for_its_first_epoch_alone(
    server: RedisServer, outside: Outside
) -> None:
    """A later life of the same process has lost what was granted since; its data may be there."""
    a = await Caller.join(server, "a")
    await a.take("s")
    outside.client.replicaof("127.0.0.1", free_port())
    outside.client.replicaof("NO", "ONE")
    b = await Caller.join(server, "b")
    assert b.losses == [ENDLESS_S]
    assert outside.client.dbsize() == 2, "no key but the epoch and the scope"


@in_asyncio
async def test_a_mark_of_another_process_says_nothing(
    server: RedisServer, outside: Outside
) -> None:
    """As an append-only file brings it back."""
    outside.client.hset(KEYS.epoch, "started_empty", "f" * 40)
    assert (await Caller.join(server, "a")).losses == [ENDLESS_S]


@in_asyncio
async def test_a_mark_of_one_prefix_says_nothing_of_another(server: RedisServer) -> None:
    seen = Recorder()
    async with FairSemaphore(server.url, prefix="other", observers=[seen]):
        assert seen.count(StoreLost) == 1


@in_asyncio
async def test_a_node_from_another_life_never_shortens_the_wait(server: RedisServer) -> None:
    """Where it comes from it may hold permits, also if this server was started empty."""
    before = RedisServer().start()
    try:
        a = await Caller.join(before, "a", recovery_wait=ENDLESS_S)
        await a.take("s")
        a.move_to(server)
        await a.connect()
        assert a.losses == [ENDLESS_S]
        b = await Caller.join(server, "b", recovery_wait=0)
        assert (await b.take("s")).granted == 0
        assert (await a.renew("s")).status == "ok"
    finally:
        before.remove()


@in_asyncio
async def test_an_epoch_that_vanishes_is_a_loss(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    await a.take("s")
    outside.client.delete(KEYS.epoch)
    assert (await a.take("s", limit=2)).granted == 1
    assert outside.waiting() == {"a": 1}
    assert len(a.losses) == 1


@in_asyncio
async def test_keys_that_were_evicted_are_a_loss(server: RedisServer, outside: Outside) -> None:
    outside.client.config_set("maxmemory-policy", "allkeys-random")
    outside.client.config_set("maxmemory", 10**9)
    a = await Caller.join(server, "a")
    await a.take("s")
    outside.client.config_set("maxmemory", 1)  # less than an empty server needs
    with pytest.raises(ServerUnreachableError):  # a full server does nothing at all
        await a.take("t")
    assert outside.client.dbsize() == 0
    outside.client.config_set("maxmemory", 10**9)
    assert (await a.take("s")).granted == 1, "the one that it has"
    assert outside.waiting() == {"a": 1}
    assert len(a.losses) == 1


@in_asyncio
async def test_one_evicted_key_is_a_loss_though_the_epoch_is_still_there(
    server: RedisServer, outside: Outside
) -> None:
    outside.client.config_set("maxmemory-policy", "volatile-ttl")  # which spares the epoch
    outside.client.config_set("maxmemory", 10**9)
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s")
    epoch = outside.client.hget(KEYS.epoch, "id")
    outside.client.config_set("maxmemory", 1)
    with pytest.raises(ResponseError):
        outside.client.set("x", 1)
    assert outside.client.exists(KEYS.epoch)
    assert outside.held() == {}
    outside.client.config_set("maxmemory", 10**9)
    assert (await b.take("s")).granted == 0, "a holds a permit that the server has forgotten"
    assert outside.client.hget(KEYS.epoch, "id") != epoch
    assert (await a.renew("s")).status == "ok"
    assert outside.held() == {"a": 1}


@in_asyncio
async def test_nothing_is_granted_under_another_life(server: RedisServer, outside: Outside) -> None:
    """A snapshot of another life is back, with the epoch that was true then."""
    a = await Caller.join(server, "a")
    await a.take("s")
    await a.give_back("s")
    snapshot_life = outside.client.hget(KEYS.epoch, "life")
    snapshot = {key: outside.client.dump(key) for key in outside.client.keys("{semaphore}:*")}
    server.kill()
    restarted = RedisServer(started_empty=False).start()
    try:
        look = Outside(restarted)
        for key, value in snapshot.items():
            look.client.restore(key, 0, value)
        b = await Caller.join(restarted, "b")
        assert (await b.take("s")).granted == 0
        assert look.client.hget(KEYS.epoch, "life") != snapshot_life
        assert look.client.hget(KEYS.epoch, "id") != a.recovery.epoch
    finally:
        restarted.remove()


@in_asyncio
async def test_a_server_that_was_a_replica_for_a_while_is_in_another_life(
    server: RedisServer, outside: Outside
) -> None:
    """The connection lives on: a node looks before it renews."""
    a = await Caller.join(server, "a")
    await a.take("s")
    assert not await a.recovery.join_epoch(a.connection)
    outside.client.replicaof("127.0.0.1", free_port())
    outside.client.replicaof("NO", "ONE")
    assert await a.recovery.join_epoch(a.connection)
    assert len(a.losses) == 1
    await a.begin_epoch()
    assert (await a.take("s", 1, limit=2)).granted == 1, "the one that it has"
    assert outside.held() == {"a": 1}


@in_asyncio
async def test_a_server_that_lacks_the_scripts_is_looked_at_before_it_gets_them(
    server: RedisServer,
) -> None:
    """It may be a promoted replica that a proxy leads to without notice: it has heard of the epoch,
    but not of the last grants.
    """
    a = await Caller.join(server, "a")
    replica = RedisServer(started_empty=False).start()
    try:
        with server.client() as old, replica.client() as new:
            new.restore(KEYS.epoch, 0, old.dump(KEYS.epoch))
        a.connection = await Server(replica.url, 5.0).connect()
        assert await a.send(a.statement("s", asked=1)) is None
        assert a.losses == [ENDLESS_S]
    finally:
        replica.remove()


@in_asyncio
async def test_a_master_that_becomes_a_replica_under_a_connection_is_left(
    server: RedisServer, outside: Outside
) -> None:
    """One that takes writes all the same: what is written there is lost."""
    a = await Caller.join(server, "a")
    outside.client.config_set("replica-read-only", "no")
    outside.client.replicaof("127.0.0.1", free_port())
    with pytest.raises(ServerUnreachableError, match="this is a replica"):
        await a.recovery.join_epoch(a.connection)
    assert not a.connection.is_open


@pytest.mark.parametrize(
    ("policy", "maxmemory", "evicts"),
    [("noeviction", 10**9, False), ("allkeys-lru", 0, False), ("allkeys-lru", 10**9, True)],
)
@in_asyncio
async def test_a_server_that_may_evict_keys_and_has_a_bound_is_in_another_life(
    server: RedisServer, outside: Outside, policy: str, maxmemory: int, evicts: bool
) -> None:
    a = await Caller.join(server, "a")
    outside.client.config_set("maxmemory", maxmemory)
    outside.client.config_set("maxmemory-policy", policy)
    assert await a.recovery.join_epoch(a.connection) == evicts


@in_asyncio
async def test_one_crawl_s_wait_on_a_flushed_server_is_enough_for_all(
    server: RedisServer, outside: Outside
) -> None:
    outside.client.flushall()
    await Caller.join(server, "patient", recovery_wait=0)
    hasty = await Caller.join(server, "hasty", recovery_wait=ENDLESS_S)
    assert hasty.losses == []
    assert (await hasty.take("s")).granted == 1


@in_asyncio
async def test_a_statement_in_one_round_trip_with_a_look_is_of_the_life_before(
    server: RedisServer, outside: Outside
) -> None:
    """As behind a proxy that moves a connection to a replica, which has the epoch of its master."""
    a = await Caller.join(server, "a", recovery_wait=0)
    assert await a.store.sync(a.connection, [a.statement("s", asked=1)], look=True) is not None
    outside.client.hset(KEYS.epoch, "life", "the master's")
    epoch = a.recovery.epoch
    assert await a.store.sync(a.connection, [a.statement("t", asked=1)], look=True) is None
    assert a.recovery.epoch != epoch
    assert outside.held("t") == outside.waiting("t") == {}


@in_asyncio
async def test_a_look_finds_another_life_also_where_nothing_is_said_and_no_script_is_known(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a", recovery_wait=0)
    assert await a.store.sync(a.connection, [], look=True) == []
    for flush in (lambda: None, outside.client.script_flush):
        outside.client.hset(KEYS.epoch, "life", "another")
        flush()
        assert await a.store.sync(a.connection, [], look=True) is None


@in_asyncio
async def test_a_look_asks_whether_the_master_was_replaced(server: RedisServer) -> None:
    may_answer = asyncio.Event()

    async def find_master() -> Address:
        await may_answer.wait()
        return Address("elsewhere")

    a = await Caller.join(server, "a")
    a.connection.find_master = find_master
    assert await a.store.sync(a.connection, [a.statement("s", asked=1)]) is not None
    assert a.connection._search is None
    assert await a.store.sync(a.connection, [a.statement("s", asked=1)], look=True) is not None
    assert a.connection._search is not None
    may_answer.set()
    await a.connection._search
    assert not a.connection.is_open


@in_asyncio
async def test_forgetting_the_scripts_is_harmless(server: RedisServer, outside: Outside) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s")
    await b.take("s")
    for _ in range(3):
        outside.client.script_flush()
        await b.renew("s")
        outside.client.script_flush()
        assert (await b.inspect("s")).limit == 1
        outside.client.script_flush()
        await a.renew("s")
    outside.client.script_flush()
    await a.give_back("s")
    assert outside.held() == {"b": 1}
    assert a.losses == b.losses == []


# The epoch --------------------------------------------------------------------------------------


def begin(outside: Outside, id: str, wait: int, version: str = "v") -> tuple[str, int]:
    """Its id, and for how many milliseconds nothing is granted."""
    source = scripts.script("begin_epoch")  # looked up now: mutants replace the function
    head = protocol.pack_head(15.0)
    reply = outside.client.eval(source, 2, "epoch", "rules", head, id, version, wait, wait, 0)
    epoch, known, left, _ = reply
    assert epoch == b"" or known == version.encode()
    return epoch.decode(), left


def test_beginning_an_epoch_again_never_lengthens_the_wait(outside: Outside) -> None:
    first = begin(outside, "1", 50_000)
    assert first[0] == "1"
    assert 0 < first[1] <= 50_000
    for wait in (90_000, 0):
        again = begin(outside, "2", wait)
        assert again[0] == "1", "it is the same epoch"
        assert 0 < again[1] <= 50_000
    outside.client.hset("epoch", "life", "an earlier one")
    following = begin(outside, "3", 90_000)
    assert following[0] == "3"
    assert 50_000 < following[1] <= 90_000
    assert outside.client.hget("epoch", "life") != b"an earlier one"
    outside.client.hset("epoch", "from", 1)
    assert begin(outside, "4", 50_000) == ("3", 0)


@in_asyncio
async def test_each_epoch_has_an_id_of_its_own(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    ids = set()
    for _ in range(3):
        ids.add(a.recovery.epoch)
        outside.client.delete(KEYS.epoch)
        await a.begin_epoch()
    assert len(ids) == 3


@in_asyncio
async def test_an_epoch_does_not_expire(server: RedisServer, outside: Outside) -> None:
    """So that its wait is paid once in a server's life."""
    a = await Caller.join(server, "a")
    await a.take("s")
    await a.renew("s")
    await a.give_back("s")
    assert outside.ttl(KEYS.epoch) == -1


@in_asyncio
async def test_the_rules_are_known_in_a_new_epoch(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    await a.admin.configure("s", 3)
    outside.client.delete(KEYS.epoch)
    await a.begin_epoch()
    outside.end_recovery()
    assert (await a.take("s", 5)).granted == 3


# An operator vouches that nothing can be held ----------------------------------------------------


@in_asyncio
async def test_trust_ends_the_wait_at_once_and_for_all(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    outside.client.flushall()
    for node in (a, b):
        assert (await node.take("s", limit=2)).granted == 0
    await a.admin.trust()
    for node in (b, a):
        assert (await node.renew("s", limit=2)).granted == 1
    late = await Caller.join(server, "late")
    assert (await late.take("t")).granted == 1
    assert late.losses == []


@in_asyncio
async def test_trust_begins_an_epoch_without_a_wait_where_nobody_has_begun_one(
    newborn: RedisServer,
) -> None:
    outside = Outside(newborn)
    a = Caller(newborn, "a")
    await a.admin.trust()
    await a.connect()
    assert (await a.take("s")).granted == 1
    assert a.losses == []
    assert outside.ttl(KEYS.epoch) == -1


@in_asyncio
async def test_trust_keeps_what_the_living_have_claimed(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s")
    outside.client.flushall()
    await a.renew("s")
    await b.take("s")
    await a.admin.trust()
    assert (await b.renew("s")).granted == 0
    assert (await a.give_back("s")).status == "ok"
    assert (await b.renew("s")).granted == 1


@in_asyncio
async def test_after_trust_a_later_loss_costs_a_wait_again(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await a.admin.trust()
    outside.client.flushall()
    assert (await a.take("s")).granted == 0


@in_asyncio
async def test_trust_does_not_let_two_versions_of_the_protocol_share_a_server(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    outside.client.hset(KEYS.epoch, "version", "1")
    before = outside.dump()
    with pytest.raises(ServerRefusedError, match="another version"):
        await a.admin.trust()
    assert outside.dump() == before


# Other versions of the protocol -----------------------------------------------------------------


@in_asyncio
async def test_a_node_of_another_version_is_refused_with_one_clear_line(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await a.take("s")
    outside.client.hset(KEYS.epoch, "version", "1")
    before = outside.dump()
    with pytest.raises(ServerRefusedError) as refused:
        await Caller.join(server, "b")
    said = str(refused.value)
    assert f"protocol 1, this node speaks {protocol.VERSION}" in said
    assert "\n" not in said
    with pytest.raises(ServerRefusedError):
        await FairSemaphore(server.url).open()
    assert outside.dump() == before


@in_asyncio
async def test_a_server_that_another_version_no_longer_uses_is_taken_over(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a", lease=15)
    outside.client.hset(KEYS.epoch, "version", "1")
    with pytest.raises(ServerRefusedError):
        await Caller.join(server, "b", lease=15)
    outside.client.hincrbyfloat(KEYS.epoch, "wall", -4 * 15_000 - 1)
    b = await Caller.join(server, "b", lease=15)
    assert b.recovery.epoch != a.recovery.epoch
    assert outside.client.hget(KEYS.epoch, "version") == protocol.VERSION.encode()
    assert await a.send(a.statement("s", asked=1)) is None, "it learns of the new epoch"


# The living, in the recovery wait ---------------------------------------------------------------


@in_asyncio
async def test_the_living_write_down_again_what_they_hold_above_the_limit_if_need_be(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s", 2, limit=3)
    await b.take("s", limit=3)
    outside.client.flushall()
    for _ in range(2):
        assert (await a.renew("s", limit=2)).status == "ok"
        assert (await b.renew("s", limit=2)).status == "ok"
    assert outside.held() == {"a": 2, "b": 1}


@in_asyncio
async def test_nothing_is_granted_until_the_claims_above_the_limit_are_gone(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s", 3, limit=3)
    outside.client.flushall()
    await b.take("s", limit=2)
    await a.renew("s", limit=2)
    outside.end_recovery()
    for _ in range(2):
        assert (await b.renew("s", limit=2)).granted == 0
        await a.give_back("s", limit=2)
    assert outside.held() == {"a": 1, "b": 1}


@in_asyncio
async def test_nothing_is_claimed_once_the_wait_is_over(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s")
    outside.client.flushall()
    await b.take("s")
    outside.end_recovery()
    assert (await a.renew("s")).status == "lost"
    await b.renew("s")
    assert outside.held() == {"b": 1}


@in_asyncio
async def test_a_claim_may_grow_in_the_wait(server: RedisServer, outside: Outside) -> None:
    """An old snapshot may know of fewer permits than were granted since."""
    a = await Caller.join(server, "a")
    await a.take("s", 2)
    outside.client.hset(KEYS.epoch, "from", 2**52)
    assert (await a.say("s", believed=2)).status == "ok"
    assert outside.held() == {"a": 2}
    assert outside.queue() == []


@in_asyncio
async def test_what_was_said_in_an_earlier_epoch_is_not_heard_in_this_one(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await a.take("s")
    early = a.statement("s", 3, asked=3)
    earlier_epoch = a.recovery.epoch
    outside.client.flushall()
    await a.renew("s")
    term = a.book("s").term
    assert term > early.term
    a.recovery.epoch, epoch = earlier_epoch, a.recovery.epoch
    assert await a.send(early) is None
    a.recovery.epoch = epoch
    assert outside.held() == {"a": 1}
    assert outside.waiting() == {}


@in_asyncio
async def test_nothing_is_granted_on_a_server_without_an_epoch_even_by_evicting(
    server: RedisServer, outside: Outside
) -> None:
    a, dead = await Caller.join(server, "a"), await Caller.join(server, "dead")
    await dead.take("s")
    await a.take("s")
    outside.client.delete(KEYS.epoch)
    await a.admin.evict("dead")
    assert outside.held().get("a") is None
    assert outside.told() == []
