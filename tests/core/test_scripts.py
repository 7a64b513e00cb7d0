"""The script `sync`: repeated, late or impossible updates, any names, and lost keys."""

import asyncio
import math
from collections.abc import Callable, Sequence

import pytest
from redis import Redis
from redis.crc import key_slot

from semaphore_middleware import FairSemaphore, ServerRefusedError, ServerUnreachableError
from semaphore_middleware.core import protocol
from semaphore_middleware.core.calls import Store
from semaphore_middleware.core.protocol import FEEDBACK, UPDATE, LeaseUpdate, Notification, Reply
from semaphore_middleware.core.scripts import SYNC
from semaphore_middleware.link.scripts import Call, run_scripts
from semaphore_middleware.link.text import encoded
from tests.support.crawls import Log
from tests.support.nodes import KEYS, MACHINE, Caller, Outside, eventually, renew
from tests.support.restricted import Restricted
from tests.support.scopes import Look
from tests.support.servers import RedisServer
from tests.support.times import ENDLESS_S

SCOPE, QUEUE = KEYS.of("s")


async def answer(caller: Caller, update: LeaseUpdate) -> Reply:
    """To exactly this number, without notifying the node."""
    replies = await caller.send(update)
    assert replies is not None
    return replies[0]


async def test_a_reply_has_the_number_of_free_permits(
    server: RedisServer, outside: Outside
) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    reply = await a.take("s", 1, limit=2)
    assert (reply.status, reply.granted, reply.available, reply.retry_in) == ("ok", 1, 1, None)
    assert (await a.take("s", 2, limit=2)).granted == 2
    reply = await b.take("s", 3, limit=2)
    assert (reply.granted, reply.available, reply.limit, reply.retry_in) == (0, -4, 2, None)
    await a.give_back("s", 1, limit=2)
    assert outside.notified() == [("b", f"granted {b.book('s').lease_id} 1 s")]
    # The node that gives back gets its own grants in the reply, also those that it asks for there.
    assert (await b.renew("s", limit=2)).granted == 1
    assert (await a.give_back("s", 1, limit=2, take=1)).granted == 3
    assert (outside.notified(), outside.waiting()) == ([], {"a": 1, "b": 2})


async def test_a_grant_does_not_lengthen_the_lease(server: RedisServer) -> None:
    """A waiting node counts its deadline from its own last call; a grant is none of its calls."""
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b", lease=60)
    await a.take("s")
    await b.take("s")
    waiting, _ = (await a.inspect("s")).members
    await a.give_back("s")
    (held,) = (await a.inspect("s")).members
    assert (waiting.node, held.node, held.held) == ("b", "b", 1)
    assert held.lease_left <= waiting.lease_left <= 60


def without_lease(look: Look) -> dict[str, dict[str, float]]:
    return {node: entry | {"lease_end": 0.0} for node, entry in look.entries.items()}


# Twice, late, and of entries that are gone -----------------------------------------------------


async def test_a_late_update_changes_no_count(server: RedisServer, outside: Outside) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    request = a.next_update("s", 2, requested=3)
    for _ in range(3):
        reply = await answer(a, request)
        assert (reply.lease_id, reply.granted) == (request.lease_id, 2)
    await b.take("s", 3, limit=2)
    await a.renew("s", limit=2)
    a.book("s").returned = 1
    returned = a.next_update("s", 2)
    for _ in range(3):
        await a.send(returned)
    assert (outside.held(), outside.waiting()) == ({"a": 1, "b": 1}, {"b": 2})
    (before,) = outside.look("s")
    reply = await answer(a, request)
    (after,) = outside.look("s")
    assert (reply.status, reply.granted, after.queue) == ("ok", 2, before.queue)
    assert (after.state, without_lease(after)) == (before.state, without_lease(before))


async def test_a_late_update_renews_the_lease(server: RedisServer, outside: Outside) -> None:
    """Its node counts its deadline from it, once it is answered."""
    a = await Caller.join(server, "a")
    late = a.next_update("s", requested=1)
    await a.send(late)
    await a.renew("s")
    outside.client.hincrbyfloat(KEYS.epoch, "clock", 600 * ENDLESS_S)  # of 1000
    assert (await answer(a, late)).status == "ok"
    (held,) = (await a.inspect("s")).members
    assert held.lease_left > 0.9 * ENDLESS_S


async def test_who_claims_too_much_has_lost_all(server: RedisServer, outside: Outside) -> None:
    """A server that was rolled back to a snapshot has fewer grants than its nodes."""
    a, b = [await Caller.join(server, name) for name in "ab"]
    await a.take("s", 1, limit=2)
    await b.take("s", 2, limit=2)
    outside.client.hset(KEYS.epoch, "from", 2**52)
    await a.update("s", 2, requested=7, returned=6, granted_ack=7)  # except in the recovery wait
    assert outside.held() == {"a": 1, "b": 1}
    outside.end_recovery()
    assert (
        await answer(a, a.next_update("s", 2, requested=9, returned=6, granted_ack=8))
    ).status == "lost"
    assert outside.held() == {"b": 2}


async def test_an_entry_that_is_gone_opens_anew(server: RedisServer, outside: Outside) -> None:
    """If no permit was held."""
    a, b = [await Caller.join(server, name) for name in "ab"]
    await a.take("s")
    await a.send(a.next_update("s", returned=1))  # the reply is lost, the entry closed
    assert outside.in_use() == set()
    reply = await a.update("s", requested=2, returned=1)
    assert (reply.status, reply.lease_id, reply.granted) == ("ok", 1, 2)
    for scope in ("s", "never used"):  # it returns more than was granted
        assert (await b.update(scope, requested=3, returned=3, granted_ack=3)).status == "ok"
    assert (outside.held(), outside.state("never used")) == ({"a": 1}, {})


@pytest.mark.parametrize("has_right", [True, False])
async def test_where_no_script_stays_loaded_its_text_is_sent(
    server: RedisServer, has_right: bool, caplog: Log
) -> None:
    """As behind a balancer, whose servers each have scripts of their own."""
    denied = b"-NOPERM this user has no permissions to run the 'eval' command\r\n"

    def answer(command: Sequence[bytes]) -> bytes | None:
        if command[0].startswith(b"EVALSHA"):
            return b"-NOSCRIPT No matching script.\r\n"
        return denied if command[0].startswith(b"EVAL") and not has_right else None

    async with Restricted(server.path) as proxy:
        proxy.answer = answer
        if has_right:
            async with FairSemaphore(proxy.url) as node, node.permit("s", 1):
                assert (await node.admin.inspect("s")).held == 1
            assert not caplog.messages
        else:
            with pytest.raises(ServerUnreachableError, match="No matching script"):
                await FairSemaphore(proxy.url).open(wait=False)


SENSE = dict.fromkeys(UPDATE.names, 0.0) | {"lease_id": 1, "seq": 9, "requested": 2}
SENSE |= {"concurrency": 2, "burst": 1}
COUNTS = UPDATE.names[:7]
LIMIT_PARTS = ("concurrency", "delay", "interval", "burst")
HUGE = 1e12 + 1
NONSENSE: list[dict[str, float]] = [
    {"returned": 3, "granted_ack": 2, "requested": 4},
    {"granted_ack": 3, "requested": 2},
    {"returned": -2, "granted_ack": -1, "requested": -1},
    {"unstarted": 1},
    {"requested": HUGE, "granted_ack": HUGE, "returned": HUGE},
    *({part: 0.0} for part in ("lease_id", "seq", "concurrency", "burst")),
    *({part: -1.0} for part in ("lease_id", "returned", "started", "unstarted")),
    *({part: -1.0} for part in ("held_age", "wait_age", "start_age")),
    *({part: HUGE} for part in ("lease_id", "seq", "requested", "started", *LIMIT_PARTS)),
    {"concurrency": 1.5},
    {"burst": 1.5},
    *({part: -0.5} for part in ("delay", "jitter", "interval")),
    *({part: math.inf} for part in LIMIT_PARTS),
    {"jitter": 1.5},
    *({part: math.nan} for part in SENSE),
    {"adaptive": 0.5},
    *({part: value} for part in COUNTS for value in (1.5, math.inf, -math.inf)),
]


async def test_an_update_without_sense_is_refused(server: RedisServer, outside: Outside) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    for caller in (a, b):
        await caller.take("s", 2, limit=2)
    before = outside.look("s")
    packed = [UPDATE.pack(*(SENSE | wrong).values()) for wrong in NONSENSE]
    sense = UPDATE.pack(*SENSE.values())
    too_short = [sense[:size] for size in (0, 1, len(sense) - 8, len(sense) - 1)]
    for wrong, text in zip([*NONSENSE, *too_short], [*packed, *too_short], strict=True):
        reply = await send_packed(a, text)
        assert (reply.status, reply.granted) == ("refused", 0), wrong
        assert outside.look("s") == before, wrong
    assert outside.notified() == []
    assert (await send_packed(a, sense)).status == "ok"


async def test_feedback_without_sense_is_refused(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    await a.take("s", 2, limit=2)
    before = outside.look("s")
    totals = SENSE | {"granted_ack": 2, "returned": 1}
    numbers = UPDATE.pack(*totals.values())
    wrong = [
        FEEDBACK.pack(*[number] * len(FEEDBACK.names)) for number in (math.nan, math.inf, -1.0)
    ]
    for text in (b"x", b" " * (FEEDBACK.size - 1), *wrong):
        assert (await send_packed(a, numbers + text)).status == "refused"
        assert outside.look("s") == before


async def send_packed(a: Caller, packed: bytes) -> Reply:
    """Send exactly these bytes as a's update."""
    head = protocol.pack_head(600.0, 0.5)
    keys = (*KEYS.of_all, *KEYS.of("s"))
    call = Call(SYNC, keys, (head, "a", a.recovery.epoch, "job", packed))
    ((reply, _),) = await run_scripts(a.connection, [call])
    return Reply.read(a.next_update("s"), reply)


# What somebody else has written -----------------------------------------------------------------

OVERWRITES: list[Callable[[Redis], object]] = [
    lambda client: client.set(SCOPE, "x"),
    lambda client: client.hset(SCOPE, "state", "x"),
    lambda client: client.hset(SCOPE, "learned", "x"),
]


@pytest.mark.parametrize("overwrite", OVERWRITES)
async def test_a_key_that_is_overwritten_stops_its_site_only(
    server: RedisServer, caplog: Log, overwrite: Callable[[Redis], object]
) -> None:
    async with FairSemaphore(server.url) as node:
        lost, held = await node.acquire("s", 1), await node.acquire("fine", 1)
        with server.client() as client:
            client.delete(SCOPE)
            overwrite(client)
            waiting = asyncio.create_task(node.acquire("s", 1))
            await eventually(lambda: lost.lost)
            lost.release()
            for _ in range(3):
                renew(node)
                held.release()
                held = await node.acquire("fine", 1)
            assert not waiting.done()
            await node.admin.survey()
            client.delete(SCOPE)
        renew(node)
        (await waiting).release()
        assert caplog.text.count("cannot be read") == 1
        assert SCOPE.decode() in caplog.text
        assert not held.lost


async def test_an_inspection_names_a_key_that_is_no_scope(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    with server.client() as client:
        client.set(SCOPE, "x")
        with pytest.raises(ServerRefusedError, match=r"scope:s on .* is not a scope"):
            await a.inspect("s")
        assert await a.admin.evict("a") == (0, 0)
        client.delete(SCOPE)


@pytest.mark.parametrize("text", ["{", "[1]", "7", "null", ""])
async def test_a_rule_that_is_no_json_is_logged(
    server: RedisServer, caplog: Log, text: str
) -> None:
    a = await Caller.join(server, "a")
    await a.admin.configure("s", 2)
    with server.client() as client:
        client.hset(KEYS.rules, "s", text)
    for _ in range(2):
        assert (await a.take("s", 2, limit=1)).granted == 1
    assert caplog.text.count("the rule for s is ignored: not a JSON object") == 1
    assert await a.admin.rules() == []
    await a.admin.configure("s", 2)
    assert (await a.renew("s")).granted == 2


# Any string names a scope and a node, and no two of them meet -------------------------------------


NAMES = [
    *("", " ", "a", "a:scope", "a:queue:a", ":a", "{1}a", "{a}", "a}", "{", "epoch", "rules"),
    *("{semaphore}:scope:a", "a\n", "a\r\nb", "a\0", "\0", "a b", "%s", "*", "[a]?", "'\"\\"),
    *("😀", "ä", "a\u0308", "\ud83d\ude00", "\udcff", "x" * 10_000, "x" * 9_999 + "y"),
    *("granted 1", "API-A", "api-a", "example.com", "state", "learned"),
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
    assert len(keys) == 4 + 2 * len(NAMES), "the epoch, rules, their changes, index; two a scope"
    assert {key_slot(key) for key in keys} == {key_slot(b"semaphore")}
    await a.admin.reset("example.com")
    outside.notified()
    for scope in NAMES:
        await a.give_back(scope)
    told = [(node, Notification.read(encoded(text))) for node, text in outside.notified()]
    leases = [(scope, b.book(scope).lease_id) for scope in NAMES]
    assert told == [
        ("b", Notification("granted", scope, (lease_id, 1))) for scope, lease_id in leases
    ]
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
        assert outside.notified() == [(name, f"granted {b.book('s').lease_id} 1 s")]
        assert [one.node for one in (await a.inspect("s")).members] == [name]
        await b.renew("s")
        await b.give_back("s")


# No script loops for ever: whatever has become of the keys, a call returns ------------------------
# One that never returns cannot be killed once it has written, and the server serves nobody else.

CROWD = 500  # as many as one call looks at


def queue_strangers(outside: Outside) -> None:
    outside.client.zadd(QUEUE, {f"stranger {i}": -1 - i for i in range(3 * CROWD)})


MISFORTUNES: dict[str, Callable[[Outside], object]] = {
    "queue lost": lambda it: it.client.delete(QUEUE),
    "leases over": lambda it: it.client.hincrbyfloat(KEYS.epoch, "clock", 2e3 * ENDLESS_S),
    "entries lost": lambda it: it.client.hdel(SCOPE, *(f"node:n{i}" for i in range(CROWD))),
    "strangers": queue_strangers,
    "waits for nothing": lambda it: it.client.zadd(QUEUE, {"a": -1}),
}


@pytest.mark.parametrize(
    "names",
    [
        *(("queue lost", "leases over"), ("leases over", "queue lost"), ("entries lost",)),
        *(("entries lost", "queue lost"), ("waits for nothing",), ("strangers", "leases over")),
    ],
)
async def test_every_call_returns_and_in_the_end_somebody_is_served(
    server: RedisServer, outside: Outside, names: tuple[str, ...]
) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    await a.take("s")
    update = a.next_update("s", lease_id=1, seq=1, requested=1, granted_ack=0, started=0)
    for i in range(CROWD):
        await Store(KEYS, f"n{i}", MACHINE, a.options, a.recovery).sync(a.connection, [update])
    assert outside.client.zcard(QUEUE) == CROWD
    for name in names:
        MISFORTUNES[name](outside)
    await b.take("s")  # a call that takes too long raises
    await a.give_back("s")
    calls = 0
    while not outside.held():
        await b.renew("s")
        calls += 1
        assert calls <= 4
    await a.admin.survey()
    assert sum(outside.held().values()) == 1


async def test_a_queue_that_was_lost_is_made_again(server: RedisServer, outside: Outside) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    await a.take("s")
    await b.take("s")
    outside.client.delete(QUEUE)
    await a.give_back("s")
    assert outside.notified() == [("b", f"granted {b.book('s').lease_id} 1 s")]


async def test_a_call_does_so_much_the_next_goes_on(server: RedisServer, outside: Outside) -> None:
    a, b, c = [await Caller.join(server, name) for name in "abc"]
    for node in (a, b, c):
        await node.take("s")
    queue_strangers(outside)
    await a.give_back("s")
    assert outside.client.zcard(QUEUE) == 2 * CROWD + 2
    await b.renew("s")
    assert outside.client.zcard(QUEUE) == CROWD + 2
