"""FairSemaphore as programs use it, on plain asyncio."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from semaphore_middleware import (
    AcquireTimeoutError,
    ClosedError,
    FairSemaphore,
    Limit,
    SettingsError,
)
from semaphore_middleware.core import session
from semaphore_middleware.core.observer import PermitGranted
from semaphore_middleware.model.limits import ALLOWED_LIMIT
from tests.support.nodes import ENDLESS_S, Loop, Recorder, eventually, in_asyncio
from tests.support.servers import RedisServer


async def race(server: RedisServer, nodes: int, tasks: int, limit: int) -> int:
    """Let many tasks of several nodes want the same permits; how many had one at once?"""
    inside = most = 0

    async def work(semaphore: FairSemaphore) -> None:
        nonlocal inside, most
        async with semaphore.permit("s", limit):
            inside += 1
            most = max(most, inside)
            for _ in range(3):
                await asyncio.sleep(0)
            inside -= 1

    semaphores = [FairSemaphore(server.url) for _ in range(nodes)]
    for semaphore in semaphores:
        await semaphore.open()
    await asyncio.gather(*(work(semaphore) for semaphore in semaphores for _ in range(tasks)))
    for semaphore in semaphores:
        await semaphore.close()
    return most


@in_asyncio
async def test_a_full_server_goes_on_granting(server: RedisServer) -> None:
    async def is_waiting() -> bool:
        return server.members() == {"s": (1, 1)}

    async with FairSemaphore(server.url) as one, FairSemaphore(server.url) as two:
        held = await one.acquire("s", 1)
        with server.client() as client:
            client.config_set("maxmemory", 1)
        waiting = asyncio.ensure_future(two.acquire("s", 1))
        await eventually(is_waiting)
        held.release()
        (await waiting).release()
        async with FairSemaphore(server.url) as three, three.permit("s", 1):
            pass
        held = await one.acquire("s", 1)
        await one.admin.trust()
        assert await two.admin.evict(one.node) == (1, 0), "room is made for what operators do"
    assert server.members() == {}


# Holding and waiting ----------------------------------------------------------------------------


@pytest.mark.parametrize("loop_of", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize(("nodes", "limit"), [(1, 1), (3, 1), (3, 4)])
def test_never_more_than_the_limit_hold_a_permit_and_all_get_theirs(
    server: RedisServer, loop_of: Callable[[], asyncio.AbstractEventLoop], nodes: int, limit: int
) -> None:
    loop = Loop(loop_of)
    try:
        assert loop.run(race(server, nodes, tasks=100, limit=limit)) == limit
    finally:
        loop.close()
    assert server.members() == {}


@in_asyncio
async def test_a_node_s_tasks_are_served_in_the_order_of_their_asking(server: RedisServer) -> None:
    order: list[int] = []

    async def work(number: int) -> None:
        async with semaphore.permit("s", 1):
            order.append(number)

    async with FairSemaphore(server.url) as semaphore:
        await asyncio.gather(*map(work, range(50)))
    assert order == list(range(50))


@in_asyncio
async def test_a_permit_given_back_on_one_node_is_handed_to_another(server: RedisServer) -> None:
    async with FairSemaphore(server.url) as a, FairSemaphore(server.url) as b:
        held = await a.acquire("s", 1)
        waiting = asyncio.create_task(b.acquire("s", 1))
        await eventually(lambda: waits(a, 1))
        assert not waiting.done()
        held.release()
        permit = await waiting
        assert permit.waited
        assert not held.waited


@in_asyncio
async def test_a_node_s_requests_follow_each_other_within_a_turn_without_a_call(
    server: RedisServer,
) -> None:
    recorder = Recorder()
    async with FairSemaphore(server.url, turn=ENDLESS_S, observers=[recorder]) as semaphore:
        await asyncio.gather(*(hold(semaphore) for _ in range(100)))
        grants = [event for event in recorder.events if isinstance(event, PermitGranted)]
        assert [grant.handed_on for grant in grants] == [False] + 99 * [True]
        with server.client() as client:
            calls = client.info("commandstats")["cmdstat_evalsha"]["calls"]
        assert calls < 50, "an epoch, a permit, and now and then how many wait"
    assert server.members() == {}


@in_asyncio
async def test_with_a_turn_of_0_each_request_has_a_grant_of_its_own(server: RedisServer) -> None:
    recorder = Recorder()
    async with FairSemaphore(server.url, turn=0, observers=[recorder]) as semaphore:
        await asyncio.gather(*(hold(semaphore) for _ in range(20)))
    grants = [event for event in recorder.events if isinstance(event, PermitGranted)]
    assert [grant.handed_on for grant in grants] == 20 * [False]


async def hold(semaphore: FairSemaphore) -> None:
    async with semaphore.permit("s", 1):
        await asyncio.sleep(0)


@in_asyncio
async def test_starts_are_spaced_and_nobody_polls(server: RedisServer) -> None:
    async with FairSemaphore(server.url) as a, FairSemaphore(server.url) as b:
        limit = Limit(10, delay=0.05)
        permits = await asyncio.gather(*(each.acquire("s", limit) for each in (a, b) * 4))
        assert len({permit.wait for permit in permits}) == 8
        with server.client() as client:
            calls = client.info("commandstats")["cmdstat_evalsha"]["calls"]
        assert calls < 40, "two of each: ask, be told, ask when told"


@in_asyncio
async def test_giving_back_twice_frees_one_permit(server: RedisServer) -> None:
    async with FairSemaphore(server.url) as semaphore:
        first = await semaphore.acquire("s", 1)
        waiting = [asyncio.create_task(semaphore.acquire("s", 1)) for _ in range(2)]
        first.release()
        first.release()
        second = await waiting[0]
        first.release()
        await eventually(lambda: waits(semaphore, 1))
        assert (await semaphore.admin.inspect("s")).held == 1
        assert not waiting[1].done()
        second.release()
        await waiting[1]


@in_asyncio
async def test_an_exception_in_the_body_gives_the_permit_back(server: RedisServer) -> None:
    async with FairSemaphore(server.url) as semaphore:
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                async with semaphore.permit("s", 1, timeout=ENDLESS_S):
                    raise ZeroDivisionError
            assert list(semaphore.permits()) == []
    assert server.members() == {}


@in_asyncio
async def test_who_waits_too_long_gets_an_error_and_leaves_the_queue(server: RedisServer) -> None:
    async with FairSemaphore(server.url) as semaphore:
        permit = await semaphore.acquire("s", 1)
        with pytest.raises(AcquireTimeoutError, match=r"no permit for 's' within 0.05 s \(limit 1"):
            await semaphore.acquire("s", 1, timeout=0.05)
        assert list(semaphore.permits()) == [permit]
        await eventually(lambda: waits(semaphore, 0))
        permit.release()
        async with semaphore.permit("s", 1, timeout=ENDLESS_S):
            pass
    assert server.members() == {}


# Looking ----------------------------------------------------------------------------------------


async def waits(semaphore: FairSemaphore, count: int, scope: str = "s") -> bool:
    return (await semaphore.admin.inspect(scope)).waiting == count


@in_asyncio
async def test_inspect_tells_the_limit_and_what_each_node_holds_and_waits_for(
    server: RedisServer,
) -> None:
    async with (
        FairSemaphore(server.url, node="first") as a,
        FairSemaphore(server.url, node="second") as b,
    ):
        held = await a.acquire("s", 1)
        waiting = asyncio.create_task(b.acquire("s", 1))
        await eventually(lambda: waits(a, 1))
        seen = await a.admin.inspect("s")
        assert (seen.limit, seen.held, seen.waiting) == (1, 1, 1)
        waiter, holder = seen.members  # those that wait come first
        assert (holder.node, holder.held, holder.waiting) == (a.node, 1, 0)
        assert (waiter.node, waiter.held, waiter.waiting) == (b.node, 0, 1)
        assert 0 <= holder.oldest < ENDLESS_S
        assert 0 <= waiter.longest_wait < ENDLESS_S
        assert holder.longest_wait == waiter.oldest == 0
        assert re.fullmatch("first-[0-9a-f]{12}", a.node)
        assert repr(a) == f"<FairSemaphore {a.node}: 1 held, 0 waiting>"
        assert repr(b) == f"<FairSemaphore {b.node}: 0 held, 1 waiting>"
        assert repr(held) == "<Permit for 's': held>"
        held.release()
        (await waiting).release()
        await eventually(lambda: waits(b, 0))
        assert (await b.admin.inspect("s")).limit is None


# Closing ----------------------------------------------------------------------------------------


@in_asyncio
async def test_a_semaphore_that_is_not_open_says_so(server: RedisServer) -> None:
    semaphore = FairSemaphore(server.url)
    for _ in range(2):
        with pytest.raises(ClosedError, match="async with"):
            await semaphore.acquire("s", 1)
        with pytest.raises(ClosedError, match="async with"):
            await semaphore.admin.inspect("s")
        assert repr(semaphore).endswith(": closed>")
        await semaphore.close()  # does nothing
        async with semaphore:
            pass


@in_asyncio
async def test_closing_refuses_who_waits_and_gives_everything_back(server: RedisServer) -> None:
    semaphore = FairSemaphore(server.url)
    async with semaphore:
        held = await semaphore.acquire("s", 1)
        waiting = [asyncio.create_task(semaphore.acquire("s", 1)) for _ in range(20)]
        await eventually(lambda: waits(semaphore, 20))
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {ClosedError}
    assert server.members() == {}
    held.release()  # late, and no harm


@in_asyncio
async def test_draining_lets_nobody_in_and_leaves_what_is_held(server: RedisServer) -> None:
    async with FairSemaphore(server.url) as semaphore:
        held = await semaphore.acquire("s", 1)
        waiting = asyncio.create_task(semaphore.acquire("s", 1))
        await eventually(lambda: waits(semaphore, 1))
        semaphore.drain()
        semaphore.drain()
        with pytest.raises(ClosedError):
            await waiting
        with pytest.raises(ClosedError):
            await semaphore.acquire("other", 1)
        await eventually(lambda: waits(semaphore, 0))
        assert (await semaphore.admin.inspect("s")).held == 1
        held.release()


@in_asyncio
async def test_closing_while_someone_looks_is_no_cancellation(server: RedisServer) -> None:
    semaphore = FairSemaphore(server.url, lease=ENDLESS_S)
    await semaphore.open()
    server.freeze()
    looking = asyncio.create_task(semaphore.admin.inspect("s"))
    await asyncio.sleep(0)
    await semaphore.close()
    server.thaw()
    with pytest.raises(ClosedError):
        await looking


# Names and values -------------------------------------------------------------------------------


@in_asyncio
async def test_two_nodes_of_one_name_share_no_permit(server: RedisServer) -> None:
    async with FairSemaphore(server.url, node="n") as a, FairSemaphore(server.url, node="n") as b:
        held = await a.acquire("s", 1)
        waiting = asyncio.create_task(b.acquire("s", 1))
        await eventually(lambda: waits(a, 1))
        held.release()
        await waiting


@in_asyncio
async def test_each_opening_has_a_name_of_its_own(server: RedisServer) -> None:
    semaphore = FairSemaphore(server.url, node="n")
    names = [semaphore.node]
    for _ in range(3):
        async with semaphore, semaphore.permit("s", 1):
            names.append(semaphore.node)
            (member,) = (await semaphore.admin.inspect("s")).members
            assert member.node == semaphore.node
    assert names[0] == names[1], "it is known before it is opened"
    assert len(set(names)) == 3
    assert all(re.fullmatch("n-[0-9a-f]{12}", name) for name in names)


@in_asyncio
async def test_what_an_earlier_opening_could_not_give_back_is_not_the_next_one_s(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "SHUTDOWN_TIMEOUT_S", 0.05)
    semaphore = FairSemaphore(server.url, lease=ENDLESS_S)
    async with semaphore, FairSemaphore(server.url, lease=ENDLESS_S) as other:
        await semaphore.acquire("s", 1)
        earlier = semaphore.node
        for task in semaphore._session._tasks:  # type: ignore[union-attr]  # it is cut off
            task.cancel()
        await semaphore.close()
        await semaphore.open()
        waiting = asyncio.create_task(semaphore.acquire("s", 1))
        await eventually(lambda: waits(other, 1))
        members = (await other.admin.inspect("s")).members
        assert [(one.node, one.held, one.waiting) for one in members] == [
            (semaphore.node, 0, 1),
            (earlier, 1, 0),
        ]
        await other.admin.evict(earlier)
        (await waiting).release()


@in_asyncio
async def test_prefixes_keep_programs_apart(server: RedisServer) -> None:
    async with (
        FairSemaphore(server.url, prefix="a", recovery_wait=0) as a,
        FairSemaphore(server.url, prefix="b", recovery_wait=0) as b,
    ):
        await a.acquire("s", 1)
        await b.acquire("s", 1)
        assert (await a.admin.inspect("s")).held == 1
        assert len(server.members("a")) == len(server.members("b")) == 1
        assert server.members() == {}


@pytest.mark.parametrize("limit", [0, -1, 1.5, "2", None, True, {"concurrency": 1}])
@in_asyncio
async def test_what_is_no_limit_is_refused(server: RedisServer, limit: Any) -> None:
    async with FairSemaphore(server.url) as semaphore:
        with pytest.raises(
            SettingsError, match=re.escape(f"limit = {limit!r}: allowed is {ALLOWED_LIMIT}")
        ):
            await semaphore.acquire("s", limit)


@pytest.mark.parametrize(
    "options",
    [
        {"lease": 0},
        {"lease": -1},
        {"lease": float("nan")},
        {"lease": float("inf")},
        {"lease": 86401},
        {"recovery_wait": -1},
        {"recovery_wait": float("inf")},
        {"turn": -1},
        {"turn": float("nan")},
        {"prefix": ""},
        {"prefix": "a{b}"},
    ],
)
def test_an_option_that_is_not_allowed_is_refused_by_name(options: dict[str, Any]) -> None:
    ((name, value),) = options.items()
    with pytest.raises(SettingsError, match=re.escape(f"{name} = {value!r}: allowed is")):
        FairSemaphore("redis://localhost", **options)
