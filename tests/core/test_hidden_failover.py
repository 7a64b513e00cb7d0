"""A proxy keeps the nodes' connections, and leads them to another server without notice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from semaphore_middleware import FairSemaphore
from semaphore_middleware.core.observer import PermitLost, Reconnected, StoreLost
from tests.support.command_proxy import CommandProxy, Subscriptions
from tests.support.nodes import ENDLESS_S, KEYS, Outside, Recorder, eventually, in_asyncio
from tests.support.servers import RedisServer


@pytest.fixture
def heir() -> Iterator[RedisServer]:
    server = RedisServer(started_empty=False).start()
    yield server
    server.remove()


def behind(proxy: CommandProxy, lease: float) -> tuple[FairSemaphore, Recorder]:
    seen = Recorder()
    url = f"unix://{proxy.path}"
    return FairSemaphore(url, lease=lease, recovery_wait=ENDLESS_S, observers=[seen]), seen


async def subscribed(server: RedisServer, *nodes: FairSemaphore) -> None:
    """Wait until these nodes hear of their grants there."""

    async def is_so() -> bool:
        with server.client() as client:
            return {KEYS.channel(node.node) for node in nodes} <= set(client.pubsub_channels())

    await eventually(is_so)


async def fail_over(proxy: CommandProxy, master: RedisServer, heir: RedisServer) -> int:
    """To a replica that has heard of the epoch, but of no account. Returns how many connections
    were kept.
    """
    with master.client() as old, heir.client() as new:
        new.restore(KEYS.epoch, 0, old.dump(KEYS.epoch))
    return await proxy.switch(heir.path)


@pytest.mark.parametrize("subscriptions", Subscriptions)
@in_asyncio
async def test_a_hidden_failover_is_seen_before_anything_is_granted(
    server: RedisServer, heir: RedisServer, tmp_path: Path, subscriptions: Subscriptions
) -> None:
    async with CommandProxy(tmp_path / "s", server.path, subscriptions) as proxy:
        (a, by_a), (b, by_b) = behind(proxy, 60.0), behind(proxy, 60.0)  # nothing is renewed
        async with a, b:
            outside = Outside(heir)
            held = await a.acquire("s", 1)
            await subscribed(server, a, b)
            assert await fail_over(proxy, server, heir) == 4
            waiting = asyncio.create_task(b.acquire("s", 1))
            await eventually(outside.waiting)
            assert by_b.count(StoreLost) == 1
            await subscribed(heir, b)
            held.release()
            await b.admin.trust()  # which b is told over its channel
            (await waiting).release()
        for seen in (by_a, by_b):
            assert (seen.count(PermitLost), seen.count(Reconnected)) == (0, 0)


@in_asyncio
async def test_a_node_that_asks_for_nothing_registers_what_it_holds_when_it_renews(
    server: RedisServer, heir: RedisServer, tmp_path: Path
) -> None:
    async with CommandProxy(tmp_path / "s", server.path) as proxy:
        semaphore, seen = behind(proxy, 1.5)
        async with semaphore:
            held = await semaphore.acquire("s", 1)
            await fail_over(proxy, server, heir)
            await eventually(lambda: heir.members() == {"s": (1, 0)})
            assert (seen.count(StoreLost), seen.count(Reconnected)) == (1, 0)
            assert not held.lost
            held.release()
