"""Any string names a scope, and no two of them meet."""

from __future__ import annotations

import pytest
from redis.crc import key_slot

from tests.support.nodes import Caller, Outside, in_asyncio, key
from tests.support.servers import RedisServer

SCOPES = [
    "",
    " ",
    "a",
    "a:held",
    "a:line",
    ":a",
    "{1}a",
    "{a}",
    "a}",
    "{",
    "epoch",
    "held",
    "semaphore:{1}:a:held",
    "a\n",
    "a\r\nb",
    "a\0",
    "\0",
    "a b",
    "%s",
    "*",
    "[a]?",
    "'\"\\",
    "😀",
    "ä",
    "a\u0308",
    "\ud83d\ude00",
    "\udcff",
    "x" * 10_000,
    "x" * 9_999 + "y",
    "granted 1",
    "EXAMPLE.com",
    "example.com",
    "example.com.",
]


@in_asyncio
async def test_every_name_has_a_semaphore_of_its_own(server: RedisServer, outside: Outside) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    for scope in SCOPES:
        assert (await a.acquire(scope, 1)).granted == (1,), repr(scope)
        assert (await b.acquire(scope, 1)).granted == (), repr(scope)
    for scope in SCOPES:
        seen = await a.inspect(scope)
        assert ([m.id for m in seen.holders], [m.id for m in seen.waiters]) == (["a:1"], ["b:1"])
        assert seen.scope == scope
    for scope in SCOPES:
        await a.release(scope, 1)
    assert outside.told() == [("b", "granted 1")] * len(SCOPES)
    for scope in SCOPES:
        await b.release(scope, 1)
    assert outside.in_use() == set()


@in_asyncio
async def test_a_scope_s_keys_lie_in_one_slot_of_a_cluster(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    for scope in SCOPES:
        await a.acquire(scope, 1, 2)
        slots = {key_slot(each) for each in outside.client.scan_iter("semaphore:*", count=1000)}
        assert len(slots) == 1, repr(scope)
        await a.release(scope, 1, 2)
        outside.client.delete(*outside.client.keys("semaphore:*"))


@pytest.mark.parametrize(
    ("scope", "crc16"),  # as Redis's own documents have them, where they are slots: CRC16 mod 16384
    [("123456789", 0x31C3), ("", 0), ("foo", 12182), ("hello", 866), ("somekey", 11058)],
)
@in_asyncio
async def test_the_bucket_is_the_crc16_of_the_name_modulo_256(
    server: RedisServer, outside: Outside, scope: str, crc16: int
) -> None:
    a = await Caller.join(server, "a")
    await a.acquire(scope, 1)
    held = b"semaphore:{%d}:%s:held" % (crc16 % 256, scope.encode())
    assert held in outside.in_use()
    assert held == key(scope, "held")


@pytest.mark.parametrize(
    "name", ["a:b", "a b", "", ":", "é{1}\n", "%d", "😀", "\udcff", "x" * 5000]
)
@in_asyncio
async def test_any_string_names_a_node(server: RedisServer, outside: Outside, name: str) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, name)
    await a.acquire("s", 1)
    await b.acquire("s", 7, 8)
    await a.release("s", 1)
    seen = await a.inspect("s")
    assert [member.node for member in seen.holders + seen.waiters] == [name, name]
    await b.release("s", 7, 8)
    assert outside.in_use() == set()
