"""`evict` gives back at once what a dead node holds, and the living notice."""

from __future__ import annotations

import asyncio

import pytest

from semaphore_middleware import FairSemaphore, PermitLostError
from semaphore_middleware.core.admin import SCOPES_PER_CALL, Admin
from tests.support.cli import LONG_NAME, SITE, semaphore, terminal, three_nodes
from tests.support.nodes import ENDLESS_S, TIMEOUT_S, Caller, Outside, eventually
from tests.support.servers import RedisServer

ALIVE = (
    "so it may well be alive: then its requests go on for a while, on top of what others may start."
)


async def nodes_at(server: RedisServer, scope: str) -> list[tuple[str, int, int]]:
    """The nodes of a scope, each with the permits that it holds and its waiting requests."""
    async with Admin(server.url) as operator:
        seen = await operator.inspect(scope)
    return [(member.node, member.held, member.waiting) for member in seen.members]


async def test_what_it_held_is_free_at_once_and_limits_stay(server: RedisServer) -> None:
    living = (await three_nodes(server))[1:]
    assert await nodes_at(server, SITE) == [("three", 0, 1), ("one", 1, 1), ("two", 1, 1)]
    ran = await semaphore(server, "evict", "one", "--yes")
    assert (ran.status, ran.err) == (0, "")
    assert ran.lines[-1] == "Gave back 2 permits and dropped 1 waiting request."
    for node in living:  # as they do when they hear that something has changed
        await node.renew(SITE, limit=2)
    assert await nodes_at(server, SITE) == [("two", 1, 1), ("three", 1, 0)]
    assert await nodes_at(server, LONG_NAME) == [("three", 1, 0), ("two", 1, 0)]
    async with Admin(server.url) as operator:
        seen = await operator.inspect(SITE)
    assert (seen.limit, seen.limit_max, seen.delay) == (2, 2, 0)


async def test_more_than_one_call_can_carry_goes_back_too(server: RedisServer) -> None:
    dead = await Caller.join(server, "dead")
    for i in range(2 * SCOPES_PER_CALL + 1):
        await dead.take(f"{i}.example", 3)
    async with Admin(server.url) as operator:
        assert await operator.evict("dead") == (401, 802)
        assert await operator.survey() == []
        assert await operator.evict("dead") == (0, 0)


async def test_a_living_node_loses_its_permits_when_it_renews(server: RedisServer) -> None:
    async with FairSemaphore(server.url, node="living", lease=2) as living:
        waiting: list[asyncio.Task[object]] = []
        with pytest.raises(PermitLostError):
            async with living.permit(SITE, 1):
                waiting = [asyncio.create_task(living.acquire(SITE, 1))]
                async with Admin(server.url) as operator:

                    async def in_line() -> bool:
                        return bool((await operator.inspect(SITE)).waiting)

                    await eventually(in_line)
                    assert await operator.evict(living.node) == (1, 1)
                await asyncio.sleep(TIMEOUT_S)
        # Who waited asks again by itself.
        await asyncio.wait_for(asyncio.gather(*waiting), TIMEOUT_S)


async def test_it_does_nothing_unless_told_yes(server: RedisServer, outside: Outside) -> None:
    await three_nodes(server)
    before = outside.dump()
    lease = ("-s", f"SEMAPHORE_LEASE={ENDLESS_S}")
    for answer in ("", "\n", "no\n"):
        ran = await semaphore(server, "evict", "three", *lease, answer=answer)
        assert ran.status == 1
        assert ran.lines[0].startswith(
            "three holds 1 permit and has 1 waiting request, at 2 sites. It renewed its leases "
        )
        assert ran.lines[0].endswith(f" ago, {ALIVE}")
        assert ran.lines[1].startswith("Give it all back now? [y/N] ")
        assert ran.lines[-1].endswith("Nothing was changed.")
    ran = await semaphore(server, "evict", "three", "-s", "SEMAPHORE_LEASE=6000")
    assert ran.status == 1
    assert "It has renewed no lease for 90 min: it seems to be dead." in ran.out
    assert outside.dump() == before
    assert (await semaphore(server, "evict", "three", *lease, answer="y\n")).status == 0
    assert await nodes_at(server, SITE) == [("one", 1, 1), ("two", 1, 1)]


async def test_ctrl_c_at_the_question_changes_nothing(
    server: RedisServer, outside: Outside
) -> None:
    await three_nodes(server)
    before = outside.dump()
    async with terminal(server, "evict", "one") as shown:
        await shown.has_drawn("[y/N] ")
        assert await shown.ends_with(b"\x03") == 130
        assert "Traceback" not in shown.drawn
    assert outside.dump() == before


async def test_a_name_s_beginning_is_enough_for_one_node(
    server: RedisServer, outside: Outside
) -> None:
    await three_nodes(server)
    before = outside.dump()
    several = await semaphore(server, "evict", "t", "--yes")
    assert several == (2, "", "scrapy semaphore: 't' matches several nodes: three, two\n")
    nobody = (
        "scrapy semaphore: no node whose name begins with 'four' holds or waits for anything; "
        "'status --nodes' shows those that do\n"
    )
    assert await semaphore(server, "evict", "four", "--yes") == (4, "", nobody)
    assert (await semaphore(server, "evict", "", "--yes")).status == 4
    assert outside.dump() == before
    await (await Caller.join(server, "two-more")).take(LONG_NAME, limit=8)
    exact = await semaphore(server, "evict", "two", "--yes")
    assert exact.lines[-1] == "Gave back 2 permits and dropped 1 waiting request."
