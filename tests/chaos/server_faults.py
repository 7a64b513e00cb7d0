"""What happens to the server and its data."""

from __future__ import annotations

import asyncio
import shutil

from tests.chaos.fault import HOUR, fault
from tests.chaos.world import Setup, World
from tests.support.nodes import eventually
from tests.support.servers import RedisServer, free_port

APPEND_ONLY = ("--appendonly", "yes", "--appendfsync", "always")
JUNK = b"x" * 20_000
BRIEF_JUMP = 20.0  # seconds: longer than a lease, shorter than most keys live


@fault()
async def server_killed_and_back_empty(world: World) -> None:
    await world.restart_server(world.dice.uniform(0, 1.5))
    await world.recovers_from_loss()


@fault()
async def server_back_with_an_old_snapshot(world: World) -> None:
    await world.command("SAVE")
    await world.more(world.dice.randint(100, 500))
    await world.restart_server(world.dice.uniform(0, 1.5))
    await world.recovers_from_loss()


@fault(Setup(server_options=APPEND_ONLY))
async def server_back_with_an_old_append_only_file(world: World) -> None:
    kept, old = world.server.directory / "appendonlydir", world.server.directory / "old"
    await asyncio.to_thread(shutil.copytree, kept, old)
    await world.more(world.dice.randint(100, 500))
    world.server.kill()
    await asyncio.to_thread(shutil.rmtree, kept)
    old.rename(kept)
    await world.restart_server(world.dice.uniform(0, 1.5))
    await world.recovers_from_loss()


@fault(Setup(server_options=APPEND_ONLY))
async def server_killed_and_back_with_its_data(world: World) -> None:
    await world.restart_server(world.dice.uniform(0, 1.5))
    await world.recovers_from_loss()


@fault()
async def flushall(world: World) -> None:
    await world.command("FLUSHALL")
    await world.recovers_from_loss()


@fault()
async def flushdb(world: World) -> None:
    await world.command("FLUSHDB")
    await world.recovers_from_loss()


@fault()
async def epochs_deleted(world: World) -> None:
    epochs = await world.command("KEYS", "{semaphore}:epoch")
    await world.command("DEL", *epochs)
    await world.recovers_from_loss()


@fault()
async def keys_evicted(world: World) -> None:
    """Others fill the server, and it throws away what was not used for longest, ours too."""
    await world.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    used = (await world.command("INFO", "memory"))["used_memory"]
    await world.command("CONFIG", "SET", "maxmemory", used + 200 * len(JUNK))
    await world.command("CLIENT", "KILL", "TYPE", "normal")  # nodes look at this as they connect
    number = 0
    while not (await world.command("INFO", "stats"))["evicted_keys"] or number < 2000:
        await world.command("SET", f"junk-{number}", JUNK)
        number += 1
    await world.recovers_from_loss()
    await world.command("CONFIG", "SET", "maxmemory", 0)


@fault()
async def all_keys_evicted(world: World) -> None:
    await world.command("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
    await world.command("CONFIG", "SET", "maxmemory", 1)

    async def empty() -> bool:
        return not await world.command("DBSIZE")

    await eventually(empty)
    await world.command("CONFIG", "SET", "maxmemory", 0)
    await world.recovers_from_loss()


@fault()
async def failover_to_a_replica(world: World) -> None:
    replica = await _replica_of(world)
    world.server.kill()
    await world.some_time(0, 1.5)
    await _promote(world, replica)
    await world.recovers_from_loss()


@fault()
async def failover_to_a_replica_that_lags(world: World) -> None:
    """What the master has granted in the meantime, the replica has never heard of."""
    replica = await _replica_of(world)
    replica.freeze()
    await world.more(world.dice.randint(100, 500))
    world.server.kill()
    replica.thaw()
    await _promote(world, replica)
    await world.recovers_from_loss()


async def _replica_of(world: World) -> RedisServer:
    port = free_port()
    await world.command("CONFIG", "SET", "port", port)
    replica = RedisServer("--replicaof", "127.0.0.1", str(port), started_empty=False)
    world.also_ends(replica)
    await asyncio.to_thread(replica.start)
    with replica.client() as client:

        async def in_step() -> bool:
            return bool(client.info("replication")["master_link_status"] == "up")

        await eventually(in_step)
    return replica


async def _promote(world: World, replica: RedisServer) -> None:
    world.use(replica)
    await world.command("REPLICAOF", "NO", "ONE")
    for node in world.nodes:
        node.proxy.drop_connections()  # as whoever redirects the name or the address does


@fault()
async def scripts_forgotten(world: World) -> None:
    for _ in range(5):
        await world.command("SCRIPT", "FLUSH")
        await world.more(50)
    await world.recovers()


@fault()
async def server_frozen_for_less_than_a_lease(world: World) -> None:
    world.server.freeze()
    await world.some_time(0.1, 0.9)
    world.server.thaw()
    await world.recovers()


@fault()
async def server_frozen_for_more_than_a_lease(world: World) -> None:
    world.server.freeze()
    await world.some_time(1.1, 3)
    world.server.thaw()
    await world.recovers()


@fault(Setup(server_clock=True))
async def server_clock_an_hour_ahead(world: World) -> None:
    await _jump(world, HOUR)


@fault(Setup(server_clock=True))
async def server_clock_an_hour_back(world: World) -> None:
    await _jump(world, -HOUR)


@fault(Setup(server_clock=True))
async def server_clock_20_seconds_ahead(world: World) -> None:
    await _jump(world, BRIEF_JUMP)


@fault(Setup(server_clock=True))
async def server_clock_20_seconds_back(world: World) -> None:
    await _jump(world, -BRIEF_JUMP)


@fault(Setup(server_clock=True))
async def server_clock_to_and_fro(world: World) -> None:
    assert world.clock
    for seconds in (BRIEF_JUMP, 0.0, -BRIEF_JUMP, 0.0, HOUR, 0.0):
        world.clock.jump(seconds)
        await world.some_time(0.1, 0.4)
    await world.recovers_from_loss()


async def _jump(world: World, seconds: float) -> None:
    assert world.clock
    world.clock.jump(seconds)
    await world.recovers_from_loss()
    # A clock that is off must not keep the places of the dead, either.
    await world.kill(world.any_node())
    await world.recovers()
