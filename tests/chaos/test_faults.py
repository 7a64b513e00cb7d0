"""A fault does what its name says; one that is kept from it is told."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest
from hiredis import pack_command

from tests.chaos import combined_faults, master_faults, network_faults, server_faults
from tests.chaos.checker import check
from tests.chaos.faults import FAULTS, Fault
from tests.chaos.machine import Clock
from tests.chaos.nodes import Node
from tests.chaos.proxy import Proxy, Way
from tests.chaos.world import Plan, Setup, StuckError, World
from tests.support.command_proxy import CommandProxy
from tests.support.nodes import in_asyncio
from tests.support.servers import Cluster, RedisServer

PLAN = Plan("", nodes=2, hosts=1, lease=0.3, wait_timeout_s=5.0)
Hinder = Callable[[pytest.MonkeyPatch], None]
PATIENCE_S = 0.1  # of a client, for an answer
KEYS = " ".join(f"{{semaphore}}:key-{number} 1" for number in range(20))
COMMANDS = ("PUBLISH grants granted", f"EVALSHA {'0' * 40} 0", f"MSET {KEYS}")
MODULES = {
    module.__name__ for module in (combined_faults, master_faults, network_faults, server_faults)
}


def packed(command: str) -> bytes:
    words: Any = tuple(command.split())  # hiredis' types know commands of one word only
    return bytes(pack_command(words))


class Client(Node):
    """It stands for a node: it calls through its proxy, listens, and connects anew."""

    async def start(self, *_: Any) -> None:
        self._tasks = [asyncio.create_task(work()) for work in (self._call, self._listen)]

    async def _call(self) -> None:
        while True:
            with suppress(OSError, TimeoutError):
                reader, writer = await self._connect()
                answer = b"+"
                while answer.startswith(b"+"):  # else the server is a replica, or has gone
                    writer.writelines(map(packed, COMMANDS))
                    async with asyncio.timeout(PATIENCE_S):
                        await reader.readline()
                        await reader.readline()
                        answer = await reader.readline()
                    await asyncio.sleep(0.005)
                writer.close()
            await asyncio.sleep(0.005)

    async def _listen(self) -> None:
        while True:
            with suppress(OSError):
                reader, writer = await self._connect()
                writer.write(packed("SUBSCRIBE grants"))
                while await reader.readline():
                    pass
            await asyncio.sleep(0.005)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.proxy.address, self.proxy.port)

    def send(self, number: signal.Signals) -> None:
        for task in self._tasks:
            task.cancel()
        self.status = -number
        self.ended.set()

    async def end(self) -> None:
        self.send(signal.SIGKILL)


class Still(World):
    """A world of clients, without crawls: nothing is judged in it but the faults."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await self.command("HSET", "{semaphore}:epoch", "id", "one")
        return self

    async def start_node(self) -> Node:
        proxy = await self._stack.enter_async_context(Proxy(self.server.path))
        node = Client(f"node-{len(self.nodes) + 1}", self.directory, proxy)
        await node.start()
        self.nodes.append(node)
        return node

    async def more(self, requests: int) -> None:  # noqa: ARG002 - it is a world's
        await asyncio.sleep(0.05)

    async def transfers_under_way(self) -> None:
        """There are none here."""

    async def all_log(self, text: str) -> None:
        """Clients keep no log."""

    async def recovers(self, promise: float = 0.0) -> None:  # noqa: ARG002
        await self.eventually(lambda: all(node.proxy.is_connected() for node in self.living), "")


async def not_done(name: str, directory: Path, hinder: Hinder | None = None) -> list[str]:
    """What this fault, done in a still world, could not prove."""
    async with Still(PLAN, FAULTS[name].setup, directory) as world:
        await world.recovers()
        with pytest.MonkeyPatch.context() as patch:
            if hinder is not None:
                hinder(patch)
            try:
                await FAULTS[name].strike(world)
            except StuckError as stuck:
                world.prove(str(stuck), False)
    return check(world.history, PLAN.limit, PLAN.lease).not_done


WITHOUT_CRAWLS = [
    name
    for name, fault in FAULTS.items()
    if fault.happens.__module__ in MODULES and not fault.setup.namespace
]


@pytest.mark.slow
@pytest.mark.parametrize("name", WITHOUT_CRAWLS)
@in_asyncio
async def test_a_fault_does_what_its_name_says(name: str, tmp_path: Path) -> None:
    if why := FAULTS[name].why_not_here():
        pytest.skip(why)
    assert await not_done(name, tmp_path) == []


# Faults that are kept from what they do ---------------------------------------------------------


def without(owner: type, name: str, returned: object = None) -> Hinder:
    """This method does nothing."""
    return lambda patch: patch.setattr(owner, name, lambda *_, **__: returned)


def without_command(*unheard: str) -> Hinder:
    """The server does not get this command."""
    command = World.command

    async def heard(world: World, *words: Any, at: RedisServer | None = None) -> Any:
        is_heard = words[: len(unheard)] != unheard
        return await command(world, *words, at=at) if is_heard else 0

    return lambda patch: patch.setattr(World, "command", heard)


def with_a_leak(patch: pytest.MonkeyPatch) -> None:
    """Only requests are cut off."""
    cut = Proxy.cut
    patch.setattr(Proxy, "cut", lambda proxy, *_: cut(proxy, frozenset({Way.REQUESTS})))


def without_an_end(patch: pytest.MonkeyPatch) -> None:
    """The server lives on."""
    without(RedisServer, "kill")(patch)
    without(RedisServer, "start")(patch)


def without_a_switch(patch: pytest.MonkeyPatch) -> None:
    """The proxy leads to the same server as before."""

    async def stay(*_: object) -> int:
        return 0

    patch.setattr(CommandProxy, "switch", stay)


def without_min_replicas(patch: pytest.MonkeyPatch) -> None:
    """A master without replicas goes on."""
    patch.setattr(master_faults, "min_replicas", list)


HINDERED: dict[str, tuple[Hinder, str]] = {
    "connections-dead-while-new-ones-work": (
        without(Proxy, "cut_connections"),
        "nothing passed over the old connections",
    ),
    "connections-dropped": (without(Proxy, "drop_connections", 0), "was dropped"),
    "epochs-deleted": (without_command("DEL"), "was deleted"),
    "failover-to-a-replica": (without_command("REPLICAOF", "NO"), "was promoted"),
    "failover-to-a-replica-that-lags": (without(Proxy, "cut"), "what was before the lag"),
    "flushall": (without_command("FLUSHALL"), "the server has nothing"),
    "hidden-failover": (without_a_switch, "0 connections were kept"),
    "keys-evicted": (without_command("CONFIG", "SET", "maxmemory"), "0 keys were evicted"),
    "node-cut-off-for-more-than-a-lease": (with_a_leak, "was cut off"),
    "server-back-with-an-old-snapshot": (without_command("SAVE"), "has the snapshot"),
    "server-clock-an-hour-ahead": (without(Clock, "jump"), "+3600 s off"),
    "server-killed-and-back-empty": (without_an_end, "was started anew"),
    "sentinels-replace-a-killed-master": (without(RedisServer, "kill"), "another master"),
    "server-replaced-by-an-old-empty-one": (without(World, "use"), "the server has nothing"),
    "slot-moved-with-its-keys": (without(Cluster, "move"), "another master"),
    "split-brain-with-min-replicas": (without_min_replicas, "was refused by the first"),
}


QUICK = "failover-to-a-replica-that-lags"


@in_asyncio
async def test_a_fault_that_is_kept_from_what_it_does_is_told(tmp_path: Path) -> None:
    await _is_told(QUICK, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(HINDERED) - {QUICK}))
@in_asyncio
async def test_each_fault_that_is_kept_from_it_is_told(name: str, tmp_path: Path) -> None:
    if why := FAULTS[name].why_not_here():
        pytest.skip(why)
    await _is_told(name, tmp_path)


async def _is_told(name: str, directory: Path) -> None:
    hinder, unproven = HINDERED[name]
    assert any(unproven in what for what in await not_done(name, directory, hinder))


@in_asyncio
async def test_a_fault_that_proves_nothing_is_told(tmp_path: Path) -> None:
    async def nothing(_: World) -> None:
        pass

    async with Still(PLAN, Setup(), tmp_path) as world:
        await world.recovers()
        await Fault("nothing-at-all", nothing, Setup()).strike(world)
    assert check(world.history, 1, 1.0).not_done == ["nothing-at-all has proved something"]
