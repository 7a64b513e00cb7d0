"""What the node with most of the work gets, and how long the others wait for their turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median

from benchmarks.classics.timestamps import SetByTimestamp
from benchmarks.harness.contender import Place
from benchmarks.harness.report import Cell, Goal, Report
from semaphore_middleware import FairSemaphore
from tests.support.servers import RedisServer

NODES = 5
FEW = 3  # requests that a small node has at any time
MANY = 100 * FEW  # the first node's
LIMIT = 4
HOLD = 0.02  # seconds that a request takes
WARM_UP = 10 * LIMIT  # grants that are not counted
COLUMNS = ("", "Jain's", "large's share", "longest wait", "median wait", "grants")

Visit = Callable[[Callable[[], None]], Awaitable[None]]
"""One request: wait for a permit, call back when it is there, use it, give it back."""
Nodes = Callable[[RedisServer, str, int], AbstractAsyncContextManager[list[Visit]]]
"""Open a node with room for so many requests."""


@asynccontextmanager
async def ours(server: RedisServer, scope: str, requests: int) -> AsyncIterator[list[Visit]]:
    async with FairSemaphore(server.url) as semaphore:

        async def visit(granted: Callable[[], None]) -> None:
            async with semaphore.permit(scope, LIMIT):
                granted()
                await asyncio.sleep(HOLD)

        yield [visit] * requests


class Patient(SetByTimestamp):
    retry = 0.2  # seconds: with 312 of them, the server is asked 1,500 times a second all the same


@asynccontextmanager
async def asking_again(
    server: RedisServer, scope: str, requests: int
) -> AsyncIterator[list[Visit]]:
    async def visit(client: Patient, granted: Callable[[], None]) -> None:
        await client.acquire()
        granted()
        await asyncio.sleep(HOLD)
        await client.release()

    async with AsyncExitStack() as stack:
        place = Place(str(server.path), scope, LIMIT)
        clients = [await stack.enter_async_context(Patient(place)) for _ in range(requests)]
        yield [partial(visit, client) for client in clients]


@dataclass(slots=True)
class Log:
    """Who was granted what. Grants are the clock here: a round is as many as the limit."""

    target: int
    grants: list[int] = field(default_factory=list)  # to which node
    waits: list[float] = field(default_factory=list)  # rounds, of the small nodes' requests
    asking: dict[object, int] = field(default_factory=dict)  # small nodes' requests, since when
    enough: asyncio.Event = field(default_factory=asyncio.Event)

    async def work(self, node: int, visit: Visit) -> None:
        """Ask, use, give back, for ever: a node always has so many requests as it has of these."""
        me = object()

        def granted() -> None:
            if node > 0:
                self._waited(self.asking.pop(me))
            self.grants.append(node)
            if len(self.grants) >= self.target:
                self.enough.set()

        while True:
            if node > 0:
                self.asking[me] = len(self.grants)
            await visit(granted)

    def end(self) -> None:
        """Who still waits has waited so long at least."""
        for since in self.asking.values():
            self._waited(since)

    def _waited(self, since: int) -> None:
        if len(self.grants) >= WARM_UP:
            self.waits.append((len(self.grants) - since) / LIMIT)


def measure(quick: bool) -> Report:
    server = RedisServer().start()
    rounds, grants = (1, 100) if quick else (3, 600)
    contenders: dict[str, Nodes] = {"ours": ours, "again": asking_again}
    logs: dict[str, list[Log]] = {name: [] for name in contenders}
    try:
        for number in range(rounds):
            for name, nodes in contenders.items():
                scope = f"{name}-{number}"
                logs[name].append(asyncio.run(_run(server, nodes, scope, grants)))
    finally:
        server.remove()
    jain = {name: _jain(logs[name]) for name in contenders}
    rows = [_row(name, jain[name], logs[name]) for name in contenders]
    goal = Goal("Jain's index of our grants by node", jain["ours"], at_least=0.99)
    how = (
        f"{NODES} nodes in one process, limit {LIMIT}, {HOLD * 1e3:.0f} ms a request. Small nodes "
        f"always have {FEW} requests that wait or run, the large one {MANY}. Jain's index is that "
        "of the grants to each node; were all the same it would be 1, were all one's it would be "
        f"{1 / NODES:g}."
    )
    waits = (
        "Waits are those of the small nodes' requests, from asking to the grant, in rounds: one "
        f"is {LIMIT} grants to anybody, as many as the limit. Again: asking again, with the sorted "
        f"set by timestamp of Redis in Action, every {Patient.retry * 1e3:.0f} ms, +-50 %."
    )
    title = "fair: five nodes, one with 100 times the work"
    return Report(title, COLUMNS, rows, [goal], [how, waits])


async def _run(server: RedisServer, nodes: Nodes, scope: str, grants: int) -> Log:
    log = Log(WARM_UP + grants)
    async with AsyncExitStack() as stack:
        tasks = []
        for node in range(NODES):
            visits = await stack.enter_async_context(nodes(server, scope, FEW if node else MANY))
            tasks += [asyncio.create_task(log.work(node, visit)) for visit in visits]
        await log.enough.wait()
        log.end()
        seen = Log(log.target, log.grants[WARM_UP : log.target], log.waits.copy())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return seen


def _shares(logs: list[Log]) -> list[int]:
    counted = Counter(node for log in logs for node in log.grants)
    return [counted[node] for node in range(NODES)]


def _jain(logs: list[Log]) -> float:
    shares = _shares(logs)
    return float(sum(shares) ** 2 / (NODES * sum(share**2 for share in shares)))


def _row(name: str, jain: float, logs: list[Log]) -> tuple[Cell, ...]:
    large, *small = _shares(logs)
    waits = [wait for log in logs for wait in log.waits]
    total = large + sum(small)
    return name, jain, large / total, max(waits), median(waits), total
