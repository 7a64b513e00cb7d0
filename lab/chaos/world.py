"""One run: a site, a server, the nodes with their proxies, and what can be done to them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Self, TypeVar

from lab.chaos.judge import Span, Verdict, judge
from lab.chaos.proxy import Proxy
from lab.chaos.site import Site, node_of
from tests.support.haproxy import HAProxy
from tests.support.nodes import eventually
from tests.support.paths import REPOSITORY
from tests.support.scrapy_process import ScrapyProcess
from tests.support.servers import RedisServer, is_stopped

STOOD_STILL = "This process stood still for", "has blocked the event loop for"
"""What a node logs: where it could not do anything, and where only its event loop could not."""
T = TypeVar("T")


class StuckError(Exception):
    """What a run waits for does not happen."""


@dataclass(frozen=True)
class Plan:
    seed: str
    nodes: int = 3
    hosts: int = 6
    # Fewer than nodes: one with a place of its own at each host is told of no grants.
    limit: int = 2
    lease: float = 2.0  # seconds
    requests: int = 1500  # that the site must see before the run comes to its end
    wait_timeout_s: float = 60.0  # who waits for longer has failed, never passed
    asked_limit: int = 2  # what the nodes keep


class Node(ScrapyProcess):
    """One node of a run: a process that crawls, with its proxy, its log and its notes."""

    def __init__(
        self,
        name: str,
        directory: Path,
        proxy: Proxy,
        urls: Sequence[str],
        settings: Mapping[str, Any],
    ) -> None:
        self.name = name
        self.proxy = proxy
        self.was_told_to_end = False
        self._notes = directory / f"{name}.notes"
        ours = {"CHAOS_NODE": self.name, "CHAOS_NOTES": self._notes, **settings}
        super().__init__(
            *("crawl", "pages", f"-aurls={' '.join(urls)}"),
            *(f"-s{name}={ours[name]}" for name in ours),
            directory=REPOSITORY,
            log_file=directory / f"{name}.log",
            SCRAPY_SETTINGS_MODULE="lab.chaos.settings",
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        return self._process.poll()

    def noted(self, what: str) -> Iterator[list[Any]]:
        """What it has written down so far of this kind; it may be about to write a line more."""
        lines = self._notes.read_text().splitlines(keepends=True) if self._notes.exists() else []
        notes = [json.loads(line) for line in lines if line.endswith("\n")]
        return (facts for kind, *facts in notes if kind == what)

    @property
    def stills(self) -> list[Span]:
        return [Span(self.name, start, end) for start, end in self.noted("still")]


class World:
    """All that takes part in a run: the site, the server, the nodes; and what can be done to them.

    The server has the permits and the crawl that the nodes share.
    """

    def __init__(self, plan: Plan, directory: Path) -> None:
        self.plan = plan
        self.lease = plan.lease
        self.dice = Random(plan.seed)
        self.directory = directory
        self.problems: list[str] = []
        self.nodes: list[Node] = []
        # Anyone may have used it before: the nodes wait once for the recovery wait.
        self.server = RedisServer(started_empty=False)
        self._stack = AsyncExitStack()
        addresses = [f"127.0.0.{number + 1}" for number in range(plan.hosts)]
        self.site = Site(Random(plan.seed), addresses, plan.limit, plan.lease)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.callback(self.server.remove)
            await asyncio.to_thread(self.server.start)
            await stack.enter_async_context(self.site)
            stack.callback(self._end_nodes)
            self._stack = stack.pop_all()
            for _ in range(self.plan.nodes):
                await self.start_node()
        return self

    async def __aexit__(self, *exit: Any) -> None:
        await self._stack.__aexit__(*exit)

    def _end_nodes(self) -> None:
        for node in self.nodes:
            node.kill()

    async def start_node(self) -> Node:
        proxy = await self.proxy_of(self.server)
        settings = {
            "SEMAPHORE_REDIS_URL": proxy.url,
            "CRAWL": "chaos",
            "CRAWL_LEASE": self.lease,
            "SEMAPHORE_LEASE": self.lease,
            "CONCURRENT_REQUESTS_PER_DOMAIN": self.plan.asked_limit,
        }
        name, urls = f"node-{len(self.nodes) + 1}", self.site.start_urls
        self.nodes.append(Node(name, self.directory, proxy, urls, settings))
        return self.nodes[-1]

    # What runs wait for -------------------------------------------------------------------------

    async def sees(self, happened: Callable[[], bool | Awaitable[bool]], what: str) -> None:
        """Wait for what tells nobody that it has happened."""
        await self.in_time(eventually(happened, None), what)

    async def in_full_swing(self) -> None:
        """All nodes take part and every place is in use."""
        names = {node.name for node in self.living}
        take_part = self.site.until(lambda: self.site.visitors >= names)
        await self.in_time(take_part, "all nodes to take part")
        await self.in_time(self.site.in_full_use(time.monotonic()), "the first full use")

    async def more(self, requests: int) -> None:
        goal = len(self.site.visits) + requests
        await self.in_time(self.site.until(lambda: len(self.site.visits) >= goal), "more requests")

    async def transfers_under_way(self) -> None:
        """Wait until a node has one that will last: whatever is lost now, that holds a permit."""
        await self.in_time(self.site.until(lambda: bool(self._busy)), "a transfer that lasts")

    async def recovers(self) -> None:
        """Wait for full use again."""
        await self.in_time(self.site.in_full_use(time.monotonic()), "full use again")

    async def in_time(self, happens: Awaitable[T], what: str) -> T:
        try:
            return await asyncio.wait_for(happens, self.plan.wait_timeout_s)
        except TimeoutError:
            state = f"after {len(self.site.visits)} requests, {self.server.members()}"
            raise StuckError(f"waited for {what}; {state}") from None

    async def some_time(self, least: float, most: float) -> None:
        """Let this many leases pass, more or less."""
        await asyncio.sleep(self.dice.uniform(least, most) * self.lease)

    # How a run ends -----------------------------------------------------------------------------

    def prove(self, what: str, shown: object) -> None:
        """A fault that has not done what its name says shows nothing."""
        if not shown:
            self.problems.append(f"not so: {what}")

    async def finish(self) -> None:
        """Let the nodes come to the end of the crawl, which leaves nothing behind."""
        await self.more(max(0, self.plan.requests - len(self.site.visits)))
        self.site.backlog = 0
        ends = asyncio.gather(*(node.ended() for node in self.nodes))
        await self.in_time(ends, "the end of the crawl")
        for node in self.nodes:
            if node.status != 0 and not node.was_told_to_end:
                self.problems.append(f"{node.name} ended with exit status {node.status}")
            self.problems += [f"{node.name} logged: {error}" for error in node.errors]
        # At once: those of the dead have long been closed, and the living have given all back.
        with self.server.client() as client:
            left = [*client.keys("{semaphore}:scope:*"), *client.keys("{semaphore}:queue:*")]
            left += [key for key in client.keys("{crawl:*") if client.ttl(key) < 0]  # kept a while
        if left:
            self.problems.append(f"left on the servers: {left}")

    def verdict(self) -> Verdict:
        arrived = {(host, path) for node in self.nodes for host, path in node.noted("page")}
        stills = [span for node in self.nodes for span in node.stills]
        verdict = judge(
            self.site.visits, self.site.known, arrived, stills, self.plan.limit, self.lease
        )
        verdict.problems += self.problems
        verdict.lost_permits = sum(node.stat("semaphore/lost") for node in self.nodes)
        for node in self.nodes:
            long = any(span.end - span.start > self.lease for span in node.stills)
            says_so = any(line in node.log for line in STOOD_STILL)
            if long and node.status == 0 and not says_so:
                verdict.problems.append(f"{node.name} does not say that it stood still")
        return verdict

    def write_visits(self) -> None:
        with (self.directory / "visits").open("w") as file:
            file.writelines(
                f"{visit.begin:.3f} {visit.end:.3f} {node_of(visit)} {visit.host}{visit.path}\n"
                for visit in self.site.visits
            )

    # What is done to nodes ----------------------------------------------------------------------

    @property
    def living(self) -> list[Node]:
        return [node for node in self.nodes if node.running]

    @property
    def _busy(self) -> list[Node]:
        names = self.site.busy(self.lease)
        return [node for node in self.living if node.name in names]

    def any_node(self) -> Node:
        """One with a transfer that will last, if there is any."""
        return self.dice.choice(self._busy or self.living)

    async def kill(self, node: Node) -> None:
        node.was_told_to_end = True
        self.site.afflicted.add(node.name)
        node.send(signal.SIGKILL)
        await node.ended()
        self.prove(f"{node.name} was killed", node.status == -signal.SIGKILL)

    @asynccontextmanager
    async def stopped(self, pid: int) -> AsyncIterator[None]:
        os.kill(pid, signal.SIGSTOP)
        try:
            await self.sees(lambda: is_stopped(pid), "a process to stand still")
            yield
            self.prove(f"process {pid} stood still", is_stopped(pid))
        finally:
            os.kill(pid, signal.SIGCONT)

    @asynccontextmanager
    async def afflicted(self, node: Node) -> AsyncIterator[None]:
        """What this node has open does not count as use of a place: the others have to come up."""
        self.site.afflicted.add(node.name)
        try:
            yield
        finally:
            self.site.afflicted.discard(node.name)

    # What is done to the server -----------------------------------------------------------------

    async def info(self, section: str, at: RedisServer) -> dict[str, Any]:
        return dict(await self.command("INFO", section, at=at))

    async def start_server(self) -> RedisServer:
        """Another server, which ends with the run."""
        server = RedisServer(started_empty=False)
        self._stack.callback(server.remove)
        await asyncio.to_thread(server.start)
        return server

    async def proxy_of(self, server: RedisServer) -> Proxy:
        """A proxy before a server, for a node, or for another server that is to follow it."""
        return await self._stack.enter_async_context(Proxy(server.path))

    def use(self, server: RedisServer) -> None:
        """From now on this is the server, for whoever connects anew."""
        self.server = server
        for node in self.nodes:
            node.proxy.target = server.path

    async def put_before_the_server(self, proxy: HAProxy) -> None:
        """From now on this leads to the server whoever connects anew. It ends with the run."""
        await self._stack.enter_async_context(proxy)
        for node in self.nodes:
            node.proxy.target = proxy.path

    async def command(self, *words: str | int | bytes, at: RedisServer | None = None) -> Any:
        """Say something to the server, or to another one, past all proxies."""

        def say() -> Any:
            with (at or self.server).client(socket_timeout=self.plan.wait_timeout_s) as client:
                return client.execute_command(*words)

        return await asyncio.to_thread(say)
