"""What comes over the grants channel: ours is believed, anything else is ignored and counted."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from semaphore_middleware import FairSemaphore
from semaphore_middleware.core.observer import UnknownNotification
from semaphore_middleware.redis.protocol import Notification
from tests.support.nodes import ENDLESS_S, KEYS, Recorder, eventually, in_asyncio
from tests.support.servers import RedisServer

STRANGE = """granted | granted x | granted s | granted 1 s | granted 1 1 | granted x 1 s
granted 1 x s | granted 1.5 1 s | granted 1 1.5 s | granted -1 1 s | granted 1 -1 s | granted 1 +1 s
granted 1 1_0 s | granted 1 \u0661 s | GRANTED 1 1 s | retry | retry s | retry 1 | retry -5 s
retry 1e9 s | retry nan s | retry 1.5 s | changed s | changed 1 | gone s"""
DICE = random.Random(0)
STRANGE_BYTES = [
    *(text.strip().encode() for line in STRANGE.splitlines() for text in line.split("|")),
    *(b"", b" ", b" granted 1 1 s", b"granted  1 1 s", b"granted 1\n1 s", b"granted 1 1 \xff"),
    *(b"x" * 100_000, b"granted 1 " + b"9" * 400 + b" s", b"granted " + b"9" * 17 + b" 1 s"),
    *(DICE.randbytes(DICE.randint(1, 60)) for _ in range(200)),
]


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"granted 7 2 a name of four", Notification("granted", "a name of four", 7, 2)),
        (b"granted 1 2 \xed\xb3\xbf", Notification("granted", "\udcff", 1, 2)),
        (b"granted 9007199254740992 0 s", Notification("granted", "s", 2**53, 0)),
        (b"retry 1500 s", Notification("retry", "s", retry_in=1.5)),
        (b"retry 0 a b", Notification("retry", "a b", retry_in=0.0)),
        (b"backoff a b", Notification("backoff", "a b")),
        (b"changed", Notification("changed")),
    ],
)
def test_our_own_messages_are_read(payload: bytes, message: Notification) -> None:
    assert Notification.read(payload) == message


@in_asyncio
async def test_what_is_strange_or_old_or_for_others_is_ignored_and_the_first_is_counted(
    server: RedisServer,
) -> None:
    recorder = Recorder()
    client = server.client()
    async with (
        FairSemaphore(server.url, observers=[recorder]) as a,
        FairSemaphore(server.url) as b,
    ):
        held, other = await a.acquire("s", 2), await b.acquire("s", 2)
        waiting = asyncio.create_task(a.acquire("s", 2))

        async def in_the_queue() -> bool:
            return (await b.admin.inspect("s")).waiting == 1

        await eventually(in_the_queue)
        # The first term of a node is 1; of that, 1 has been granted.
        for text in ("1 0 s", "1 1 s", "0 9 s", "2 9 s", "999999999999 9 s", "1 9 other", "1 9 S"):
            client.publish(KEYS.channel(a.node), f"granted {text}")
        for text in (f"retry {int(ENDLESS_S * 1000)} s", "retry 0 other", "backoff other"):
            client.publish(KEYS.channel(a.node), text)
        for payload in STRANGE_BYTES:
            client.publish(KEYS.channel(a.node), payload)

        async def all_heard() -> bool:
            return recorder.count(UnknownNotification) == len(STRANGE_BYTES)

        await eventually(all_heard)
        assert not waiting.done()
        assert not held.withdrawn
        other.release()
        (await waiting).release()
        held.release()
    counts = Counter(event.counter for event in recorder.events if event.counter)
    assert counts == {"strange_messages": len(STRANGE_BYTES), "acquired": 2, "released": 2}


@in_asyncio
async def test_thousands_of_messages_at_once_leave_room_for_others(server: RedisServer) -> None:
    """They lie in the socket when the process wakes. What else is due runs in between."""
    many, heard = 20_000, Recorder()
    seen: set[int] = set()
    async with FairSemaphore(server.url, lease=ENDLESS_S, observers=[heard]) as semaphore:
        channel = KEYS.channel(semaphore.node)
        with server.client() as client, client.pipeline(transaction=False) as messages:

            async def is_subscribed() -> bool:
                return bool(client.publish(channel, "backoff s"))

            await eventually(is_subscribed)
            for _ in range(many):
                messages.publish(channel, "strange")
            messages.execute()  # meanwhile the loop stands still
        while len(heard.events) < many:
            await asyncio.sleep(0)
            seen.add(len(heard.events))
    assert len(seen) >= 5, "64 KB in each turn of the loop, or a few times that"
