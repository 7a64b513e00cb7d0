"""A task may be cancelled at any await, a permit lost at any moment: nothing leaks."""

import asyncio
import re
from typing import Any

import pytest

from semaphore_middleware import AcquireTimeoutError, ClosedError, FairSemaphore, PermitLostError
from semaphore_middleware.core.observer import AcquireTimedOut
from tests.support.crawls import Log
from tests.support.nodes import Outside, Recorder, eventually
from tests.support.servers import RedisServer
from tests.support.simulated import SimulatedServer, in_simulated_time
from tests.support.times import ENDLESS_S


@in_simulated_time
async def test_a_lost_permit_ends_what_runs_under_it(caplog: Log) -> None:
    server = SimulatedServer(lease=15.0)
    async with server.node() as semaphore:
        unwatched = await semaphore.acquire("unwatched", 1)
        with pytest.raises(PermitLostError, match="so its work was stopped"):
            async with semaphore.permit("s", 1) as permit:
                server.lose("s", "unwatched")  # the next renewal shows it
                await asyncio.sleep(ENDLESS_S)
        assert not permit.lost, "it was given back"
        assert re.search(r"A permit for 's' .*: its request is aborted\.", caplog.text)
        assert re.search(
            r"A permit for 'unwatched' .*: a request that has begun under it is not aborted\.",
            caplog.text,
        )
        with pytest.raises(PermitLostError) as lost, unwatched.until_lost():
            pytest.fail("it has begun")
        assert "stopped" not in str(lost.value)
        unwatched.release()
        kept = await semaphore.acquire("kept", 1)
        with pytest.raises(PermitLostError):
            async with semaphore.permit("s", 1) as permit:
                with kept.until_lost():
                    permit._lose("it is gone")
                    await asyncio.sleep(ENDLESS_S)
        assert not kept.lost
        with pytest.raises(PermitLostError):
            async with semaphore.permit("s", 1) as permit:
                with permit.until_lost():  # as a helper does that gets the permit
                    pass
                permit._lose("it is gone")
                await asyncio.sleep(ENDLESS_S)


async def test_no_cancellation_is_left_behind_whatever_the_body_does(server: RedisServer) -> None:
    task = asyncio.current_task()
    assert task is not None
    async with FairSemaphore(server.url) as semaphore:
        permit = await semaphore.acquire("s", 1)
        with pytest.raises(PermitLostError, match="it is gone"), permit.until_lost():
            try:
                permit._lose("it is gone")
                await asyncio.sleep(ENDLESS_S)
            finally:
                permit.release()
        with pytest.raises(ZeroDivisionError):
            async with semaphore.permit("s", 1) as permit:
                try:
                    permit._lose("it is gone")
                    await asyncio.sleep(ENDLESS_S)
                except asyncio.CancelledError:
                    raise ZeroDivisionError from None
        assert task.cancelling() == 0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.sleep(ENDLESS_S)
        permit = await semaphore.acquire("s", 1)
        permit._lose("it is gone")
        with pytest.raises(PermitLostError, match="it is gone"), permit.until_lost():
            pytest.fail("it has begun")
        permit.release()


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_cancellation_from_outside_stays_one(server: RedisServer, is_lost: bool) -> None:
    entered, ending = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        async with semaphore.permit("s", 1):
            entered.set()
            try:
                await asyncio.sleep(ENDLESS_S)
            finally:
                ending.set()
                for _ in range(5):
                    await asyncio.sleep(0)

    async with FairSemaphore(server.url) as semaphore:
        task = asyncio.create_task(work())
        await entered.wait()
        if is_lost:
            for permit in semaphore.permits():
                permit._lose("it is gone")
            await ending.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: server.members() == {})


@pytest.mark.parametrize("then", ["close", "open"])
async def test_closing_within_a_permit_gives_it_back(server: RedisServer, then: str) -> None:
    async with FairSemaphore(server.url) as semaphore:
        with pytest.raises(PermitLostError, match="was closed over a permit for 's'"):
            async with semaphore.permit("s", 1):
                await semaphore.close()
        await getattr(semaphore, then)()
        assert server.members() == {}


# Of several scopes --------------------------------------------------------------------------------

HOST, DOMAIN, ALL = WANTED = "www.example.org", "domain:example.org", "all"
ENDS = {"timeout": AcquireTimeoutError, "cancelled": asyncio.CancelledError, "closed": ClosedError}


@pytest.mark.parametrize(("way", "error"), ENDS.items())
async def test_nothing_is_left_when_a_later_permit_does_not_come(
    server: RedisServer, outside: Outside, way: str, error: type[BaseException]
) -> None:
    seen = Recorder()
    async with (
        FairSemaphore(server.url, reuse_window=0, observers=[seen]) as one,
        FairSemaphore(server.url) as other,
    ):
        blocker = await other.acquire(ALL, 1)
        timeout = 0.05 if way == "timeout" else None
        waiting = asyncio.ensure_future(one.acquire_all([(HOST, 1), (ALL, 1)], timeout))

        async def held(count: int) -> bool:
            return sum(outside.held(HOST).values()) == count

        if way != "timeout":
            await eventually(lambda: held(1))
            waiting.cancel() if way == "cancelled" else await one.close()
        with pytest.raises(error) as raised:
            await waiting
        assert list(one.permits()) == []
        assert timeout is None or str(raised.value).startswith("no permit for 'all' within 0.05 s")
        await eventually(lambda: held(0))
        timed_out = [e.permit.scope for e in seen.events if isinstance(e, AcquireTimedOut)]
        assert timed_out == [ALL] * bool(timeout)
        blocker.release()


async def test_all_are_taken_anew_if_one_is_lost(server: RedisServer, outside: Outside) -> None:
    async with FairSemaphore(server.url) as one, FairSemaphore(server.url) as other:
        blocker = await other.acquire(ALL, 1)
        steps: list[tuple[int, bool]] = []
        asked = one.acquire_all([(HOST, 1), (ALL, 1)], on_progress=lambda *step: steps.append(step))
        waiting = asyncio.ensure_future(asked)
        await eventually(lambda: steps == [(1, False), (1, True)])
        lost = next(permit for permit in one.permits() if permit.scope == HOST)
        lease: Any = lost._lease
        lease.lose_all("was lost")
        await eventually(lambda: steps[2:4] == [(0, False), (1, False)])
        await eventually(lambda: outside.waiting(ALL))
        blocker.release()
        assert not [permit for permit in (await waiting).permits if permit.lost]


@pytest.mark.parametrize("scope", WANTED)
async def test_the_loss_of_any_ends_what_runs(server: RedisServer, scope: str) -> None:
    async with FairSemaphore(server.url) as one:
        permits = await one.acquire_all([(name, 1) for name in WANTED])
        permits.begin()
        lost = next(permit for permit in permits.permits if permit.scope == scope)
        with pytest.raises(PermitLostError), permits.until_lost():
            asyncio.get_running_loop().call_soon(lost._lose, "it is gone")
            await asyncio.sleep(ENDLESS_S)
        permits.release()


async def test_the_answer_is_noted_on_one_and_its_latency_on_all(server: RedisServer) -> None:
    async with FairSemaphore(server.url) as one:
        refused = await one.acquire_all([("my own", 1), (HOST, 1), (ALL, 1)])
        assert refused.site_permit is refused.permits[1]
        refused.site_permit.refused()
        refused.release()
        assert [permit._outcome is None for permit in refused.permits] == [True, False, True]
        answered = await one.acquire_all([(DOMAIN, 1), (ALL, 1)])
        assert answered.site_permit is answered.permits[0]
        answered.site_permit.answered(0.5)
        answered.release()
        latencies = [permit._outcome and permit._outcome.latency for permit in answered.permits]
        assert latencies == [0.5, 0.5]
        assert (await one.acquire_all([("proxy:a:1", 1), (ALL, 1)])).site_permit is None
