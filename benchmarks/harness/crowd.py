"""Simulated nodes on a server of their own: who holds, who waits, and what there is besides."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Self

from benchmarks.harness.simulated_node import KEYS, SimulatedNode
from semaphore_middleware.core.session import ACCOUNTS_AT_ONCE
from semaphore_middleware.model.limits import Limit
from semaphore_middleware.redis.protocol import batches
from tests.support.servers import RedisServer

BATCH = 100  # permits a call
FULL, AROUND, LEAVING = "full.example", "around.example", "leaving.example"


@dataclass(frozen=True, slots=True)
class Size:
    """What there is on a server while it is measured."""

    waiters: int = 10  # for each site that is full; at least one a node
    scopes: int = BATCH  # in use by others, one permit each
    nodes: int = 2


class Crowd:
    """Nodes reduced to their statements, each with its two connections, in this one process."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.waiters = max(size.waiters, size.nodes)
        self.server = RedisServer()
        self._random = random.Random(1)
        self._nodes = [
            SimulatedNode(self.server.url, f"node-{number}") for number in range(size.nodes)
        ]
        self._limits = {FULL: Limit(BATCH * size.nodes), AROUND: Limit(1), LEAVING: Limit(1)}
        self._sites = [f"site-{number}.example" for number in range(size.scopes)]
        self._site_limit = Limit(2)  # so that there is room for one more
        self._holders: asyncio.Queue[SimulatedNode] = asyncio.Queue()  # of the one that goes around
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.server.start()
        self._stack.callback(self.server.remove)
        try:
            for node in self._nodes:
                await self._stack.enter_async_context(node)
                await node.listen(self._on_grant(node))
            await self._settle_in()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def _on_grant(self, node: SimulatedNode) -> Any:
        def on_grant(scope: str) -> None:
            if scope == AROUND:
                self._holders.put_nowait(node)

        return on_grant

    # What there is ------------------------------------------------------------------------------

    async def _settle_in(self) -> None:
        await self._use_sites(more=1)
        for node in self._nodes:
            await self._say(node, FULL, more=BATCH)
        self._holder = self._nodes[0]
        await self._say(self._holder, AROUND, more=1)
        await self._say(self._holder, LEAVING, more=1)
        each, rest = divmod(self.waiters, len(self._nodes))
        for number, node in enumerate(self._nodes):
            for site in self._limits:
                await self._say(node, site, more=each + (number < rest))

    async def _use_sites(self, more: int = 0, give_back: int = 0) -> None:
        """By the last node, one permit each."""
        node = self._nodes[-1]
        for sites in batches(self._sites, ACCOUNTS_AT_ONCE):
            await node.say(
                [node.statement(site, self._site_limit, more, give_back) for site in sites]
            )

    async def give_all_back(self) -> None:
        """First all who wait give up, or what is given back is granted to them."""
        await self._use_sites(give_back=1)
        for site in self._limits:
            for node in self._nodes:
                await self._say(node, site, more=-node.accounts[site].waiting)
            for node in self._nodes:
                await self._say(node, site, give_back=node.accounts[site].held)

    # What is measured ---------------------------------------------------------------------------

    async def batches(self, times: int) -> None:
        """At a full site, a node gives a batch back and asks for one: it holds the fewest then."""
        node = self._nodes[0]
        for _ in range(times):
            await self._say(node, FULL, more=BATCH, give_back=BATCH)
            assert node.accounts[FULL].held == BATCH

    async def spread(self, times: int) -> None:
        """Take and give back a permit at each of a batch of sites, from all that are in use."""
        node, limit = self._nodes[0], self._site_limit
        for _ in range(times):
            sites = self._random.sample(self._sites, BATCH)
            await node.say([node.statement(site, limit, more=1) for site in sites])
            await node.say([node.statement(site, limit, give_back=1) for site in sites])

    async def around(self, times: int) -> list[float]:
        """Hand one permit from node to node; seconds from a release to its being heard of."""
        seconds = []
        for _ in range(times):
            released = time.perf_counter()
            await self._say(self._holder, AROUND, more=1, give_back=1)
            if not self._holder.accounts[AROUND].held:  # else it was its own turn again
                self._holder = await self._holders.get()
                seconds.append(time.perf_counter() - released)
        return seconds

    def leavers(self, times: int) -> list[SimulatedNode]:
        """Nodes, each drawn by chance: any place in the queue may be theirs."""
        return self._random.choices(self._nodes, k=times)

    async def queue_up(self, nodes: list[SimulatedNode], requests: int) -> None:
        for node in nodes:
            await self._say(node, LEAVING, more=requests)

    async def give_up(self, nodes: list[SimulatedNode], requests: int) -> None:
        """So many requests of each node want no permit any more."""
        for node in nodes:
            await self._say(node, LEAVING, more=-requests)

    # What is left -------------------------------------------------------------------------------

    def bytes_of_a_site(self) -> int:
        """Memory for each of the sites in use, of which one permit is held."""
        return max(map(self._bytes_of, self._sites[:BATCH]))

    def bytes_of_the_waiters(self) -> int:
        """Memory for a full site with all that wait for it."""
        return self._bytes_of(LEAVING)

    def _bytes_of(self, site: str) -> int:
        with self.server.client() as client:
            usages = [client.memory_usage(key, samples=0) for key in KEYS.of(site)]
        return sum(usage or 0 for usage in usages)

    def keys_left(self) -> int:
        """Keys on the server, but for the epoch."""
        with self.server.client() as client:
            return sum(key != KEYS.epoch for key in client.scan_iter("{semaphore}:*", count=1000))

    async def _say(self, node: SimulatedNode, site: str, more: int = 0, give_back: int = 0) -> None:
        await node.say([node.statement(site, self._limits[site], more, give_back)])
