"""The script `sync`: statements that are heard once, twice, late, or that make no sense."""

from __future__ import annotations

import math
from typing import Any

import pytest

from semaphore_middleware.model.feedback import Backoff
from semaphore_middleware.model.limits import Limit
from semaphore_middleware.redis import protocol
from semaphore_middleware.redis.protocol import Statement
from semaphore_middleware.redis.scripts import evaluate
from tests.support.nodes import KEYS, Caller, Outside, in_asyncio
from tests.support.servers import RedisServer

# Asking ---------------------------------------------------------------------------------------


@in_asyncio
async def test_a_free_permit_is_granted_in_the_reply(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    assert (await a.take("s")).granted == 1
    assert outside.held() == {"a": 1}
    assert outside.queue() == []


@in_asyncio
async def test_who_finds_none_free_stands_in_the_queue(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s")
    reply = await b.take("s")
    assert (reply.status, reply.granted, reply.retry_in) == ("ok", 0, None)
    assert outside.held() == {"a": 1}
    assert outside.queue() == ["b"]


@in_asyncio
async def test_as_many_are_granted_as_the_limit_allows(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    assert (await a.take("s", 5, limit=3)).granted == 3
    assert outside.waiting() == {"a": 2}


@in_asyncio
async def test_asking_again_tells_of_the_grant_again(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    statement = a.statement("s", asked=2)
    for _ in range(3):
        replies = await a.send(statement)
        assert replies is not None
        assert (replies[0].term, replies[0].granted) == (statement.term, 1)
    assert outside.held() == {"a": 1}
    assert outside.waiting() == {"a": 1}


@in_asyncio
async def test_the_reply_tells_how_many_are_to_spare(server: RedisServer) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    assert (await a.take("s", 1, limit=3)).available == 2
    assert (await b.take("s", 2, limit=3)).available == 0
    assert (await a.take("s", 4, limit=3)).available == -4
    reply = await b.renew("s", limit=2)
    assert (reply.available, reply.limit) == (-5, 2)


# Giving back ----------------------------------------------------------------------------------


@in_asyncio
async def test_a_permit_given_back_is_handed_to_the_first_in_the_queue(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s")
    await b.take("s", 2)
    await a.give_back("s")
    assert outside.told() == [("b", f"granted {b.book('s').term} 1 s")]
    assert outside.held() == {"b": 1}
    assert outside.waiting() == {"b": 1}


@in_asyncio
async def test_the_one_who_gives_back_hears_of_its_own_grant_in_the_reply(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await a.take("s", 2)
    assert (await a.give_back("s")).granted == 2
    assert outside.told() == []


@in_asyncio
async def test_what_is_given_back_and_what_is_asked_for_go_in_one_statement(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await a.take("s")
    assert (await a.give_back("s", take=2)).granted == 2
    assert outside.held() == {"a": 1}
    assert outside.waiting() == {"a": 1}


@in_asyncio
async def test_a_full_server_grants_and_takes_back(server: RedisServer, outside: Outside) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s")
    outside.client.config_set("maxmemory", 1)
    await b.take("s")
    await a.give_back("s")
    assert (await b.renew("s")).granted == 1
    await b.give_back("s")
    assert outside.held() == {}


@in_asyncio
async def test_giving_back_twice_frees_one_permit(server: RedisServer, outside: Outside) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s", 2, limit=2)
    await b.take("s", 3, limit=2)
    statement = a.statement("s", 2, returned=1)
    for _ in range(3):
        await a.send(statement)
    assert outside.held() == {"a": 1, "b": 1}
    assert outside.waiting() == {"b": 2}


@in_asyncio
async def test_giving_up_leaves_the_queue(server: RedisServer, outside: Outside) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s")
    await b.take("s", 2)
    for left in ({"b": 1}, {}):
        await b.give_up("s")
        assert outside.waiting() == left
    assert outside.queue() == []
    assert outside.held() == {"a": 1}


@in_asyncio
async def test_a_permit_that_was_granted_while_it_was_given_up_is_held_until_it_is_given_back(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s")
    await b.take("s")
    await a.give_back("s")  # b is granted it, and does not hear of it
    assert (await b.give_up("s")).granted == 1
    assert outside.held() == {"b": 1}
    await b.give_back("s")
    assert outside.in_use() == set()


@in_asyncio
async def test_a_node_that_gives_up_and_asks_again_after_a_surplus_is_served(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s", limit=2)
    await b.take("s", 2, limit=2)
    await a.give_back("s", limit=2)  # b is granted a second one
    await b.give_up("s", 1, limit=2)
    await b.give_back("s", 1, limit=2)
    assert (await b.take("s", 1, limit=2)).granted == 3
    assert outside.held() == {"b": 2}


@in_asyncio
async def test_giving_back_what_nobody_has_changes_nothing(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s", 2)
    for scope in ("s", "never used"):
        assert (await b.say(scope, asked=3, returned=3, believed=3)).status == "ok"
    assert outside.held() == {"a": 1}
    assert outside.waiting() == {"a": 1}
    assert outside.state("never used") == {}


# Renewing, and accounts that are gone ---------------------------------------------------------


@in_asyncio
async def test_renewing_lengthens_the_lease(server: RedisServer) -> None:
    a = await Caller.join(server, "a", lease=60)
    await a.take("s")
    (before,) = (await a.inspect("s")).members
    a.store = (await Caller.join(server, "a")).store  # of a longer lease
    await a.store.recovery.join_epoch(a.connection)
    for _ in range(2):
        assert (await a.renew("s")).status == "ok"
    (after,) = (await a.inspect("s")).members
    assert before.lease_left <= 60 < after.lease_left


@in_asyncio
async def test_a_statement_that_comes_late_lengthens_no_lease(
    server: RedisServer, outside: Outside
) -> None:
    """It says nothing of whether its node lives."""
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s")
    early = a.statement("s")
    await a.renew("s")
    outside.end_leases("a", "s")
    await a.send(early)
    assert (await b.take("s")).granted == 1
    assert outside.held() == {"b": 1}


@in_asyncio
async def test_who_believes_in_permits_of_an_account_that_is_gone_has_lost_them(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s")
    outside.end_leases("a", "s")
    await b.take("s")
    for _ in range(2):
        replies = await a.send(a.statement("s"))
        assert replies is not None
        assert replies[0].status == "lost"
    assert outside.held() == {"b": 1}


@in_asyncio
async def test_who_believes_in_more_than_was_granted_has_lost_all(
    server: RedisServer, outside: Outside
) -> None:
    """A server that was rolled back to a snapshot knows less than its nodes."""
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s", 1, limit=3)
    await b.take("s", 3, limit=3)
    assert (await a.say("s", 3, asked=5, believed=5)).status == "lost"
    assert outside.held() == {"b": 3}


@in_asyncio
async def test_an_account_that_is_gone_opens_anew_if_nothing_was_held(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await a.take("s")
    term = a.book("s").term
    await a.send(a.statement("s", returned=1))  # the reply is lost, the account closed
    assert outside.in_use() == set()
    reply = await a.say("s", asked=2, returned=1)
    assert (reply.status, reply.term, reply.granted) == ("ok", term, 2)
    assert outside.held() == {"a": 1}


@in_asyncio
async def test_what_was_returned_is_never_more_than_was_granted(
    server: RedisServer, outside: Outside
) -> None:
    """After a rollback to a snapshot."""
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s", 1, limit=2)
    await b.take("s", 2, limit=2)
    outside.client.hset(KEYS.epoch, "from", 2**52)
    await a.say("s", 2, asked=7, returned=6, believed=7)
    assert outside.held() == {"a": 1, "b": 1}


# Terms and sequence numbers -------------------------------------------------------------------


@in_asyncio
async def test_a_higher_term_frees_what_the_account_held(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.take("s")
    await b.take("s")
    a.lose("s")
    assert (await a.take("s")).granted == 0
    assert outside.held() == {"b": 1}
    assert outside.queue() == ["a"]


@in_asyncio
async def test_a_lower_term_is_refused_and_told_which_one_is_known(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    late = a.statement("s", asked=5)
    a.lose("s", above=41)
    await a.take("s", 2)
    before = outside.look("s")
    replies = await a.send(late)
    assert replies is not None
    assert (replies[0].status, replies[0].term, late.term) == ("old", 42, 1)
    assert outside.look("s") == before


@in_asyncio
async def test_an_older_statement_changes_no_count(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    early = a.statement("s", 2, asked=5)
    await a.take("s", 2, limit=2)
    await a.give_back("s", 1, limit=2)
    before = outside.look("s")
    replies = await a.send(early)
    assert replies is not None
    assert (replies[0].status, replies[0].granted) == ("ok", 2)
    assert outside.look("s") == before


@in_asyncio
async def test_a_node_that_is_idle_begins_a_new_term(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    await a.take("s")
    first = a.book("s").term
    await a.give_back("s")
    assert outside.in_use() == set()
    reply = await a.take("s")
    assert (reply.granted, reply.term) == (1, first + 1)


@in_asyncio
async def test_a_late_statement_of_an_idle_node_costs_one_lease_at_most(
    server: RedisServer, outside: Outside
) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    late = a.statement("s", asked=1)
    await a.send(late)
    a.lose("s")
    await a.say("s")
    await a.send(late)
    assert outside.held() == {"a": 1}, "its grant goes to nobody"
    await b.take("s")
    assert (await a.take("s")).granted == 0
    assert outside.held() == {"b": 1}, "until its node speaks again"


# Nonsense -------------------------------------------------------------------------------------

HUGE = 2.0**53 + 2
COUNTS = ("term", "seq", "asked", "returned", "believed", "started", "unused", "pending")
NONSENSE: dict[str, dict[str, Any]] = {
    "gave back more than it had": {"returned": 3, "believed": 2, "asked": 4},
    "believes in more than it asked for": {"believed": 3, "asked": 2},
    "no term": {"term": 0},
    "a term below zero": {"term": -1},
    "no number of the statement": {"seq": 0},
    "fewer than none returned": {"returned": -1},
    "fewer than none believed": {"returned": -2, "believed": -1, "asked": -1},
    "fewer than none started": {"started": -1},
    "fewer than none unused": {"unused": -1},
    "more unused than it gave back": {"unused": 1},
    "fewer than none pending": {"pending": -2},
    "more pending than it holds": {"pending": 1},
    **{f"{part} beyond 2^53": {part: HUGE} for part in ("term", "seq", "asked", "started")},
    "all beyond 2^53": {"asked": HUGE, "believed": HUGE, "returned": HUGE},
    **{
        f"{part} is {value}": {part: value}
        for part in COUNTS
        for value in (1.5, math.nan, math.inf, -math.inf)
    },
}
BAD_AGES: dict[str, dict[str, Any]] = {
    f"{part} is {value}": {part: value}
    for part in ("held_age", "wait_age")
    for value in (-1.0, math.nan)
}
BAD_LIMITS: dict[str, tuple[float, ...]] = {
    "limit 0": (0, 0, 0, 0, 0, 1),
    "limit not a number": (math.nan, 0, 0, 0, 0, 1),
    "limit beyond 2^53": (HUGE, 0, 0, 0, 0, 1),
    "negative delay": (1, -1, 0, 0, 0, 1),
    "infinite delay": (1, math.inf, 0, 0, 0, 1),
    "negative jitter": (1, 1, -0.5, 0, 0, 1),
    "jitter above 1": (1, 1, 1.5, 0, 0, 1),
    "negative interval": (1, 0, 0, 0, -1, 1),
    "infinite interval": (1, 0, 0, 0, math.inf, 1),
    "interval not a number": (1, 0, 0, 0, math.nan, 1),
    "burst 0": (1, 0, 0, 0, 1, 0),
    "burst not a number": (1, 0, 0, 0, 1, math.nan),
}


async def refuses(a: Caller, outside: Outside, packed: bytes) -> None:
    """Send this as a's statement, and see that it has changed nothing, but for its own reply."""
    await a.take("s", 2, limit=2)
    b = await Caller.join(a.server, "b")
    await b.take("s", 2, limit=2)
    outside.told()
    before = outside.look("s")
    head = protocol.pack_head(600.0, 0.5)
    keys = (KEYS.epoch, KEYS.rules, *KEYS.of("s"))
    call = ("sync", len(keys), *keys, head, "a", a.recovery.epoch, packed)
    ((reply,),) = await evaluate(a.connection, [call])
    heard = protocol.Reply.read(a.statement("s"), reply)
    assert (heard.status, heard.granted) == ("refused", 0)
    assert outside.look("s") == before
    assert outside.told() == []
    await a.give_back("s", 2, limit=2)
    assert outside.held() == {"b": 2}


def numbers_of(statement: Statement) -> list[float]:
    packed = protocol.pack_statement(statement, Backoff())
    return list(protocol.STATEMENT_NUMBERS.unpack(packed))


PARTS = (*COUNTS, "held_age", "wait_age")


@pytest.mark.parametrize("what", [*NONSENSE, *BAD_AGES])
@in_asyncio
async def test_a_statement_that_makes_no_sense_is_refused_and_harms_nobody(
    server: RedisServer, outside: Outside, what: str
) -> None:
    a = await Caller.join(server, "a")
    said = Statement("s", Limit(2), 1, 9, 2, 0, 0, 0, 0, 0.0, 0.0)
    numbers = dict(zip(PARTS, numbers_of(said), strict=False)) | {**NONSENSE, **BAD_AGES}[what]
    packed = protocol.STATEMENT_NUMBERS.pack(*numbers.values(), *protocol.pack_limit(Limit(2)))
    await refuses(a, outside, packed)


@pytest.mark.parametrize("what", BAD_LIMITS)
@in_asyncio
async def test_a_limit_that_makes_no_sense_is_refused_and_harms_nobody(
    server: RedisServer, outside: Outside, what: str
) -> None:
    a = await Caller.join(server, "a")
    packed = protocol.STATEMENT_NUMBERS.pack(1, 9, 2, 0, 0, 0, 0, -1, 0, 0, *BAD_LIMITS[what])
    await refuses(a, outside, packed)


@pytest.mark.parametrize("size", [0, 1, 8 * 15, 8 * 16 - 1])
@in_asyncio
async def test_a_statement_with_too_few_numbers_is_refused_and_harms_nobody(
    server: RedisServer, outside: Outside, size: int
) -> None:
    a = await Caller.join(server, "a")
    packed = protocol.STATEMENT_NUMBERS.pack(1, 9, 2, 0, 0, 0, 0, -1, 0, 0, 2, 0, 0, 0, 0, 1)
    await refuses(a, outside, packed[:size])


@in_asyncio
async def test_feedback_that_makes_no_sense_changes_nothing(
    server: RedisServer, outside: Outside
) -> None:
    """But what its statement gives back is free."""
    a = await Caller.join(server, "a")
    feedback = (b"x", b"1 2 3", b"nan " * 11, b"inf " * 11, b"-1 " * 11, b"9" * 5000, b" ")
    await a.take("s", len(feedback) + 1, limit=99)
    for returned, text in enumerate(feedback, 1):
        said = numbers_of(a.statement("s", 99, returned=returned))
        packed = protocol.STATEMENT_NUMBERS.pack(*said) + text
        keys = (KEYS.epoch, KEYS.rules, *KEYS.of("s"))
        head = protocol.pack_head(600.0, 0.5)
        call = ("sync", len(keys), *keys, head, "a", a.recovery.epoch, packed)
        await evaluate(a.connection, [call])
        assert outside.look("s")[0].learned == {}
        assert (await a.inspect("s")).backoff_left == 0
    assert outside.held() == {"a": 1}


@in_asyncio
async def test_another_epoch_is_answered_with_that_and_changes_nothing(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await a.take("s")
    known, a.recovery.epoch = a.recovery.epoch, b"another"
    before = outside.dump()
    assert await a.send(a.statement("s", asked=5), a.statement("t", asked=1)) is None
    assert outside.dump() == before
    a.recovery.epoch = known
    assert (await a.renew("s")).status == "ok"


# All of them ----------------------------------------------------------------------------------


@in_asyncio
async def test_one_call_takes_many_scopes_and_many_permits(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    said = [a.statement(f"s{n}", n, asked=5) for n in (1, 2, 3)]
    replies = await a.send(*said)
    assert replies is not None
    assert [reply.statement for reply in replies] == said
    assert [reply.granted for reply in replies] == [1, 2, 3]
    assert outside.waiting("s2") == {"a": 3}


@in_asyncio
async def test_hundreds_of_statements_are_cut_into_calls_and_answered_in_their_order(
    server: RedisServer,
) -> None:
    a = await Caller.join(server, "a")
    said = [a.statement(f"s{n}", 1 + n % 3, asked=5) for n in range(250)]
    replies = await a.send(*said)
    assert replies is not None
    assert [reply.statement for reply in replies] == said
    assert [reply.granted for reply in replies] == [1 + n % 3 for n in range(250)]


@in_asyncio
async def test_statements_of_one_scope_in_one_call_are_heard_in_their_order(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await a.take("s")
    replies = await a.send(
        a.statement("s", asked=1, returned=1),
        a.statement("s", asked=2, returned=1),
        a.statement("s", asked=3, returned=1),
    )
    assert replies is not None
    assert [(reply.status, reply.granted) for reply in replies] == [("ok", 1), ("ok", 2), ("ok", 2)]
    assert outside.held() == {"a": 1}
    assert outside.waiting() == {"a": 1}
