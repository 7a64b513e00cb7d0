"""Messages on a node's channel: notifications are read, anything else is ignored and counted."""

import asyncio
import random

import pytest

from semaphore_middleware import FairSemaphore
from semaphore_middleware.core.observer import UnknownNotification
from semaphore_middleware.core.protocol import Notification, pack_change
from tests.support.nodes import KEYS, Recorder, eventually
from tests.support.servers import RedisServer

STRANGE = """granted | granted x | granted s | granted 1 s | granted 1 1 | granted x 1 s
granted 1 x s | granted 1.5 1 s | granted 1 1.5 s | granted -1 1 s | granted 1 -1 s | granted 1 +1 s
granted 1 1_0 s | granted 1 \u0661 s | GRANTED 1 1 s | retry | retry s | retry 1 | retry -5 s
retry 1e9 s | retry nan s | retry 1.5 s | gone s"""
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
        (b"granted 7 2 a name of four", Notification("granted", "a name of four", (7, 2))),
        (b"granted 1 2 \xed\xb3\xbf", Notification("granted", "\udcff", (1, 2))),
        (b"granted 9007199254740992 0 s", Notification("granted", "s", (2**53, 0))),
        (b"retry 1500 s", Notification("retry", "s", (1500,))),
        (b"retry 0 a b", Notification("retry", "a b", (0,))),
        (b"backoff 7 8 a b", Notification("backoff", "a b", (7, 8))),
        (pack_change("me\n", "done"), Notification("changed", change="me\\n has done")),
    ],
)
def test_our_own_messages_are_read(payload: bytes, message: Notification) -> None:
    assert Notification.read(payload) == message


def test_anything_else_is_not() -> None:
    for payload in STRANGE_BYTES:
        assert Notification.read(payload) is None, payload


async def test_thousands_of_messages_at_once_leave_room_for_others(server: RedisServer) -> None:
    """They lie in the socket when the process wakes. What else is due runs in between."""
    many, heard = 20_000, Recorder()
    seen: set[int] = set()
    async with FairSemaphore(server.url, observers=[heard]) as semaphore:
        channel = KEYS.channel(semaphore.node)
        with server.client() as client, client.pipeline(transaction=False) as messages:
            await eventually(lambda: client.publish(channel, "backoff 1 s"))
            for _ in range(many):
                messages.publish(channel, "strange")
            messages.execute()  # meanwhile the loop is stalled
        while heard.count(UnknownNotification) < many:
            await asyncio.sleep(0)
            seen.add(len(heard.events))
    assert len(seen) >= 5, "64 KB in each cycle of the loop, or a few times that"
