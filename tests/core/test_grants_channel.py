"""What comes over the grants channel: ours is believed, anything else is ignored and counted."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from semaphore_middleware import FairSemaphore
from semaphore_middleware.core.observer import UnknownNotification
from semaphore_middleware.redis.protocol import Notification
from tests.support.nodes import ENDLESS_S, Recorder, eventually, in_asyncio
from tests.support.servers import RedisServer

STRANGE = [
    b"",
    b" ",
    b"granted",
    b"granted ",
    b"granted x",
    b"granted 1.5",
    b"granted -1",
    b"granted +1",
    b"granted 1_0",
    b"granted \xd9\xa1",  # a digit, in Arabic
    b"granted 1 ",
    b" granted 1",
    b"granted  1",
    b"granted 1\n",
    b"granted 1 granted",
    b"granted 1 2",
    b"granted 1granted 2",
    b"GRANTED 1",
    b"granted " + b"9" * 400,
    b"again",
    b"again 1",
    b"again 1 -5",
    b"again 1 1e9",
    b"again 1 nan",
    b"again 1 " + b"9" * 400,
    b"again 1 5 7",
    b"gone 1",
    b"\0granted 1",
    b"\xff\xfe",
    b"x" * 100_000,
]


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"granted 7", Notification(granted=(7,))),
        (b"granted 7 granted 8", Notification(granted=(7, 8))),
        (b"again 7 1500", Notification(retry_in=((7, 1.5),))),
        (b"granted 7 again 8 0", Notification(granted=(7,), retry_in=((8, 0.0),))),
        (b"granted 999999999999", Notification(granted=(999_999_999_999,))),
    ],
)
def test_our_own_messages_are_read(payload: bytes, message: Notification) -> None:
    assert Notification.read(payload) == message


@in_asyncio
async def test_strange_messages_are_ignored_and_counted(server: RedisServer) -> None:
    recorder = Recorder()
    dice = random.Random(0)
    strange = [*STRANGE, *(dice.randbytes(dice.randint(1, 60)) for _ in range(200))]
    client = server.client()
    async with (
        FairSemaphore(server.url, observers=[recorder]) as a,
        FairSemaphore(server.url) as b,
    ):
        held = await b.acquire("s", 1)
        waiting = asyncio.create_task(a.acquire("s", 1))

        async def in_line() -> bool:
            return len((await b.admin.inspect("s")).waiters) == 1

        await eventually(in_line)
        for payload in strange:
            client.publish(f"semaphore:grants:{a.node}", payload)

        async def all_heard() -> bool:
            return recorder.count(UnknownNotification) == len(strange)

        await eventually(all_heard)
        assert not waiting.done()
        held.release()
        (await waiting).release()
    counts = Counter(event.counter for event in recorder.events if event.counter)
    assert counts == {"strange_messages": len(strange), "acquired": 1, "released": 1}


@in_asyncio
async def test_a_grant_of_a_permit_that_nobody_waits_for_is_ignored(server: RedisServer) -> None:
    client = server.client()
    async with FairSemaphore(server.url) as a, FairSemaphore(server.url) as b:
        held, given_back = await a.acquire("s", 2), await a.acquire("s", 2)
        given_back.release()
        for number in (held.number, given_back.number, 0, 999_999_999_999):
            for text in (f"granted {number}", f"again {number} {int(ENDLESS_S * 1000)}"):
                client.publish(f"semaphore:grants:{a.node}", text)
        other = await b.acquire("s", 2)
        waiting = asyncio.create_task(a.acquire("s", 2))
        other.release()
        await waiting
        assert len((await b.admin.inspect("s")).holders) == 2
