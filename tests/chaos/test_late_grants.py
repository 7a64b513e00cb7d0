"""A grant that a node hears too late, because it stood still, is worth nothing any more."""

from __future__ import annotations

import asyncio

from semaphore_middleware import FairSemaphore
from semaphore_middleware.core.observer import UnknownNotification
from tests.chaos.proxy import Proxy
from tests.support.nodes import Recorder, eventually, in_asyncio
from tests.support.servers import RedisServer

LEASE = 1.0  # seconds: the test waits for the end of one


@in_asyncio
async def test_a_grant_that_another_has_by_now_is_not_taken(server: RedisServer) -> None:
    """What the channel had for a node when it froze, the node reads when it wakes: maybe only after
    it has asked again, and been told that it has to wait."""
    recorder = Recorder()
    async with (
        Proxy(server.path) as proxy,
        FairSemaphore(server.url, lease=LEASE) as other,
        FairSemaphore(proxy.url, lease=LEASE, observers=[recorder]) as sleeper,
    ):
        channel = f"semaphore:grants:{sleeper.node}"

        async def waits() -> bool:
            seen = await other.admin.inspect("s")
            return [waiter.node for waiter in seen.waiters] == [sleeper.node]

        async def listens() -> bool:
            with server.client() as client:
                return bool(client.pubsub_numsub(channel)[0][1])

        async def heard() -> bool:
            return recorder.count(UnknownNotification) == 1  # and so what was told before it

        held = await other.acquire("s", 1)
        waiter = asyncio.create_task(sleeper.acquire("s", 1))
        await eventually(waits)
        number = (await other.admin.inspect("s")).waiters[0].id.rpartition(":")[2]
        proxy.cut()
        held.release()  # a grant to the sleeper, which does not hear of it
        held = await other.acquire("s", 1)  # once the sleeper's lease has ended
        proxy.heal()
        await eventually(waits)
        await eventually(listens)
        await sleeper.admin.inspect("s")  # so by now it knows that it waits
        with server.client() as client:
            client.publish(channel, f"granted {number}")
            client.publish(channel, "the end")
        await eventually(heard)
        assert not waiter.done()
        held.release()
        (await waiter).release()
