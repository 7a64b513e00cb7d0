"""Simulated nodes on a server of their own: who holds, who waits, and what there is besides."""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Self

from semaphore_middleware.model.limits import Limit
from semaphore_middleware.redis.connection import Connection
from semaphore_middleware.redis.location import Server
from semaphore_middleware.redis.protocol import PERMITS_PER_CALL, Ask, Notification, Reply, Verb
from tests.support.nodes import Caller
from tests.support.servers import RedisServer

BATCH = 100  # permits a call
QUIET = 600.0  # seconds: nobody asks whether the server is there
SITE = "{}.example"


@dataclass(frozen=True, slots=True)
class Size:
    """What there is on a server while it is measured."""

    waiters: int = 10  # in line for each site that is full; at least one a node
    scopes: int = BATCH  # in use by others, one permit each
    nodes: int = 2


class Crowd:
    """Nodes reduced to their calls, each with its two connections, in this one process."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.waiters = max(size.waiters, size.nodes)
        self.server = RedisServer()
        self._dice = random.Random(1)
        self._numbers: dict[int, int] = defaultdict(int)  # node -> last number it used
        # Node and scope -> what it has asked for and not given back, in order. A dict, for a list
        # would be searched from end to end while the clock runs.
        self._own: dict[tuple[int, str], dict[int, None]] = defaultdict(dict)
        self._limits: dict[str, Limit] = {}
        self._grants: asyncio.Queue[tuple[int, int]] = asyncio.Queue()  # node, number
        self._ears: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self.server.start()
        nodes = range(self.size.nodes)
        self._callers = [await Caller.join(self.server, f"node-{node}") for node in nodes]
        link_to = Server(self.server.url, 5.0)
        listening = [asyncio.Event() for _ in nodes]
        for node in nodes:
            link = await link_to.connect()
            self._ears.append(asyncio.create_task(self._listen(node, link, listening[node])))
        for event in listening:
            await event.wait()
        await self._settle_in()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._ears:
            task.cancel()
        await asyncio.gather(*self._ears, return_exceptions=True)
        for caller in self._callers:
            await caller.connection.close()
        self.server.remove()

    async def _listen(self, node: int, link: Connection, listening: asyncio.Event) -> None:
        def hear(payload: bytes | None) -> None:
            if payload is None:
                listening.set()
            elif message := Notification.read(payload):
                for number in message.granted:
                    self._grants.put_nowait((node, number))

        await link.listen(self._callers[node].store.channels, QUIET, hear)

    # What there is ------------------------------------------------------------------------------

    async def _settle_in(self) -> None:
        before = self._memory()
        await self._use_scopes()
        self.bytes_a_scope = (self._memory() - before) / self.size.scopes
        full, around, leaving = (SITE.format(name) for name in ("full", "around", "leaving"))
        self._limits[full] = Limit(BATCH * self.size.nodes)
        self._limits[around] = self._limits[leaving] = Limit(1)
        for node in range(self.size.nodes):
            await self._ask(node, full, BATCH)
        before = self._memory()
        await self._ask(0, full, self.waiters)  # in its own order: it knows who is next
        self.bytes_a_waiter = (self._memory() - before) / self.waiters
        await self._ask(0, around, 1)
        await self._ask(0, leaving, 1)
        self._turn = 0, next(iter(self._own[0, around]))
        shares = [self.waiters // self.size.nodes] * self.size.nodes
        for node in range(self.waiters % self.size.nodes):
            shares[node] += 1
        for node, share in enumerate(shares):
            await self._ask(node, around, share)
            await self._ask(node, leaving, share)

    async def _use_scopes(self) -> None:
        """By the last node: one permit each, of two, so that there is room for one more."""
        self._scopes = [f"site-{number}.example" for number in range(self.size.scopes)]
        caller, limit = self._callers[-1], Limit(2)
        for start in range(0, len(self._scopes), PERMITS_PER_CALL):
            scopes = self._scopes[start : start + PERMITS_PER_CALL]
            asks = [Ask("acquire", s, limit, tuple(self._new(-1, s, 1))) for s in scopes]
            self._limits.update(dict.fromkeys(scopes, limit))
            await caller.store.run(caller.connection, asks)

    async def give_all_back(self) -> None:
        asks: dict[int, list[Ask]] = defaultdict(list)
        for (node, scope), numbers in self._own.items():
            if numbers:
                asks[node].append(Ask("release", scope, self._limits[scope], tuple(numbers)))
        for node, said in asks.items():
            caller = self._callers[node]
            await caller.store.run(caller.connection, said)

    # What is measured ---------------------------------------------------------------------------

    async def batches(self, times: int) -> None:
        """On a full site, one node asks for a batch and gives one back: as many are granted."""
        site = SITE.format("full")
        for _ in range(times):
            oldest = list(islice(self._own[0, site], BATCH))
            new = self._new(0, site, BATCH)
            _, released = await self._say(0, site, ("acquire", new), ("release", oldest))
            assert len(released.granted) == BATCH

    async def spread(self, times: int) -> None:
        """Take and give back a permit at each of a batch of sites, from all that are in use."""
        for _ in range(times):
            sites = self._dice.sample(self._scopes, BATCH)
            caller = self._callers[0]
            for verb in ("acquire", "release"):
                number = (10**9,)  # nobody's own: at each site it is given back at once
                asks = [Ask(verb, site, self._limits[site], number) for site in sites]
                await caller.store.run(caller.connection, asks)

    async def around(self, times: int) -> list[float]:
        """Hand one permit from node to node; seconds from a release to its being heard of."""
        site = SITE.format("around")
        seconds = []
        for _ in range(times):
            node, number = self._turn
            new = self._new(node, site, 1)
            released = time.perf_counter()
            answers = await self._say(node, site, ("release", [number]), ("acquire", new))
            if own := [number for answer in answers for number in answer.granted]:
                self._turn = node, own[0]
            else:
                self._turn = await self._grants.get()
                seconds.append(time.perf_counter() - released)
        return seconds

    async def queue_up(self, times: int) -> None:
        await self._ask(0, SITE.format("leaving"), times)

    async def give_up(self, times: int, at_once: int) -> None:
        """Somebody who waits, anywhere in the line, wants no more."""
        site = SITE.format("leaving")
        for _ in range(0, times, at_once):
            _holder, *waiting = self._own[0, site]
            await self._say(0, site, ("release", self._dice.sample(waiting, at_once)))

    def keys(self) -> tuple[int, int]:
        """Keys on the server: of scopes, and of epochs."""
        with self.server.client() as client:
            keys = [bytes(key) for key in client.scan_iter("semaphore:*", count=1000)]
        epochs = sum(key.endswith(b":epoch") for key in keys)
        return len(keys) - epochs, epochs

    def _memory(self) -> int:
        with self.server.client() as client:
            return int(client.info("memory")["used_memory"])

    # What is said -------------------------------------------------------------------------------

    async def _ask(self, node: int, scope: str, permits: int) -> None:
        if permits:
            await self._say(node, scope, ("acquire", self._new(node, scope, permits)))

    async def _say(self, node: int, scope: str, *words: tuple[Verb, Sequence[int]]) -> list[Reply]:
        """In one round trip, as a node's loop does with what comes up in one turn."""
        own = self._own[node, scope]
        for verb, numbers in words:
            if verb == "release":
                for number in numbers:
                    del own[number]
        caller, limit = self._callers[node], self._limits[scope]
        asks = [Ask(verb, scope, limit, tuple(numbers)) for verb, numbers in words]
        return await caller.store.run(caller.connection, asks)

    def _new(self, node: int, scope: str, permits: int) -> list[int]:
        node %= self.size.nodes
        first = self._numbers[node] + 1
        self._numbers[node] += permits
        numbers = list(range(first, first + permits))
        self._own[node, scope].update(dict.fromkeys(numbers))
        return numbers
