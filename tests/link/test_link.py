"""A server that is away is said at once, less and less often, and once when it is back."""

import asyncio
from itertools import pairwise
from types import SimpleNamespace

import pytest

from semaphore_middleware.errors import ServerUnreachableError
from semaphore_middleware.link import chance, link
from semaphore_middleware.link.link import Link
from semaphore_middleware.link.location import Server
from tests.support.crawls import Log, Patch

AWAY = ServerUnreachableError("cannot reach it")
HOUR_S = 3600.0


class Clock:
    """In place of the loop's: time passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: Patch) -> Clock:
    clock = Clock()
    ours = SimpleNamespace(get_running_loop=lambda: clock, sleep=clock.sleep, Lock=asyncio.Lock)
    monkeypatch.setattr(link, "asyncio", ours)
    return clock


async def test_a_server_that_is_away_is_said_less_and_less_often(
    clock: Clock, caplog: Log, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(chance, "fraction", lambda: 0.5)  # no jitter
    said: list[float] = []

    def while_away() -> str:
        said.append(clock.now)
        return "Nothing goes on"

    calls = Link(Server("redis://localhost", 1.0), while_away)
    messages = Link(calls.server, lambda: "Messages are late", companion=calls)
    while clock.now < HOUR_S:
        await calls.failed(AWAY)
        await messages.failed(AWAY)
    gaps = [round(later - one, 3) for one, later in pairwise(said)]
    assert said[0] == 0.0
    assert gaps[:7] == sorted(gaps[:7]), "each as long as it has lasted"
    assert all(300 <= gap < 303 for gap in gaps[7:])
    assert calls.problem is AWAY
    for one in (calls, messages):
        one.succeeded()
    assert calls.problem is None
    *_, last = caplog.messages
    assert len(caplog.messages) == len(said) + 1
    assert last.startswith("Reached redis://localhost:6379/0, after 3")
    await calls.failed(AWAY)
    assert len(caplog.messages) == len(said) + 1, "it has just been said"
    await clock.sleep(link.FIRST_LOG_INTERVAL_S)
    await calls.failed(AWAY)
    assert caplog.messages[-1] == "cannot reach it. Nothing goes on."


async def test_nodes_do_not_come_back_in_step(clock: Clock) -> None:
    pauses = []
    for _ in range(20):
        calls = Link(Server("redis://localhost", 1.0))
        for _ in range(10):
            before = clock.now
            await calls.failed(AWAY)
        pauses.append(clock.now - before)
    assert len({round(pause, 1) for pause in pauses}) >= 5
    assert all(1.0 <= pause < 3.0 for pause in pauses)


async def test_pauses_double_from_the_third_on(clock: Clock) -> None:
    calls, pauses = Link(Server("redis://localhost", 1.0)), []
    for _ in range(9):
        before = clock.now
        await calls.failed(AWAY)
        pauses.append(clock.now - before)
    first = link.FIRST_PAUSE_S
    means = [first, first, *(min(link.LONGEST_PAUSE_S, first * 2**n) for n in range(1, 8))]
    ratios = [pause / mean for pause, mean in zip(pauses, means, strict=True)]
    assert all(0.5 <= ratio < 1.5 for ratio in ratios), ratios


async def test_messages_that_are_missed_alone_are_said(clock: Clock, caplog: Log) -> None:
    calls = Link(Server("redis://localhost", 1.0))
    messages = Link(calls.server, lambda: "Messages are late", companion=calls)
    while clock.now < link.COMPANION_S + 2 * link.LONGEST_PAUSE_S:
        await messages.failed(AWAY)
    assert caplog.messages == ["cannot reach it. Messages are late."]
