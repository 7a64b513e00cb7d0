"""A new incarnation of a server grants nothing before all permits of the last one have ended."""

from collections.abc import Callable, Iterator

import pytest
from redis.exceptions import ResponseError

from semaphore_middleware import FairSemaphore, ServerRefusedError
from semaphore_middleware.core import calls, protocol
from semaphore_middleware.core.observer import StoreLost
from semaphore_middleware.core.scripts import BEGIN_EPOCH
from semaphore_middleware.errors import ServerUnreachableError
from semaphore_middleware.model.feedback import Feedback, FeedbackSummary
from tests.support.crawls import Log
from tests.support.nodes import KEYS, Caller, Outside, Recorder
from tests.support.servers import RedisServer, free_port
from tests.support.times import ENDLESS_S


@pytest.fixture
def newborn() -> Iterator[RedisServer]:
    """A server that has just started; nobody knows what the one before it had granted."""
    with RedisServer(started_empty=False) as server:
        yield server


async def test_a_server_that_was_started_empty_grants_at_once_and_no_other(
    server: RedisServer, outside: Outside, newborn: RedisServer, caplog: Log
) -> None:
    """The age of a server proves nothing: it is a difference of wall clocks."""
    a = await Caller.join(server, "a")
    assert (await a.take("s")).granted == 1
    assert a.losses == []
    seen = Recorder()
    async with FairSemaphore(server.url, prefix="other", observers=[seen]):
        assert "(prefix 'other'). No permit is granted" in caplog.text, "the mark is of one prefix"
        assert seen.count(StoreLost) == 0, "it may be new"
    outside.client.delete(KEYS.epoch)
    outside.client.hset(KEYS.epoch, "started_empty", "f" * 40)  # as a file restores it
    assert (await Caller.join(server, "b")).losses == [ENDLESS_S]
    assert (await Caller.join(newborn, "c")).losses == [ENDLESS_S]


def be_a_replica_for_a_while(outside: Outside) -> None:
    """A wait so short that no node notices it."""
    with outside.client.pipeline(transaction=False) as at_once:
        at_once.execute_command("REPLICAOF", "127.0.0.1", free_port())
        at_once.execute_command("REPLICAOF", "NO", "ONE")
        at_once.execute()


def be_in_another_incarnation(outside: Outside) -> None:
    """As a snapshot brings it back."""
    outside.client.hset(KEYS.epoch, "life", "another")


def evict_all(outside: Outside) -> None:
    """All keys that may be; "volatile-ttl" spares the epoch."""
    outside.client.config_set("maxmemory", 1)
    with pytest.raises(ResponseError):
        outside.client.set("x", 1)
    outside.client.config_set("maxmemory", 10**9)
    assert outside.held() == {}


@pytest.mark.parametrize(
    "lose",
    [
        lambda outside: outside.client.flushall(),
        lambda outside: outside.client.execute_command("FLUSHDB"),
        lambda outside: outside.client.delete(KEYS.epoch),
        *(be_a_replica_for_a_while, be_in_another_incarnation, evict_all),
    ],
    ids=["flushall", "flushdb", "epoch", "replica", "snapshot", "eviction"],
)
async def test_each_loss_of_data_costs_one_wait_in_which_the_living_keep_what_they_hold(
    server: RedisServer, outside: Outside, lose: Callable[[Outside], None]
) -> None:
    outside.client.config_set("maxmemory-policy", "volatile-ttl")
    outside.client.config_set("maxmemory", 10**9)
    a, b = [await Caller.join(server, name) for name in "ab"]
    await a.admin.configure("ruled", 3)
    await a.take("s", 2, limit=2)
    epoch = a.recovery.epoch
    await a.recovery.join_epoch(a.connection)
    assert a.recovery.epoch == epoch
    lose(outside)
    if lose in (be_a_replica_for_a_while, be_in_another_incarnation):
        await b.begin_epoch()  # only a check finds it
    assert (await b.take("s", limit=2)).granted == 0
    for _ in range(2):
        assert (await a.renew("s", limit=1)).status == "ok", "above the limit if need be"
    outside.end_recovery()
    assert (outside.held(), (await b.renew("s")).granted) == ({"a": 2}, 0)
    await a.give_back("s", 2, limit=1)
    assert outside.held() == {"b": 1}
    after = await Caller.join(server, "after")
    assert [len(caller.losses) for caller in (a, b, after)] == [1, 1, 0]
    rules = {rule.name for rule in await a.admin.rules()}
    granted = (await a.take("ruled", 9, limit=9)).granted
    assert granted == (3 if rules else 9), "the rules are known in a new epoch"


async def test_a_site_that_refused_waits_as_others(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    await a.take("s")
    await a.give_back("s", feedback=FeedbackSummary.of([(Feedback(refused=True), 0.0)]))
    outside.end_backoff()
    be_in_another_incarnation(outside)
    await a.begin_epoch()
    assert (await a.take("s")).granted == 0


async def test_without_an_epoch_nothing_is_granted(server: RedisServer, outside: Outside) -> None:
    a, dead = await Caller.join(server, "a"), await Caller.join(server, "dead")
    await dead.take("s")
    await a.take("s")
    outside.client.delete(KEYS.epoch)
    await a.admin.evict("dead")
    assert outside.held().get("a") is None
    assert outside.notified() == []


async def test_a_full_server_that_evicts_is_left(server: RedisServer, outside: Outside) -> None:
    for policy, maxmemory, evicts in (
        *(("noeviction", 10**9, False), ("allkeys-lru", 0, False)),
        ("allkeys-random", 10**9, True),
    ):
        a = await Caller.join(server, "a")
        outside.client.config_set("maxmemory", maxmemory)
        outside.client.config_set("maxmemory-policy", policy)
        epoch = a.recovery.epoch
        await a.recovery.join_epoch(a.connection)
        assert (a.recovery.epoch != epoch) == evicts
    outside.end_recovery()
    await a.take("s")
    outside.client.config_set("maxmemory", 1)  # less than an empty server needs
    with pytest.raises(ServerUnreachableError):
        await a.take("t")
    assert outside.client.dbsize() == 0
    outside.client.config_set("maxmemory", 10**9)
    await a.renew("s")
    assert outside.held() == {"a": 1}


@pytest.mark.parametrize(("policy", "lines"), [("volatile-ttl", 2), ("noeviction", 1)])
async def test_a_server_that_goes_on_losing_data_is_logged_once_a_minute(
    server: RedisServer, outside: Outside, caplog: Log, policy: str, lines: int
) -> None:
    outside.client.config_set("maxmemory-policy", policy)
    outside.client.config_set("maxmemory", 10**9)
    a = await Caller.join(server, "a")
    caplog.clear()
    a.recovery._log_losses_at = 0.0
    for times in (1, 2):
        for _ in range(9):
            be_in_another_incarnation(outside)
            await a.begin_epoch()
        assert len(caplog.messages) == times * lines
        assert ("No permit is granted while it evicts keys" in caplog.text) == (
            policy != "noeviction"
        )
        a.recovery._log_losses_at -= calls.LOSSES_INTERVAL_S
    assert len(a.losses) == 18


async def test_a_master_that_turns_replica_is_left(server: RedisServer, outside: Outside) -> None:
    """A replica that accepts writes, which are lost."""
    a = await Caller.join(server, "a")
    outside.client.config_set("replica-read-only", "no")
    outside.client.replicaof("127.0.0.1", free_port())
    with pytest.raises(ServerUnreachableError, match="this is a replica"):
        await a.recovery.join_epoch(a.connection)
    assert not a.connection.is_open


async def test_a_check_finds_another_incarnation(server: RedisServer, outside: Outside) -> None:
    """As behind a proxy that moves a connection to a replica, which has the epoch of its master."""
    a = await Caller.join(server, "a", recovery_wait=0)
    assert await a.store.sync(a.connection, [], check=True) == []
    assert (
        await a.store.sync(a.connection, [a.next_update("s", requested=1)], check=True) is not None
    )
    for updates in ([], [a.next_update("t", requested=1)]):
        for flush in (lambda: None, outside.client.script_flush):
            epoch = a.recovery.epoch
            be_in_another_incarnation(outside)
            flush()
            assert await a.store.sync(a.connection, updates, check=True) is None
            assert a.recovery.epoch != epoch
    # without a check: it is seen, as this server lacks the scripts
    be_in_another_incarnation(outside)
    outside.client.script_flush()
    assert await a.store.sync(a.connection, [a.next_update("t", requested=1)]) is None
    assert outside.held("t") == outside.waiting("t") == {}


def test_beginning_an_epoch_again_never_lengthens_the_wait(outside: Outside) -> None:
    source, head = BEGIN_EPOCH.source, protocol.pack_head(15.0)
    hour = 3_600_000
    keys = ("epoch", "rules", "index")

    def begin(id: str, wait: int) -> tuple[bytes, int]:
        """Its id, and for how many milliseconds nothing is granted."""
        reply = outside.client.eval(source, 3, *keys, head, id, "v", wait, wait, "", "")
        return reply[0], reply[2]

    for id, wait, begun, left in (
        *(("1", hour, b"1", hour), ("2", 2 * hour, b"1", hour), ("2", 0, b"1", hour)),
        ("3", 2 * hour, b"3", 2 * hour),
    ):
        if id == "3":
            outside.client.hset("epoch", "life", "an earlier one")
        seen = begin(id, wait)
        assert seen[0] == begun
        assert left - hour / 2 < seen[1] <= left
    outside.client.hset("epoch", "from", 1)
    assert begin("4", hour) == (b"3", 0)


async def test_trust_ends_the_wait_for_all(server: RedisServer, outside: Outside) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    await a.take("s")
    outside.client.flushall()
    await a.renew("s")
    for node in (a, b):
        assert (await node.take("t", limit=2)).granted == 0
    await a.admin.trust()
    for node in (b, a):
        assert (await node.renew("t", limit=2)).granted == 1
    assert (await b.take("s")).granted == 0, "what the living have claimed is kept"
    outside.client.flushall()
    assert (await b.take("v")).granted == 0, "until the next loss"
    outside.client.delete(KEYS.epoch)
    await a.admin.trust()  # where nobody has begun an epoch
    assert (await Caller.join(server, "late")).losses == []
    assert outside.ttl(KEYS.epoch) == -1


async def test_another_version_is_refused(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a", lease=15)
    await a.take("s")
    outside.client.hset(KEYS.epoch, "version", "1")
    before = outside.dump()
    for join in (FairSemaphore(server.url).open, a.admin.trust, Caller(server.url, "b").connect):
        with pytest.raises(ServerRefusedError) as refused:
            await join()
        said = str(refused.value)
        assert f"protocol 1, this node uses {protocol.VERSION}" in said
        assert "\n" not in said
    assert outside.dump() == before
    # Once no node of the other version has called for four leases, it is taken over.
    outside.client.hincrbyfloat(KEYS.epoch, "wall", -4 * 15_000 - 1)
    b = await Caller.join(server, "b", lease=15)
    assert b.recovery.epoch != a.recovery.epoch
    assert outside.client.hget(KEYS.epoch, "version") == protocol.VERSION.encode()
    assert await a.send(a.next_update("s", requested=1)) is None, "it learns of the new epoch"
