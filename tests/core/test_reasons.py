"""Why nothing may start at a site: the script names the reason in replies and inspections."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest

from semaphore_middleware import AcquireTimeoutError
from semaphore_middleware.model.limits import Limit
from semaphore_middleware.model.reasons import REASONS
from tests.core.test_refusals import asked_for, one_more
from tests.support.nodes import KEYS, Caller, Outside
from tests.support.servers import RedisServer
from tests.support.simulated import SimulatedServer, in_simulated_time

LIMIT = Limit(2)
PACED = {"delay": Limit(2, delay=100.0), "rate": Limit(2, rate="1/m")}

Case: TypeAlias = Callable[[Caller, Outside], Awaitable[Limit]]


async def recovery(_: Caller, outside: Outside) -> Limit:
    outside.client.hset(KEYS.epoch, "from", 2**52)
    return LIMIT


async def paused(caller: Caller, _: Outside) -> Limit:
    await caller.admin.pause("s")
    return LIMIT


async def backoff(caller: Caller, outside: Outside) -> Limit:
    await one_more(caller, outside, asked_for(200))
    return LIMIT


async def full(caller: Caller, _: Outside) -> Limit:
    await caller.take("s", 2, limit=LIMIT)
    return LIMIT


async def delay(caller: Caller, _: Outside) -> Limit:
    await caller.take("s", limit=PACED["delay"])
    return PACED["delay"]


async def rate(caller: Caller, _: Outside) -> Limit:
    await caller.take("s", limit=PACED["rate"])
    return PACED["rate"]


CASES: list[Case] = [recovery, paused, backoff, full, delay, rate]
TIMED = ("recovery", "backoff", "delay", "rate")


def test_each_reason_has_a_case_here() -> None:
    assert [case.__name__ for case in CASES] == [reason.name for reason in REASONS]


@pytest.mark.parametrize("case", CASES)
async def test_who_waits_learns_why(server: RedisServer, outside: Outside, case: Case) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    limit = await case(a, outside)
    held = b.held("s")
    reply = await b.take("s", limit=limit)
    assert reply.reason is not None
    assert (b.held("s"), reply.reason.name) == (held, case.__name__)
    seen = await b.inspect("s")
    assert (seen.state, seen.reason) == (case.__name__, reply.reason)
    assert (seen.wait is not None) == (case.__name__ in TIMED)
    assert seen.why.startswith(reply.reason.sentence)


@in_simulated_time
async def test_a_time_out_names_the_reason_of_the_wait() -> None:
    async with SimulatedServer(lease=15.0).node() as semaphore:
        await semaphore.admin.pause("s")
        with pytest.raises(AcquireTimeoutError, match=r"\(limit 2\): An operator has paused"):
            await semaphore.acquire("s", 2, timeout=1.0)


@in_simulated_time
async def test_an_inspection_shows_for_how_long_a_site_stays_closed() -> None:
    server = SimulatedServer(lease=15.0, recovery_wait=100.0)
    server.itself.flush()
    async with server.node() as node:

        async def looks_after(seconds: float) -> tuple[str, float | None]:
            await asyncio.sleep(seconds)
            node.refresh()
            await asyncio.sleep(1.0)
            reason, left = node.reason_at("s")
            assert reason is not None
            return reason.name, left and round(left)

        assert node.reason_at("s") == (None, None)
        waits = asyncio.create_task(node.acquire("s", 1))
        assert await looks_after(59.0) == ("recovery", 40)
        permit = await waits
        permit.refused(200.0)
        permit.release()
        waits = asyncio.create_task(node.acquire("s", 1))
        assert await looks_after(49.0) == ("backoff", 151)  # as it was at the inspection
        await node.admin.pause("s")
        assert await looks_after(1.0) == ("paused", None)
        waits.cancel()


async def test_where_nobody_waits_a_reply_has_no_reason(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    for limit in (LIMIT, *PACED.values()):
        assert (await a.take(str(limit), limit=limit)).reason is None
    reply = await a.take("s", 2, limit=LIMIT)
    assert (reply.granted, reply.reason) == (2, None)
    assert (await a.inspect("s")).state == "full"
    await a.give_back("s", limit=LIMIT)
    seen = await a.inspect("s")
    assert (seen.state, seen.reason, seen.why) == ("open", None, "")


async def test_closed_comes_before_full(server: RedisServer, outside: Outside) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    await backoff(a, outside)
    outside.end_backoff()
    await a.take("s", 2, limit=LIMIT)
    outside.edit("s", "learned", backoff_end=2**52)
    reply = await b.take("s", limit=LIMIT)
    assert reply.reason is not None
    assert (reply.reason.name, reply.retry_in) == ("backoff", None)
    seen = await a.inspect("s")
    assert seen.state == "backoff"
    assert seen.wait is not None


async def test_permits_whose_lease_has_ended_fill_nothing(
    server: RedisServer, outside: Outside
) -> None:
    """As nobody calls, they are still counted on the server."""
    a, b = [await Caller.join(server, name) for name in "ab"]
    await a.take("s", 2, limit=LIMIT)
    await b.take("t", limit=LIMIT)
    await a.take("t", 2, limit=LIMIT)  # one of them waits
    assert [(await b.inspect(scope)).state for scope in "st"] == ["full", "full"]
    for scope in "st":
        outside.end_leases("a", scope)
    before = outside.dump()
    seen = await b.inspect("s")
    assert (seen.held, seen.waiting, seen.limit, seen.state, seen.why) == (0, 0, None, "idle", "")
    seen = await b.inspect("t")
    assert (seen.held, seen.waiting, seen.limit, seen.state, seen.why) == (1, 0, 2, "open", "")
    assert outside.dump() == before
