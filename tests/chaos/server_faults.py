"""What happens to the server and its data."""

from __future__ import annotations

import asyncio
import shutil
import time

from tests.chaos.fault import HOUR_S, fault
from tests.chaos.network_faults import drop_connections
from tests.chaos.proxy import Proxy, Way
from tests.chaos.world import Setup, World
from tests.support.servers import RedisServer

APPEND_ONLY = ("--appendonly", "yes", "--appendfsync", "always")
JUNK = b"x" * 20_000
BRIEF_JUMP_S = 20.0  # longer than a lease, shorter than most keys live
MARK = "{semaphore}-mark"  # a key beside those of the nodes: what befalls it, befalls these
FULL = 200  # pieces of junk: then the server has no memory left
EVICTED = "__keyevent@0__:evicted"  # the channel on which a server tells which keys it evicts


# What is done to servers, with the proof that it was done ---------------------------------------


async def mark(world: World, text: str) -> None:
    """Write something, to see later whether the server has it."""
    await world.command("SET", MARK, text)


async def prove_mark(world: World, text: str | None) -> None:
    """What the server has shows which writes it has; None: it has lost all."""
    found = await world.command("GET", MARK)
    world.prove(f"the server has {text or 'nothing'}", found == (text.encode() if text else None))


async def set_clock(world: World, seconds: float) -> None:
    """Set the server's clock so far off the true time."""
    assert world.clock
    world.clock.jump(seconds)
    await prove_clock(world, seconds)


async def prove_clock(world: World, seconds: float) -> None:
    """What time the server has shows how far off it is."""
    its_time, _ = await world.command("TIME")
    off = its_time - time.time()
    world.prove(f"the server's clock is {seconds:+.0f} s off", abs(off - seconds) < 2)


async def follow(world: World, replica: RedisServer, master: RedisServer) -> Proxy:
    """Let a server follow another one until it is in step. The proxy has the stream of writes."""
    stream = await world.proxy_of(master)
    await world.command("CONFIG", "SET", "repl-diskless-sync-delay", 0, at=master)
    await world.command("REPLICAOF", stream.address, stream.port, at=replica)

    async def in_step() -> bool:
        return bool((await world.info("replication", at=replica))["master_link_status"] == "up")

    await world.sees(in_step, "a replica in step")
    return stream


async def mark_both(world: World, replica: RedisServer, text: str) -> None:
    """Write something to the server, and wait until its replica has it."""
    await mark(world, text)

    async def has_it() -> bool:
        return bool(await world.command("GET", MARK, at=replica) == text.encode())

    await world.sees(has_it, "a replica to hear of a write")


async def lag(world: World, replica: RedisServer, stream: Proxy) -> None:
    """Hold back what the server writes, for good."""
    await mark_both(world, replica, "what was before the lag")
    stream.cut(frozenset({Way.REPLIES}))
    await mark(world, "what the replica never hears of")
    await world.more(world.dice.randint(100, 500))
    await world.transfers_under_way()
    written = (await world.info("replication"))["master_repl_offset"]
    heard = (await world.info("replication", at=replica))["slave_repl_offset"]
    world.prove(f"the replica lacks {written - heard} bytes", heard < written)


async def promote(world: World, replica: RedisServer) -> None:
    """Make a replica the master, to which nodes come when they connect anew."""
    await world.command("REPLICAOF", "NO", "ONE", at=replica)
    world.use(replica)
    is_master = (await world.info("replication"))["role"] == "master"
    world.prove("the replica was promoted", is_master)


async def change_places(world: World, replica: RedisServer) -> None:
    """Promote a replica, and let the master follow it. Nodes hear of it when the master refuses a
    call.
    """
    before = {node: node.proxy.accepted for node in world.living}
    master = world.server
    await promote(world, replica)
    await follow(world, master, replica)

    def have_moved() -> bool:
        return all(node.proxy.accepted > accepted for node, accepted in before.items())

    await world.eventually(have_moved, "all nodes to go to the new master")


async def let_evict(world: World) -> None:
    """Let the server throw keys away when it is full, which it soon is."""
    used = (await world.info("memory"))["used_memory"]
    await world.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    await world.command("CONFIG", "SET", "maxmemory", used + FULL * len(JUNK))


async def fill(world: World) -> None:
    """Others fill the server until it has thrown away keys of ours; then they remove their own."""
    evicted = await asyncio.to_thread(
        _fill, world.server, time.monotonic() + world.plan.wait_timeout_s
    )
    ours = sum(key.startswith("{semaphore}") for key in evicted)
    world.prove(f"{len(evicted)} keys were evicted, {ours} of them ours", ours)


def _fill(server: RedisServer, deadline: float) -> list[str]:
    """The keys that were evicted."""
    evicted: list[str] = []
    names = [f"junk-{number}" for number in range(2 * FULL)]
    with server.client(decode_responses=True) as client, client.pubsub() as told:
        client.config_set("notify-keyspace-events", "Ee")
        told.subscribe(EVICTED)
        while not any(key.startswith("{") for key in evicted) and time.monotonic() < deadline:
            # At once: what was not used for a second would be thrown away first.
            with client.pipeline(transaction=False) as together:
                for name in names:
                    together.set(name, JUNK)
                together.execute()
            client.delete(*names)
            while message := told.get_message(timeout=0.1):
                evicted += [message["data"]] if message["type"] == "message" else []
    return evicted


# The faults -------------------------------------------------------------------------------------


@fault()
async def server_killed_and_back_empty(world: World) -> None:
    await mark(world, "data")
    await world.restart_server(world.dice.uniform(0, 1.5))
    await prove_mark(world, None)
    await world.recovers_from_loss()


@fault()
async def server_back_with_an_old_snapshot(world: World) -> None:
    await mark(world, "the snapshot")
    await world.command("SAVE")
    await mark(world, "what came after the snapshot")
    await world.more(world.dice.randint(100, 500))
    await world.restart_server(world.dice.uniform(0, 1.5))
    await prove_mark(world, "the snapshot")
    await world.recovers_from_loss()


@fault(Setup(server_options=APPEND_ONLY))
async def server_back_with_an_old_append_only_file(world: World) -> None:
    await mark(world, "the old file")
    kept, old = world.server.directory / "appendonlydir", world.server.directory / "old"
    await asyncio.to_thread(shutil.copytree, kept, old)
    await mark(world, "what came after the old file")
    await world.more(world.dice.randint(100, 500))

    def put_back() -> None:
        shutil.rmtree(kept)
        old.rename(kept)

    await world.restart_server(world.dice.uniform(0, 1.5), put_back)
    await prove_mark(world, "the old file")
    await world.recovers_from_loss()


@fault(Setup(server_options=APPEND_ONLY))
async def server_killed_and_back_with_its_data(world: World) -> None:
    await mark(world, "all data")
    await world.restart_server(world.dice.uniform(0, 1.5))
    await prove_mark(world, "all data")
    await world.recovers_from_loss()


@fault()
async def flushall(world: World) -> None:
    await _flush(world, "FLUSHALL")


@fault()
async def flushdb(world: World) -> None:
    await _flush(world, "FLUSHDB")


async def _flush(world: World, command: str) -> None:
    await mark(world, "data")
    await world.command(command)
    await prove_mark(world, None)
    await world.recovers_from_loss()


@fault()
async def epochs_deleted(world: World) -> None:
    world.prove("an epoch was deleted", await world.command("DEL", "{semaphore}:epoch"))
    await world.recovers_from_loss()


@fault()
async def keys_evicted(world: World) -> None:
    """Others fill the server, and it throws away keys, ours too."""
    await let_evict(world)
    await world.command("CLIENT", "KILL", "TYPE", "normal")  # nodes look at this as they connect
    await world.some_time(0.3, 0.6)
    await fill(world)
    await world.recovers_from_loss()
    await world.command("CONFIG", "SET", "maxmemory", 0)


@fault()
async def eviction_turned_on_live(world: World) -> None:
    """Nodes look at this as they renew, every 0.3 of a lease."""
    await let_evict(world)
    await world.some_time(0.6, 1)
    await fill(world)
    await world.recovers_from_loss()
    await world.command("CONFIG", "SET", "maxmemory", 0)


@fault()
async def all_keys_evicted(world: World) -> None:
    await mark(world, "data")
    await world.command("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
    await world.command("CONFIG", "SET", "maxmemory", 1)

    async def is_empty() -> bool:
        return not await world.command("DBSIZE")

    await world.sees(is_empty, "a server without keys")
    await world.command("CONFIG", "SET", "maxmemory", 0)
    await prove_mark(world, None)
    world.prove("keys were evicted", (await world.info("stats"))["evicted_keys"])
    await world.recovers_from_loss()


@fault()
async def failover_to_a_replica(world: World) -> None:
    replica = await world.start_server()
    await follow(world, replica, world.server)
    await mark_both(world, replica, "all data")
    world.server.kill()
    await world.some_time(0, 1.5)
    await promote(world, replica)
    await prove_mark(world, "all data")
    await drop_connections(world, *world.living)  # as whoever redirects the name does
    await world.recovers_from_loss()


@fault()
async def failover_to_a_replica_that_lags(world: World) -> None:
    """What the master has granted in the meantime, the replica has never heard of."""
    replica = await world.start_server()
    await lag(world, replica, await follow(world, replica, world.server))
    world.server.kill()
    await promote(world, replica)
    await prove_mark(world, "what was before the lag")
    await drop_connections(world, *world.living)
    await world.recovers_from_loss()


@fault()
async def failover_and_back(world: World) -> None:
    """As an operator does it: the first master follows the second, and takes its place again."""
    replica = await world.start_server()
    await follow(world, replica, world.server)
    await _fail_over_and_back(world, replica)


@fault()
async def failover_to_a_replica_that_lags_and_back(world: World) -> None:
    """The first master, too, loses what the second one has never heard of."""
    replica = await world.start_server()
    await lag(world, replica, await follow(world, replica, world.server))
    await _fail_over_and_back(world, replica)


async def _fail_over_and_back(world: World, second: RedisServer) -> None:
    first, before = world.server, await world.life()
    await change_places(world, second)
    await world.recovers_from_loss()
    await mark_both(world, first, "what the second master wrote")
    await change_places(world, first)
    await prove_mark(world, "what the second master wrote")
    after = await world.life()
    world.prove("the process is that of before", after.run_id == before.run_id)
    world.prove("the replication id is another one", after.replication_id != before.replication_id)
    await world.recovers_from_loss()


@fault()
async def scripts_forgotten(world: World) -> None:
    before = await _unknown_scripts(world)
    for _ in range(5):
        await world.command("SCRIPT", "FLUSH")
        await world.more(50)
    await world.recovers()
    world.prove("nodes found their scripts gone", await _unknown_scripts(world) > before)


async def _unknown_scripts(world: World) -> int:
    """How often the server was asked for a script that it did not know."""
    errors = await world.info("errorstats")
    return int(errors.get("errorstat_NOSCRIPT", {}).get("count", 0))


@fault()
async def server_frozen_for_less_than_a_lease(world: World) -> None:
    async with world.server_frozen():
        await world.some_time(0.1, 0.9)
    await world.recovers()


@fault()
async def server_frozen_for_more_than_a_lease(world: World) -> None:
    async with world.server_frozen():
        await world.some_time(1.1, 3)
    await world.recovers()


@fault(Setup(server_clock=True))
async def server_clock_an_hour_ahead(world: World) -> None:
    await _jump(world, HOUR_S)


@fault(Setup(server_clock=True))
async def server_clock_an_hour_back(world: World) -> None:
    await _jump(world, -HOUR_S)


@fault(Setup(server_clock=True))
async def server_clock_20_seconds_ahead(world: World) -> None:
    await _jump(world, BRIEF_JUMP_S)


@fault(Setup(server_clock=True))
async def server_clock_20_seconds_back(world: World) -> None:
    await _jump(world, -BRIEF_JUMP_S)


@fault(Setup(server_clock=True))
async def server_clock_to_and_fro(world: World) -> None:
    for seconds in (BRIEF_JUMP_S, 0.0, -BRIEF_JUMP_S, 0.0, HOUR_S, 0.0):
        await set_clock(world, seconds)
        await world.some_time(0.1, 0.4)
    await world.recovers_from_loss()


async def _jump(world: World, seconds: float) -> None:
    await set_clock(world, seconds)
    await world.recovers_from_loss()
    # A clock that is off must not keep the places of the dead, either.
    await world.kill(world.any_node())
    await world.recovers()
