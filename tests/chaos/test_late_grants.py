"""A grant that a node hears too late, because it stood still, is worth nothing any more."""

from __future__ import annotations

import asyncio
from typing import Any

from semaphore_middleware import FairSemaphore
from semaphore_middleware.core.observer import UnknownNotification
from semaphore_middleware.redis.keys import Keys
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
        channel = Keys("semaphore").channel(sleeper.node)
        client: Any = server.client()  # redis-py's types promise every kind of reply
        wire = client.pubsub(ignore_subscribe_messages=True)
        wire.subscribe(channel)
        heard: list[bytes] = []

        async def waits() -> bool:
            seen = await other.admin.inspect("s")
            return {member.node for member in seen.members if member.waiting} == {sleeper.node}

        async def told() -> bool:
            if message := wire.get_message():
                heard.append(message["data"])
            return bool(heard)

        async def listens() -> bool:
            return bool(client.pubsub_numsub(channel)[0][1] == 2)  # the sleeper, and this test

        async def has_read_all() -> bool:
            return recorder.count(UnknownNotification) == 1  # and so what it was told before

        held = await other.acquire("s", 1)
        waiter = asyncio.create_task(sleeper.acquire("s", 1))
        await eventually(waits)
        proxy.cut()
        held.release()  # a grant to the sleeper, which does not hear of it
        await eventually(told)
        held = await other.acquire("s", 1)  # once the sleeper's lease has ended
        proxy.heal()
        await eventually(waits)
        await eventually(listens)
        await sleeper.admin.inspect("s")  # so by now it knows that it waits
        client.publish(channel, heard[0])
        client.publish(channel, "the end")
        await eventually(has_read_all)
        assert heard[0].startswith(b"granted ")
        assert not waiter.done()
        held.release()
        (await waiter).release()
        client.close()
