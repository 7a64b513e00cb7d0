"""A large crawl, reduced to its statements: many nodes, very many sites, few requests at each.

The nodes are simulated, some in each of two processes. They come at a steady rate and are batched
as a session does it (`semaphore_middleware.core.session`). Each process writes down when it heard
of a permit and when it gave it back, on CLOCK_MONOTONIC, which Linux keeps for all processes of a
machine together: no server says how many were held at once.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from multiprocessing.connection import Connection
from random import Random
from typing import Any, NamedTuple, Self

import redis

from benchmarks.harness.in_hand import most
from benchmarks.harness.meter import Reading
from benchmarks.harness.simulated_node import SimulatedNode
from semaphore_middleware.core.session import ACCOUNTS_AT_ONCE, BATCH_DELAY_S, BUSY_INTERVAL_S
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
START_S = 0.5  # from when all are told to when they start
WARM_UP_S = 3.0  # from then to when the counted time begins
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class LargeCrawl:
    """What the nodes do."""

    nodes: int
    sites: int  # in use by another node, one permit each
    rate: float  # requests a second at them, by all nodes together
    full_sites: int  # each has a queue of nodes all the time
    seconds: float  # that are counted

    @property
    def interval_s(self) -> float:
        """Between two requests of a node, on average."""
        return self.nodes / self.rate


class Visit(NamedTuple):
    """A permit, from when the node heard of it to when it gave it back."""

    site: int  # full sites count down from -1
    node: int
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Result:
    """What was seen in the counted time; `visits` has those before and after it, too."""

    visits: Sequence[Visit]  # by site, in the order of their beginnings
    begin: float
    end: float
    calls: int
    client_seconds: float  # of processor time, of all simulated nodes
    server: Reading

    @property
    def permits(self) -> int:
        return sum(self.begin <= visit.begin < self.end for visit in self.visits)

    @property
    def over(self) -> int:
        """The most permits above its limit that any site had out at once."""
        worst = 0
        for site, visits in groupby(self.visits, key=lambda visit: visit.site):
            limit = FULL_LIMIT.concurrency if site < 0 else SITE_LIMIT.concurrency - 1
            worst = max(worst, most(list(visits)) - limit)
        return worst

    @property
    def handoffs(self) -> list[float]:
        """Seconds from a release on one node to when another one heard of its permit."""
        return [
            after.begin - before.end
            for before, after in pairwise(self.visits)
            if before.site == after.site < 0
            and before.node != after.node
            and self.begin <= after.begin < self.end
        ]


def name_of(site: int) -> str:
    return f"full-{-site}.example" if site < 0 else f"site-{site}.example"


class Holder:
    """A node that holds a permit of each site all the time."""

    def __init__(self, server: RedisServer) -> None:
        self._node = SimulatedNode(server.url, "holder")
        self._held = 0

    async def __aenter__(self) -> Self:
        await self._node.__aenter__()
        return self

    async def __aexit__(self, *exit: object) -> None:
        await self._node.__aexit__(*exit)

    async def hold(self, sites: int) -> None:
        """So many sites from now on. It remembers the last of them only, to renew them."""
        for numbers in batches(range(self._held, sites), ACCOUNTS_AT_ONCE):
            self._node.accounts.clear()
            names = map(name_of, numbers)
            await self._node.say([self._node.statement(name, SITE_LIMIT, 1) for name in names])
        self._held = sites

    async def renew(self) -> int:
        """Say again what it holds of the sites that it remembers. Returns how many these are."""
        names = list(self._node.accounts)
        await self._node.say([self._node.statement(name, SITE_LIMIT) for name in names])
        return len(names)


@dataclass(slots=True)
class Due:
    """What a node's next statement about a site is to say."""

    more: int = 0
    give_back: int = 0


@dataclass(slots=True)
class Log:
    """Of a process."""

    sites: array[int] = field(default_factory=lambda: array("l"))
    nodes: array[int] = field(default_factory=lambda: array("l"))
    begins: array[float] = field(default_factory=lambda: array("d"))
    ends: array[float] = field(default_factory=lambda: array("d"))

    def note(self, visit: Visit) -> None:
        self.sites.append(visit.site)
        self.nodes.append(visit.node)
        self.begins.append(visit.begin)
        self.ends.append(visit.end)

    def visits(self) -> Iterator[Visit]:
        return map(Visit, self.sites, self.nodes, self.begins, self.ends)


class BusyNode:
    """A node of the crawl."""

    def __init__(self, url: str, number: int, crawl: LargeCrawl, log: Log) -> None:
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

    async def __aenter__(self) -> Self:
        await self._node.__aenter__()
        await self._node.listen(self._begin_granted)
        return self

    async def __aexit__(self, *exit: object) -> None:
        await self._node.__aexit__(*exit)

    async def crawl(self, start: float, end: float) -> None:
        """From `start` to `end`, and until the last permit was given back."""
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(self._serve()), tasks.create_task(self._renew())]
            await until(start)
            for site in self._full_sites:
                self._say(site, at_once=True, more=1)
            self._request_next(start)
            await until(end)
            self._is_ending = True
            for site in self._full_sites:
                if not self._running[name_of(site)]:
                    self._say(site, at_once=True, more=-1)
            while self._sites:
                self._settled.clear()
                await self._settled.wait()
            for task in background:
                task.cancel()

    def _request_next(self, now: float) -> None:
        """Requests come at random, however long the others wait."""
        then = now + self._random.expovariate(1 / self._crawl.interval_s)
        self._loop.call_at(max(then, self._loop.time()), self._request, then)

    def _request(self, now: float) -> None:
        if self._is_ending:
            return
        is_busy = self._crawl.interval_s < BUSY_INTERVAL_S
        self._say(self._random.randrange(self._crawl.sites), at_once=not is_busy, more=1)
        self._request_next(now)

    def _say(self, site: int, at_once: bool, more: int = 0, give_back: int = 0) -> None:
        name = name_of(site)
        self._sites[name] = site
        due = self._due.setdefault(name, Due())
        due.more += more
        due.give_back += give_back
        if at_once:
            self._work.set()
        elif self._batch_timer is None:
            self._batch_timer = self._loop.call_later(BATCH_DELAY_S, self._end_batch)

    def _end_batch(self) -> None:
        self._batch_timer = None
        self._work.set()

    def _begin_granted(self, name: str) -> None:
        """Begin the requests whose permits have come."""
        account, due = self._node.accounts[name], self._due.get(name)
        held = account.held - (due.give_back if due else 0)
        while self._running[name] < held:
            self._running[name] += 1
            page_s = self._random.uniform(0.5, 1.5) * PAGE_S
            self._loop.call_later(page_s, self._end, name, time.monotonic())

    def _end(self, name: str, began: float) -> None:
        site = self._sites[name]
        self._running[name] -= 1
        self._log.note(Visit(site, self._number, began, time.monotonic()))
        is_full = site < 0
        asks_again = is_full and not self._is_ending
        self._say(site, at_once=is_full, more=int(asks_again), give_back=1)

    async def _renew(self) -> None:
        await asyncio.sleep(self._random.random() * RENEWAL * LEASE_S)
        while True:
            for name, account in self._node.accounts.items():
                if account.held or account.waiting:
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
                await self._node.say([self._statement(name, due[name]) for name in names])
                for name in names:
                    self._begin_granted(name)
                    self._forget_empty(name)

    def _statement(self, name: str, due: Due) -> Statement:
        account = self._node.accounts.get(name)
        # Of the requests that were to give up, some may have been granted a permit meanwhile.
        more = max(due.more, -account.waiting) if account else due.more
        limit = FULL_LIMIT if self._sites[name] < 0 else SITE_LIMIT
        return self._node.statement(name, limit, more, due.give_back)

    def _forget_empty(self, name: str) -> None:
        account = self._node.accounts[name]
        if not (account.held or account.waiting or name in self._due):
            del self._node.accounts[name], self._sites[name], self._running[name]
            self._settled.set()


async def until(moment: float) -> None:
    """A moment on the monotonic clock, which is that of asyncio's loops."""
    await asyncio.sleep(moment - time.monotonic())


# Processes --------------------------------------------------------------------------------------


def put_under_load(server: RedisServer, crawl: LargeCrawl) -> Result:
    """Let the nodes crawl, and tell what they and the server have seen."""
    with ExitStack() as stack, server.client() as client:
        parts = [range(number, crawl.nodes, PROCESSES) for number in range(PROCESSES)]
        pipes = [stack.enter_context(_process(server.url, crawl, part)) for part in parts]
        for pipe in pipes:
            _receive(pipe)
        start = time.monotonic() + START_S
        begin = start + WARM_UP_S
        end = begin + crawl.seconds
        for pipe in pipes:
            pipe.send((start, begin, end))
        time.sleep(begin - time.monotonic())
        before, calls = Reading.now(client), _calls(client)
        time.sleep(end - time.monotonic())
        used, calls = Reading.now(client) - before, _calls(client) - calls
        results = [_receive(pipe) for pipe in pipes]
    visits = [visit for log, _ in results for visit in log.visits()]
    visits.sort(key=lambda visit: (visit.site, visit.begin))
    client_seconds = sum(seconds for _, seconds in results)
    return Result(visits, begin, end, calls, client_seconds, used)


def _calls(client: redis.Redis) -> int:
    stats: Any = client.info("commandstats")
    return int(stats["cmdstat_evalsha"]["calls"])


def _receive(pipe: Connection) -> Any:
    if not pipe.poll(TIMEOUT_S):
        raise TimeoutError("a process of simulated nodes says nothing")
    return pipe.recv()


@contextmanager
def _process(url: str, crawl: LargeCrawl, numbers: Sequence[int]) -> Iterator[Connection]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_run, args=(url, crawl, numbers, there), daemon=True)
    process.start()
    there.close()  # so that its end is seen here
    try:
        yield here
    finally:
        process.join(1)
        process.kill()


def _run(url: str, crawl: LargeCrawl, numbers: Sequence[int], pipe: Connection) -> None:
    pipe.send(asyncio.run(_crawl(url, crawl, numbers, pipe)))


async def _crawl(
    url: str, crawl: LargeCrawl, numbers: Sequence[int], pipe: Connection
) -> tuple[Log, float]:
    log = Log()
    async with AsyncExitStack() as stack:
        nodes = [BusyNode(url, number, crawl, log) for number in numbers]
        for node in nodes:
            await stack.enter_async_context(node)
        pipe.send("ready")
        start, begin, end = await asyncio.to_thread(pipe.recv)
        async with asyncio.TaskGroup() as tasks:
            for node in nodes:
                tasks.create_task(node.crawl(start, end))
            await until(begin)
            before = time.process_time()
            await until(end)
            used = time.process_time() - before
    return log, used
