"""Any string names a scope and a node, and no two of them meet."""

from __future__ import annotations

from redis.crc import key_slot

from semaphore_middleware.model.hosts import encoded
from semaphore_middleware.redis.protocol import Notification
from tests.support.nodes import Caller, Outside
from tests.support.servers import RedisServer

NAMES = [
    *("", " ", "a", "a:scope", "a:queue:a", ":a", "{1}a", "{a}", "a}", "{", "epoch", "rules"),
    *("{semaphore}:scope:a", "a\n", "a\r\nb", "a\0", "\0", "a b", "%s", "*", "[a]?", "'\"\\"),
    *("😀", "ä", "a\u0308", "\ud83d\ude00", "\udcff", "x" * 10_000, "x" * 9_999 + "y"),
    *("granted 1", "EXAMPLE.com", "example.com", "example.com.", "state", "learned"),
]


async def test_every_name_has_a_semaphore_of_its_own(server: RedisServer, outside: Outside) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    for scope in NAMES:
        assert (await a.take(scope)).granted == 1, repr(scope)
        assert (await b.take(scope)).granted == 0, repr(scope)
    for scope in NAMES:
        seen = await a.inspect(scope)
        assert [(m.node, m.held, m.waiting) for m in seen.members] == [("b", 0, 1), ("a", 1, 0)]
        assert seen.scope == scope
    assert {one.scope for one in await a.admin.survey()} == set(NAMES)
    await a.admin.configure("example.com", 1)
    keys = list(outside.client.scan_iter("{semaphore}:*", count=1000))
    assert len(keys) == 3 + 2 * len(NAMES), "the epoch, the rules, their changes, and two a scope"
    assert {key_slot(key) for key in keys} == {key_slot(b"semaphore")}
    await a.admin.reset("example.com")
    outside.told()
    for scope in NAMES:
        await a.give_back(scope)
    told = [(node, Notification.read(encoded(text))) for node, text in outside.told()]
    terms = [(scope, b.book(scope).term) for scope in NAMES]
    assert told == [("b", Notification("granted", scope, (term, 1))) for scope, term in terms]
    for scope in NAMES:
        await b.renew(scope)
        await b.give_back(scope)
    assert outside.in_use() == set()


async def test_any_string_names_a_node(server: RedisServer, outside: Outside) -> None:
    for name in NAMES:
        a, b = await Caller.join(server, "another"), await Caller.join(server, name)
        await a.take("s")
        await b.take("s")
        await a.give_back("s")
        assert outside.told() == [(name, f"granted {b.book('s').term} 1 s")]
        assert [one.node for one in (await a.inspect("s")).members] == [name]
        await b.renew("s")
        await b.give_back("s")
