"""Bad arguments of a semaphore: each is refused at once, and costs no other request."""

import asyncio
import math
from collections.abc import Callable
from typing import Any, cast

import pytest

from semaphore_middleware import AcquireTimeoutError, FairSemaphore, SettingsError, SyncSemaphore
from semaphore_middleware.model.feedback import Backoff
from semaphore_middleware.model.limits import Limit
from tests.support.servers import RedisServer
from tests.support.simulated import SimulatedServer, in_simulated_time

HUGE = 10**400


class Raising:
    """Raises in every operation."""

    def __repr__(self) -> str:
        return "<Raising>"

    def __float__(self) -> float:
        raise RuntimeError

    __bool__ = __hash__ = __len__ = __str__ = __float__  # type: ignore[assignment]


NAMES: list[Any] = [
    None,
    b"s",
    7,
    math.nan,
    "",
    "s" * 1001,
    "a\nb",
    "https://example.com/x",
    [],
    Raising(),
]
NUMBERS: list[Any] = ["high", b"1", math.nan, math.inf, HUGE, True, Raising()]


@pytest.mark.parametrize("name", ["url", "node"])
@pytest.mark.parametrize("value", [b"a", 7, math.nan, [], Raising()])
def test_an_address_and_a_node_s_name_are_texts(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=f"{name} = .*: allowed is a text, or None"):
        FairSemaphore(**{name: value})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Backoff(start=cast("Any", "1")), "Backoff.start = '1': allowed is a number"),
        (lambda: Limit(cast("Any", None)), "Limit.concurrency = None: allowed is an integer >= 1;"),
    ],
)
def test_a_bad_part_of_a_value_is_named(make: Callable[[], object], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        make()


async def test_a_bad_argument_is_refused_and_others_are_served(server: RedisServer) -> None:
    def refused(what: str) -> Any:
        return pytest.raises(SettingsError, match=what)

    async with FairSemaphore(server.url) as semaphore:
        held = await semaphore.acquire("s", 1)
        waiting = asyncio.ensure_future(semaphore.acquire("s", 1))
        for name in NAMES:
            with refused("the scope"):
                await semaphore.acquire(name, 2)
            with refused("the scope"):
                await semaphore.acquire_all([("other", 1), (name, 2)])
        for number in NUMBERS:
            with refused("timeout"):
                await semaphore.acquire("s", 1, timeout=number)
            with refused("priority"):
                await semaphore.acquire("s", 1, priority=number)
            if number != HUGE:  # which is no limit
                with refused("the limit of"):
                    await semaphore.acquire("s", number)
        with refused(r"timeout = -0\.1: allowed is None, or a number >= 0"):
            await semaphore.acquire("s", 1, timeout=-0.1)
        for value in ("high", math.nan, HUGE, Raising()):
            with refused("latency"):
                held.answered(value)  # type: ignore[arg-type]
        with refused("status"):
            held.refused(status=HUGE)
        held.refused(retry_after=HUGE, quota_interval=HUGE)  # a site's numbers are cut
        held._outcome = None
        held.release()
        (await waiting).release()
    assert server.members() == {}


@in_simulated_time
async def test_a_timeout_of_0_takes_what_is_free_now_or_nothing() -> None:
    server = SimulatedServer(lease=15.0)
    async with server.node() as one, server.node() as two:
        async with one.permit("s", 1, timeout=0):
            with pytest.raises(AcquireTimeoutError, match="within 0 s"):
                await two.acquire("s", 1, timeout=0)
            assert not two.permits()
        async with two.permit("free", 1, timeout=0):
            pass
        now = server.world.now
        server.network.freeze_server(two.longest_call + 1.0)
        with pytest.raises(AcquireTimeoutError):
            await two.acquire("late", 1, timeout=0)
        assert server.world.now == pytest.approx(now + two.longest_call)
        async with one.permit("late", 1):
            assert not two.permits(), "a grant that came too late was given back"
    assert server.held("late") == {}


def test_a_thread_has_the_same_checks(server: RedisServer) -> None:
    with SyncSemaphore(server.url) as semaphore:
        for name in NAMES:
            with pytest.raises(SettingsError):
                semaphore.permit(name, 1).__enter__()
        with pytest.raises(SettingsError):
            semaphore.permit("s", 1, timeout="1").__enter__()  # type: ignore[arg-type]
        with semaphore.permit("s", 1, timeout=0), pytest.raises(AcquireTimeoutError):
            semaphore.permit("s", 1, timeout=0).__enter__()


async def test_what_a_callers_own_function_raises_is_the_callers(server: RedisServer) -> None:
    def on_progress(*_: object) -> None:
        raise LookupError

    async with FairSemaphore(server.url) as semaphore:
        held = await semaphore.acquire("s", 1)
        with pytest.raises(LookupError):
            await semaphore.acquire_all([("s", 1)], on_progress=on_progress)
        held.release()
        async with semaphore.permit("s", 1):
            pass
