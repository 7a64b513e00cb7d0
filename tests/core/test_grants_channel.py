"""What comes over the grants channel: ours is believed, anything else is ignored and counted."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from semaphore_middleware import FairSemaphore
from semaphore_middleware.core.observer import Event, Observer, UnknownNotification
from semaphore_middleware.redis.protocol import Notification
from tests.support.nodes import ENDLESS_S, KEYS, TIMEOUT_S, Recorder, eventually, in_asyncio
from tests.support.servers import RedisServer

STRANGE = [
    b"",
    b" ",
    b"granted",
    b"granted ",
    b"granted x",
    b"granted s",
    b"granted 1 s",
    b"granted 1 1",
    b"granted x 1 s",
    b"granted 1 x s",
    b"granted 1.5 1 s",
    b"granted 1 1.5 s",
    b"granted -1 1 s",
    b"granted 1 -1 s",
    b"granted 1 +1 s",
    b"granted 1 1_0 s",
    b"granted 1 \xd9\xa1 s",  # a digit, in Arabic
    b" granted 1 1 s",
    b"granted  1 1 s",
    b"granted 1  1 s",
    b"granted 1\n1 s",
    b"GRANTED 1 1 s",
    b"granted 1 " + b"9" * 400 + b" s",
    b"granted " + b"9" * 17 + b" 1 s",
    b"granted 1 1 \xff",
    b"retry",
    b"retry s",
    b"retry 1",
    b"retry -5 s",
    b"retry 1e9 s",
    b"retry nan s",
    b"retry 1.5 s",
    b"retry " + b"9" * 400 + b" s",
    b"changed s",
    b"changed 1",
    b"gone s",
    b"\0granted 1 1 s",
    b"\xff\xfe",
    b"x" * 100_000,
]


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"granted 7 2 s", Notification("granted", "s", term=7, granted=2)),
        (b"granted 7 2 a name of four", Notification("granted", "a name of four", 7, 2)),
        (b"granted 1 2 \xed\xb3\xbf", Notification("granted", "\udcff", 1, 2)),
        (b"granted 9007199254740992 0 s", Notification("granted", "s", 2**53, 0)),
        (b"retry 1500 s", Notification("retry", "s", retry_in=1.5)),
        (b"retry 0 a b", Notification("retry", "a b", retry_in=0.0)),
        (b"backoff s", Notification("backoff", "s")),
        (b"backoff a b", Notification("backoff", "a b")),
        (b"changed", Notification("changed")),
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

        async def in_the_queue() -> bool:
            return (await b.admin.inspect("s")).waiting == 1

        await eventually(in_the_queue)
        for payload in strange:
            client.publish(KEYS.channel(a.node), payload)

        async def all_heard() -> bool:
            return recorder.count(UnknownNotification) == len(strange)

        await eventually(all_heard)
        assert not waiting.done()
        held.release()
        (await waiting).release()
    counts = Counter(event.counter for event in recorder.events if event.counter)
    assert counts == {"strange_messages": len(strange), "acquired": 1, "released": 1}


@in_asyncio
async def test_a_grant_of_another_term_or_scope_or_one_heard_already_is_ignored(
    server: RedisServer,
) -> None:
    client = server.client()
    async with FairSemaphore(server.url) as a, FairSemaphore(server.url) as b:
        held, other = await a.acquire("s", 2), await b.acquire("s", 2)
        waiting = asyncio.create_task(a.acquire("s", 2))

        async def in_the_queue() -> bool:
            return (await b.admin.inspect("s")).waiting == 1

        await eventually(in_the_queue)
        # The first term of a node is 1; of that, 1 has been granted.
        for text in ("1 0 s", "1 1 s", "0 9 s", "2 9 s", "999999999999 9 s", "1 9 other", "1 9 S"):
            client.publish(KEYS.channel(a.node), f"granted {text}")
        client.publish(KEYS.channel(a.node), f"retry {int(ENDLESS_S * 1000)} s")
        client.publish(KEYS.channel(a.node), "retry 0 other")
        client.publish(KEYS.channel(a.node), "backoff other")
        client.publish(KEYS.channel(a.node), "granted 1 1 s")
        await a.acquire("another", 1)
        assert not waiting.done()
        other.release()
        await waiting
        assert not held.withdrawn
        assert (await b.admin.inspect("s")).held == 2


@in_asyncio
async def test_thousands_of_messages_at_once_leave_room_for_others(server: RedisServer) -> None:
    """They lie in the socket when the process wakes. What else is due runs in between."""
    many = 20_000
    turn = 0  # of the event loop
    heard_in: list[int] = []
    done = asyncio.Event()

    class Clerk(Observer):
        def on_event(self, event: Event) -> None:
            if isinstance(event, UnknownNotification):
                heard_in.append(turn)
                if len(heard_in) == many:
                    done.set()

    async def count_turns() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    async with FairSemaphore(server.url, lease=ENDLESS_S, observers=[Clerk()]) as semaphore:
        channel = KEYS.channel(semaphore.node)
        counting = asyncio.create_task(count_turns())
        with server.client() as client, client.pipeline(transaction=False) as messages:

            async def is_subscribed() -> bool:
                return bool(client.publish(channel, "backoff s"))

            await eventually(is_subscribed)
            for _ in range(many):
                messages.publish(channel, "strange")
            messages.execute()  # meanwhile the loop stands still
        await asyncio.wait_for(done.wait(), TIMEOUT_S)
        counting.cancel()
    assert len(set(heard_in)) >= 5, "64 KB in each, or a few times that"
