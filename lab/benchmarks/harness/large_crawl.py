"""A large crawl, reduced to its statements: many nodes, very many sites, few requests at each.

`python -m lab.benchmarks.harness.large_crawl TOLD` runs some of the nodes; what it is told is JSON.
The nodes are simulated. They come at a steady rate and are batched as a session does it
(`semaphore_middleware.core.outbox`). Each process writes down when it heard of a permit and when
it gave it back: no server says how many were held at once.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from itertools import groupby
from random import Random
from typing import Any

from lab.benchmarks.harness.figures import most
from lab.benchmarks.harness.load import Result, Timetable, Visit, put_under_load, take_part, until
from lab.benchmarks.harness.simulated_node import SimulatedNode
from semaphore_middleware.core.outbox import ACCOUNTS_AT_ONCE, BUSY_INTERVAL_S, BUSY_SPACING_S
from semaphore_middleware.model.lease import RENEWAL
from semaphore_middleware.model.limits import Limit
from semaphore_middleware.redis.protocol import Statement, batches
from tests.support.servers import RedisServer

PROCESSES = 2  # of simulated nodes
PAGE_S = 0.5  # from a request to its response, on average; from half of that to half as much again
LEASE_S = 15.0  # by which the nodes renew
SITE_LIMIT = Limit(16)  # one permit is held all the time, and the others are enough
FULL_LIMIT = Limit(1)
QUEUE = 4  # nodes that want the permit of a full site: one has it, the others wait
WARM_UP_S = 3.0


@dataclass(frozen=True, slots=True)
class LargeCrawl:
    """What the nodes do."""

    nodes: int
    sites: int  # in use by another node, one permit each
    rate: float  # requests a second at them, by all nodes together
    full_sites: int  # each has a queue of nodes all the time

    @property
    def interval_s(self) -> float:
        """Between two requests of a node, on average."""
        return self.nodes / self.rate


@dataclass(frozen=True, slots=True)
class LargeResult(Result):
    """What was seen of a large crawl."""

    crawl: LargeCrawl

    @property
    def over(self) -> int:
        """The most permits above its limit that any site had out at once."""
        worst = 0
        for site, visits in groupby(self.visits, key=lambda visit: visit.site):
            limit = FULL_LIMIT.concurrency if site < 0 else SITE_LIMIT.concurrency - 1
            worst = max(worst, most(list(visits)) - limit)
        return worst


def name_of(site: int) -> str:
    return f"full-{-site}.example" if site < 0 else f"site-{site}.example"


def run(server: RedisServer, crawl: LargeCrawl, seconds: float) -> LargeResult:
    """Let the nodes crawl for so many seconds that are counted."""
    parts = [list(range(number, crawl.nodes, PROCESSES)) for number in range(PROCESSES)]
    told = [json.dumps([server.url, asdict(crawl), part]) for part in parts]
    commands = [(sys.executable, "-m", "lab.benchmarks.harness.large_crawl", one) for one in told]
    load = put_under_load(server, commands, WARM_UP_S, seconds)
    visits = [Visit(*visit) for seen in load.seen for visit in seen]
    in_order = sorted(visits, key=lambda visit: (visit.site, visit.begin))
    return LargeResult(in_order, load, crawl)


# In a process -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Due:
    """What a node's next statement about a site is to say."""

    more: int = 0
    give_back: int = 0


class BusyNode:
    """A node of the crawl, which adds its visits to a log."""

    def __init__(self, url: str, number: int, crawl: LargeCrawl, log: list[Visit]) -> None:
        self._node = SimulatedNode(url, f"node-{number}")
        self._number = number
        self._crawl = crawl
        self._log = log
        self._random = Random(number)
        self._loop = asyncio.get_running_loop()
        self._sites: dict[str, int] = {}  # by name: those in which there is anything
        self._due: dict[str, Due] = {}
        self._running: Counter[str] = Counter()
        self._work = asyncio.Event()
        self._settled = asyncio.Event()
        self._batch_timer: asyncio.TimerHandle | None = None
        self._is_ending = False
        # The nodes of a queue are neighbours: those of both processes.
        self._full_sites = [
            -1 - site for site in range(crawl.full_sites) if (number - site) % crawl.nodes < QUEUE
        ]

    async def join(self, stack: AsyncExitStack) -> None:
        await stack.enter_async_context(self._node)
        await self._node.listen(self._begin_granted)

    async def crawl(self, times: Timetable) -> None:
        """To the end, and until the last permit was given back."""
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(self._serve()), tasks.create_task(self._renew())]
            for site in self._full_sites:
                self._say(site, at_once=True, more=1)
            asking = tasks.create_task(self._ask(times))
            await until(times.end)
            asking.cancel()
            self._is_ending = True
            for site in self._full_sites:
                if not self._running[name_of(site)]:
                    self._say(site, at_once=True, more=-1)
            while self._sites:
                self._settled.clear()
                await self._settled.wait()
            for task in background:
                task.cancel()

    async def _ask(self, times: Timetable) -> None:
        """Requests come at random, however long the others wait."""
        is_busy = self._crawl.interval_s < BUSY_INTERVAL_S
        moment = times.start
        while True:
            moment += self._random.expovariate(1 / self._crawl.interval_s)
            await until(moment)
            self._say(self._random.randrange(self._crawl.sites), at_once=not is_busy, more=1)

    def _say(self, site: int, at_once: bool, more: int = 0, give_back: int = 0) -> None:
        name = name_of(site)
        self._sites[name] = site
        due = self._due.setdefault(name, Due())
        due.more += more
        due.give_back += give_back
        if at_once:
            self._work.set()
        elif self._batch_timer is None:
            self._batch_timer = self._loop.call_later(BUSY_SPACING_S, self._end_batch)

    def _end_batch(self) -> None:
        self._batch_timer = None
        self._work.set()

    def _begin_granted(self, name: str) -> None:
        """Begin the requests whose permits have come."""
        due = self._due.get(name)
        held = self._node.held(name) - (due.give_back if due else 0)
        while self._running[name] < held:
            self._running[name] += 1
            page_s = self._random.uniform(0.5, 1.5) * PAGE_S
            self._loop.call_later(page_s, self._end, name, time.monotonic())

    def _end(self, name: str, began: float) -> None:
        site = self._sites[name]
        self._running[name] -= 1
        self._log.append(Visit(site, self._number, began, time.monotonic()))
        is_full = site < 0
        asks_again = is_full and not self._is_ending
        self._say(site, at_once=is_full, more=int(asks_again), give_back=1)

    async def _renew(self) -> None:
        await asyncio.sleep(self._random.random() * RENEWAL * LEASE_S)
        while True:
            for name, book in self._node.books.items():
                if book.held or book.waiting:
                    self._due.setdefault(name, Due())
            self._work.set()
            await asyncio.sleep(RENEWAL * LEASE_S)

    async def _serve(self) -> None:
        """Say what is due, one round trip at a time."""
        while True:
            await self._work.wait()
            self._work.clear()
            due, self._due = self._due, {}
            for names in batches(list(due), ACCOUNTS_AT_ONCE):
                await self._node.tell([self._statement(name, due[name]) for name in names])
                for name in names:
                    self._begin_granted(name)
                    self._forget_empty(name)

    def _statement(self, name: str, due: Due) -> Statement:
        # Of the requests that were to give up, some may have been granted a permit meanwhile.
        more = max(due.more, -self._node.book(name).waiting)
        limit = FULL_LIMIT if self._sites[name] < 0 else SITE_LIMIT
        return self._node.wish(name, limit, more, due.give_back)

    def _forget_empty(self, name: str) -> None:
        book = self._node.book(name)
        if not (book.held or book.waiting or name in self._due):
            del self._node.books[name], self._sites[name], self._running[name]
            self._settled.set()


async def crawl_with(url: str, crawl: LargeCrawl, numbers: Sequence[int]) -> None:
    """The nodes of these numbers."""
    log: list[Visit] = []
    async with AsyncExitStack() as stack:
        nodes = [BusyNode(url, number, crawl, log) for number in numbers]
        for node in nodes:
            await node.join(stack)

        async def work(times: Timetable) -> Any:
            await asyncio.gather(*(node.crawl(times) for node in nodes))
            return log

        await take_part(work)


if __name__ == "__main__":
    url, crawl, numbers = json.loads(sys.argv[1])
    asyncio.run(crawl_with(url, LargeCrawl(**crawl), numbers))
