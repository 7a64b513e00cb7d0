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
    SettingsError,
)
from semaphore_middleware.core import session
from semaphore_middleware.core.observer import PermitGranted
from semaphore_middleware.model.limits import ALLOWED_LIMIT
from tests.support.nodes import ENDLESS_S, Loop, Recorder, eventually, in_asyncio
from tests.support.servers import RedisServer


async def until_waiting(semaphore: FairSemaphore, count: int) -> None:
    async def as_many() -> bool:
        return (await semaphore.admin.inspect("s")).waiting == count

    await eventually(as_many)


# Holding and waiting ----------------------------------------------------------------------------


@pytest.mark.parametrize("loop_of", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize(("nodes", "limit"), [(1, 1), (3, 4)])
def test_never_more_than_the_limit_hold_a_permit_and_all_get_theirs(
    server: RedisServer, loop_of: Callable[[], asyncio.AbstractEventLoop], nodes: int, limit: int
) -> None:
    inside = most = 0

    async def work(semaphore: FairSemaphore) -> None:
        nonlocal inside, most
        async with semaphore.permit("s", limit):
            inside += 1
            most = max(most, inside)
            for _ in range(3):
                await asyncio.sleep(0)
            inside -= 1

    async def race() -> None:
        semaphores = [FairSemaphore(server.url) for _ in range(nodes)]
        for semaphore in semaphores:
            await semaphore.open()
        await asyncio.gather(*(work(semaphore) for semaphore in semaphores for _ in range(100)))
        for semaphore in semaphores:
            await semaphore.close()

    loop = Loop(loop_of)
    try:
        loop.run(race())
    finally:
        loop.close()
    assert (inside, most) == (0, limit)
    assert server.members() == {}


@pytest.mark.parametrize("turn", [ENDLESS_S, 0])
@in_asyncio
async def test_a_node_s_requests_follow_each_other_in_their_order_within_a_turn_without_a_call(
    server: RedisServer, turn: float
) -> None:
    recorder = Recorder()
    order: list[int] = []

    async def work(number: int) -> None:
        async with semaphore.permit("s", 1):
            order.append(number)
            await asyncio.sleep(0)

    async with FairSemaphore(server.url, turn=turn, observers=[recorder]) as semaphore:
        await asyncio.gather(*map(work, range(100)))
        with server.client() as client:
            calls = client.info("commandstats")["cmdstat_evalsha"]["calls"]
        assert turn == 0 or calls < 50
    assert order == list(range(100))
    grants = [event for event in recorder.events if isinstance(event, PermitGranted)]
    assert [grant.handed_on for grant in grants] == [False] + 99 * [turn > 0]
    assert server.members() == {}


@in_asyncio
async def test_giving_back_twice_frees_one_permit(server: RedisServer) -> None:
    async with FairSemaphore(server.url) as semaphore:
        first = await semaphore.acquire("s", 1)
        waiting = [asyncio.create_task(semaphore.acquire("s", 1)) for _ in range(2)]
        first.release()
        first.release()
        second = await waiting[0]
        first.release()
        await until_waiting(semaphore, 1)
        assert (await semaphore.admin.inspect("s")).held == 1
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


@in_asyncio
async def test_who_waits_too_long_gets_an_error_and_leaves_the_queue(server: RedisServer) -> None:
    async with FairSemaphore(server.url) as semaphore:
        permit = await semaphore.acquire("s", 1)
        with pytest.raises(AcquireTimeoutError, match=r"no permit for 's' within 0.05 s \(limit 1"):
            await semaphore.acquire("s", 1, timeout=0.05)
        assert list(semaphore.permits()) == [permit]
        await until_waiting(semaphore, 0)


@in_asyncio
async def test_a_permit_goes_from_node_to_node_and_both_are_seen(server: RedisServer) -> None:
    async with (
        FairSemaphore(server.url, node="n") as a,
        FairSemaphore(server.url, node="n") as b,
    ):
        held = await a.acquire("s", 1)
        waiting = asyncio.create_task(b.acquire("s", 1))
        await until_waiting(a, 1)
        seen = await a.admin.inspect("s")
        assert (seen.limit, seen.held, seen.waiting) == (1, 1, 1)
        waiter, holder = seen.members  # those that wait come first
        assert (holder.node, holder.held, holder.waiting) == (a.node, 1, 0)
        assert (waiter.node, waiter.held, waiter.waiting) == (b.node, 0, 1)
        assert holder.longest_wait == waiter.oldest == 0
        assert re.fullmatch("n-[0-9a-f]{12}", a.node)
        assert repr(a) == f"<FairSemaphore {a.node}: 1 held, 0 waiting>"
        assert repr(b) == f"<FairSemaphore {b.node}: 0 held, 1 waiting>"
        assert repr(held) == "<Permit for 's': held>"
        held.release()
        permit = await waiting
        assert (held.waited, permit.waited) == (False, True)


@in_asyncio
async def test_a_full_server_goes_on_granting(server: RedisServer) -> None:
    async with FairSemaphore(server.url) as one, FairSemaphore(server.url) as two:
        held = await one.acquire("s", 1)
        with server.client() as client:
            client.config_set("maxmemory", 1)
        waiting = asyncio.ensure_future(two.acquire("s", 1))
        await until_waiting(one, 1)
        held.release()
        (await waiting).release()
        async with FairSemaphore(server.url) as three, three.permit("s", 1):
            pass
        held = await one.acquire("s", 1)
        await one.admin.trust()
        assert await two.admin.evict(one.node) == (1, 0), "room is made for what operators do"
    assert server.members() == {}


# Closing ----------------------------------------------------------------------------------------


@in_asyncio
async def test_a_semaphore_that_is_not_open_says_so_and_may_be_opened_again(
    server: RedisServer,
) -> None:
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
        await until_waiting(semaphore, 20)
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {ClosedError}
    assert server.members() == {}
    held.release()  # late, and no harm


@in_asyncio
async def test_draining_lets_nobody_in_and_leaves_what_is_held(server: RedisServer) -> None:
    async with FairSemaphore(server.url) as semaphore:
        held = await semaphore.acquire("s", 1)
        waiting = asyncio.create_task(semaphore.acquire("s", 1))
        await until_waiting(semaphore, 1)
        for _ in range(2):
            semaphore.drain()
        with pytest.raises(ClosedError):
            await waiting
        with pytest.raises(ClosedError):
            await semaphore.acquire("other", 1)
        await until_waiting(semaphore, 0)
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
async def test_what_an_earlier_opening_could_not_give_back_is_not_the_next_one_s(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "SHUTDOWN_TIMEOUT_S", 0.05)
    semaphore = FairSemaphore(server.url, node="n", lease=ENDLESS_S)
    name = semaphore.node
    async with semaphore, FairSemaphore(server.url, lease=ENDLESS_S) as other:
        await semaphore.acquire("s", 1)
        earlier = semaphore.node
        assert earlier == name, "it is known before it is opened"
        for task in semaphore._session._tasks:  # type: ignore[union-attr]  # it is cut off
            task.cancel()
        await semaphore.close()
        await semaphore.open()
        waiting = asyncio.create_task(semaphore.acquire("s", 1))
        await until_waiting(other, 1)
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


@in_asyncio
async def test_what_is_no_limit_is_refused(server: RedisServer) -> None:
    async with FairSemaphore(server.url) as semaphore:
        for limit in (0, -1, 1.5, "2", None, True, {"concurrency": 1}):
            wrong: Any = limit
            message = f"limit = {limit!r}: allowed is {ALLOWED_LIMIT}"
            with pytest.raises(SettingsError, match=re.escape(message)):
                await semaphore.acquire("s", wrong)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("lease", [0, -1, float("nan"), float("inf"), 86401]),
        ("recovery_wait", [-1, float("inf")]),
        ("turn", [-1, float("nan")]),
        ("prefix", ["", "a{b}"]),
    ],
)
def test_an_option_that_is_not_allowed_is_refused_by_name(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(SettingsError, match=re.escape(f"{name} = {value!r}: allowed is")):
            FairSemaphore("redis://localhost", **{name: value})
