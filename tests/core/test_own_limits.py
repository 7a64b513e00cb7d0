"""Limits that a node names for all its requests at a scope, and may change while they wait."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from semaphore_middleware import FairSemaphore, Limit
from semaphore_middleware.core.observer import LimitOverruled
from semaphore_middleware.model.limits import LIMITLESS
from tests.core.lone_node import LoneNode
from tests.support.simulated import SimulatedServer, in_simulated_time

LEASE_S = 15.0
SLACK_S = 0.1  # for messages, and timers of a millisecond


def delayed(seconds: float) -> Limit:
    return Limit(LIMITLESS, seconds)


@asynccontextmanager
async def nodes(*names: str) -> AsyncIterator[Sequence[FairSemaphore]]:
    server = SimulatedServer(lease=LEASE_S)
    opened = [server.node(node=name) for name in names]
    for node in opened:
        await node.open()
    yield opened
    for node in opened:
        await node.close()


class Site:
    """Where requests start, all of them known at once."""

    def __init__(self) -> None:
        self.starts: list[float] = []

    async def visit(self, node: FairSemaphore, times: int) -> None:
        await asyncio.gather(*(self._visit(node) for _ in range(times)))

    async def _visit(self, node: FairSemaphore) -> None:
        async with node.permit("s", 8):
            self.starts.append(asyncio.get_running_loop().time())
            await asyncio.sleep(0.01)

    @property
    def intervals(self) -> list[float]:
        return [after - before for before, after in itertools.pairwise(self.starts)]


@in_simulated_time
async def test_the_longest_delay_of_all_nodes_holds_also_for_what_waits() -> None:
    async with nodes("a", "b") as (a, b):
        site = Site()
        a.name_limit("s", "slot", delayed(2))
        b.name_limit("s", "slot", delayed(5))
        visits = asyncio.gather(site.visit(a, 12), site.visit(b, 6))
        await asyncio.sleep(16)
        assert site.intervals == pytest.approx([5] * 3, abs=SLACK_S)
        b.name_limit("s", "slot", delayed(1))
        await asyncio.sleep(12)
        assert site.intervals[4:] == pytest.approx([2] * len(site.intervals[4:]), abs=SLACK_S)
        a.name_limit("s", "slot", delayed(7))
        await visits
        assert site.intervals[-2:] == pytest.approx([7, 7], abs=SLACK_S)


@in_simulated_time
async def test_of_several_sources_the_strictest_counts_until_it_is_taken_back() -> None:
    async with nodes("a") as (a,):
        site = Site()
        a.name_limit("s", "one", delayed(3))
        a.name_limit("s", "other", delayed(5))
        visits = asyncio.ensure_future(site.visit(a, 6))
        await asyncio.sleep(11)
        a.name_limit("s", "other", None)
        await asyncio.sleep(6)
        a.name_limit("s", "one", None)
        await visits
        assert site.intervals[:2] == pytest.approx([5, 5], abs=SLACK_S)
        assert site.intervals[2:4] == pytest.approx([3, 3], abs=SLACK_S)
        assert site.intervals[4] < 2, "at once"


@in_simulated_time
async def test_it_counts_at_an_idle_site_for_the_next_request() -> None:
    async with nodes("a") as (a,):
        site = Site()
        a.name_limit("s", "slot", delayed(1))
        await site.visit(a, 1)
        a.name_limit("s", "slot", delayed(4))
        for _ in range(2):
            await asyncio.sleep(0.5)  # its lease is forgotten
            await site.visit(a, 1)
        assert site.intervals == pytest.approx([4, 4], abs=SLACK_S)


@in_simulated_time
async def test_it_ends_with_its_node_s_requests() -> None:
    async with nodes("a", "b") as (a, b):
        site = Site()
        a.name_limit("s", "slot", delayed(600))
        b.name_limit("s", "slot", delayed(1))
        waits = asyncio.ensure_future(site.visit(a, 2))
        await asyncio.sleep(1)
        visits = asyncio.ensure_future(site.visit(b, 5))
        await asyncio.sleep(1)
        waits.cancel()
        async with asyncio.timeout(LEASE_S):
            await visits
        assert site.intervals[-4:] == pytest.approx([1] * 4, abs=SLACK_S)


def test_only_a_limit_of_the_settings_is_overruled() -> None:
    """What AutoThrottle computes differs from node to node."""
    node = LoneNode()
    node.hold()
    node.lease.name_limits([delayed(1)])
    node.exchange(is_stricter=True)
    node.exchange()
    assert node.count(LimitOverruled) == 0
    node.lease.name_limits([])
    node.exchange(is_stricter=True)
    assert node.count(LimitOverruled) == 1
