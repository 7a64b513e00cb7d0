"""FairSemaphore as programs use it, on plain asyncio."""

import asyncio
import re
from collections.abc import Callable

import pytest
import uvloop

from semaphore_middleware import ClosedError, FairSemaphore, Limit, SemaphoreError
from semaphore_middleware.core.observer import Observer, PermitGranted
from semaphore_middleware.core.semaphore import CLOSE_S, checked_limit
from semaphore_middleware.model.limits import GivenLimit
from tests.support.nodes import Loop, Recorder, eventually, until_waiting
from tests.support.servers import RedisServer
from tests.support.simulated import SimulatedServer, in_simulated_time
from tests.support.times import ENDLESS_S


@pytest.mark.parametrize("loop_of", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_never_more_than_the_limit_hold_a_permit_and_all_get_theirs(
    server: RedisServer, loop_of: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    inside = most = 0

    async def work(semaphore: FairSemaphore) -> None:
        nonlocal inside, most
        async with semaphore.permit("s", 4):
            inside += 1
            most = max(most, inside)
            for _ in range(3):
                await asyncio.sleep(0)
            inside -= 1

    async def race() -> None:
        async with FairSemaphore(server.url) as a, FairSemaphore(server.url) as b:
            await asyncio.gather(*(work(semaphore) for semaphore in (a, b) for _ in range(100)))

    with Loop(loop_of) as loop:
        loop.run(race())
    assert (inside, most) == (0, 4)
    assert server.members() == {}


@pytest.mark.parametrize("window", [ENDLESS_S, 0])
async def test_requests_follow_each_other_in_their_order(
    server: RedisServer, window: float
) -> None:
    recorder = Recorder()
    order: list[int] = []

    async def work(number: int) -> None:
        async with semaphore.permit("s", 1):
            order.append(number)
            await asyncio.sleep(0)

    async with FairSemaphore(server.url, reuse_window=window, observers=[recorder]) as semaphore:
        await asyncio.gather(*map(work, range(100)))
        assert window == 0 or server.calls("evalsha") < 50
    assert order == list(range(100))
    grants = [event for event in recorder.events if isinstance(event, PermitGranted)]
    assert [grant.reused for grant in grants] == [False] + 99 * [window > 0]
    assert server.members() == {}


async def test_a_decorated_coroutine_takes_a_permit_for_each_call(server: RedisServer) -> None:
    semaphore = FairSemaphore(server.url)
    held: list[int] = []

    @semaphore.permit("s", 1)
    async def work(number: int) -> int:
        held.append(server.members()["s"][0])
        return number

    async with semaphore:
        assert await asyncio.gather(*map(work, range(5))) == [*range(5)]
    assert held == 5 * [1]
    assert server.members() == {}


async def test_what_is_shown_of_a_semaphore_and_a_permit(server: RedisServer) -> None:
    async with FairSemaphore(server.url, node="n") as semaphore:
        held = await semaphore.acquire("s", 1)
        assert re.fullmatch("n-[0-9a-f]{12}", semaphore.node)
        assert repr(semaphore) == f"<FairSemaphore {semaphore.node}: 1 held, 0 waiting>"
        assert repr(held) == "<Permit for 's': held>"


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


async def test_one_that_is_not_open_raises_an_error_and_may_be_opened(server: RedisServer) -> None:
    semaphore = FairSemaphore(server.url)
    names = []
    for _ in range(2):
        names.append(semaphore.node)
        with pytest.raises(ClosedError, match="async with"):
            await semaphore.acquire("s", 1)
        with pytest.raises(ClosedError, match="async with"):
            await semaphore.admin.inspect("s")
        assert repr(semaphore).endswith(": closed>")
        await semaphore.close()  # does nothing
        async with semaphore:
            names.append(semaphore.node)
            with pytest.raises(SemaphoreError, match="open already"):
                await semaphore.open()
            assert await semaphore.acquire("s", 1)
    assert names[0] == names[1] != names[3], "what an earlier opening has left is not its own"


async def test_closing_waits_for_no_failures_that_it_remembers(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with FairSemaphore(server.url) as semaphore:
        permit = await semaphore.acquire("s", 1)
        permit.failed()
        permit.release()
        await eventually(lambda: server.members() == {})
    assert "Could not give" not in caplog.text


@in_simulated_time
async def test_closing_while_someone_looks_is_no_cancellation() -> None:
    server = SimulatedServer(lease=15.0)
    semaphore = server.node()
    await semaphore.open()
    server.network.freeze_server(ENDLESS_S)
    looking = asyncio.create_task(semaphore.admin.inspect("s"))
    await asyncio.sleep(0)
    await semaphore.close()
    with pytest.raises(ClosedError):
        await looking


@in_simulated_time
async def test_closing_has_one_budget_of_time_for_all() -> None:
    """For the session, the history, and an observer whose `close` never ends."""

    class Endless(Observer):
        async def close(self) -> None:
            await asyncio.get_running_loop().create_future()

    server = SimulatedServer(lease=15.0)
    semaphore = server.node(observers=[Endless()])
    await semaphore.open()
    await semaphore.acquire("s", 1)
    server.network.freeze_server(ENDLESS_S)
    began = server.world.now
    await semaphore.close()
    assert server.world.now == pytest.approx(began + CLOSE_S), "not a budget each"


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        (2, "limit 2"),
        ({"concurrency": 2, "delay": 0.5}, "limit 2, delay 0.5 s"),
        ({"rate": "9/s"}, "no limit, rate 9/s"),
        (None, "no limit"),
        (Limit(2), "limit 2"),
    ],
)
def test_a_limit_is_written_as_in_the_settings(limit: GivenLimit, said: str) -> None:
    assert str(checked_limit("s", limit)) == said


async def test_another_event_loop_is_told_to_open_its_own(server: RedisServer) -> None:
    async with FairSemaphore(server.url) as semaphore:
        permit = await semaphore.acquire("s", 1)
        for use in (semaphore.acquire("s", 1), semaphore.close()):
            with pytest.raises(ClosedError, match=r"another event loop: .* a SyncSemaphore"):
                await asyncio.to_thread(asyncio.run, use)
        await asyncio.to_thread(permit.release)  # is for any thread
        await until_waiting(semaphore, 0)
        assert not semaphore.permits()
