"""One run: a site, a server, the nodes with their proxies, and what can be done to them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Self, TypeVar

from tests.chaos.audit import Audit
from tests.chaos.history import History
from tests.chaos.machine import Clock, Namespace, clock_off_by, is_stopped, processor_time
from tests.chaos.nodes import Node
from tests.chaos.proxy import Proxy
from tests.chaos.site import Site
from tests.support.command_proxy import CommandProxy
from tests.support.haproxy import HAProxy
from tests.support.servers import Cluster, RedisServer, Watched

Deployment = Cluster | Watched
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
    mutant: str = ""


@dataclass(frozen=True)
class Setup:
    """What a fault needs from the start."""

    server_clock: bool = False
    node_clocks: tuple[float, ...] = ()  # seconds that the nodes' clocks are off
    namespace: bool = False  # for the first node
    server_options: tuple[str, ...] = ()
    deployment: Callable[[], Deployment] | None = None  # in place of one server behind proxies
    haproxy: bool = False


class Life(NamedTuple):
    """Which process a server is, and which copy of its data: one is another after a failover."""

    run_id: str
    replication_id: str


class World:
    """All that takes part in a run: the site, the server, the nodes; and what can be done to them.

    The pages to be fetched are kept on a server of their own, which no fault touches: what is
    judged here is the semaphore, whose data may be lost.
    """

    def __init__(self, plan: Plan, setup: Setup, directory: Path) -> None:
        self.plan = plan
        self.lease = plan.lease
        self.dice = Random(plan.seed)
        self.history = History()
        self.directory = directory
        self.proofs = 0
        self.nodes: list[Node] = []
        self.clock = Clock(directory / "server-clock") if setup.server_clock else None
        self.namespace = Namespace(plan.hosts) if setup.namespace else None
        # A server that anyone may have used before: the nodes wait once for the recovery wait.
        self.server = RedisServer(
            *setup.server_options,
            started_empty=False,
            environment=self.clock.environment if self.clock else {},
        )
        self.deployment = setup.deployment() if setup.deployment else None
        self._setup = setup
        self._frontier = RedisServer()
        self._audit = Audit(self.history, self.server, plan.lease)
        self._stack = AsyncExitStack()
        addresses = [f"127.0.0.{number + 1}" for number in range(plan.hosts)]
        if self.namespace:
            addresses = self.namespace.site_addresses
        self.site = Site(self.history, Random(plan.seed), addresses, plan.limit, plan.lease)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            if self.namespace:
                stack.enter_context(self.namespace)
            for server in (self.deployment or self.server, self._frontier):
                stack.callback(server.remove)
                await asyncio.to_thread(server.start)
            if self.deployment:
                self.use(self.deployment.master)
            await stack.enter_async_context(self.site)
            await stack.enter_async_context(self._audit)
            stack.push_async_callback(self._end_nodes)
            self._stack = stack.pop_all()
            for _ in range(self.plan.nodes):
                await self.start_node()
        return self

    async def __aexit__(self, *exit: Any) -> None:
        await self._stack.__aexit__(*exit)

    async def _end_nodes(self) -> None:
        for node in self.nodes:
            await node.end()
            if node.history.exists():
                self.history.read(node.history)

    async def start_node(self) -> Node:
        number = len(self.nodes)
        in_namespace = self.namespace if number == 0 else None
        address = in_namespace.server_address if in_namespace else "127.0.0.1"
        proxy = await self._stack.enter_async_context(Proxy(self.server.path, address))
        node = Node(f"node-{number + 1}", self.directory, proxy)
        off = self._setup.node_clocks
        clock = clock_off_by(off[number % len(off)]) if off else {}
        settings = {
            "SEMAPHORE_REDIS_URL": self.deployment.url if self.deployment else proxy.url,
            "REDIS_URL": self._frontier.url,
            "CRAWL": "chaos",
            "CRAWL_LEASE": self.lease,
            "SEMAPHORE_LEASE": self.lease,
            "CONCURRENT_REQUESTS_PER_DOMAIN": self.plan.limit,
            "CHAOS_MUTANT": self.plan.mutant,
        }
        await node.start(
            [f"{pages.url}/0" for pages in self.site.pages.values()],
            settings,
            clock,
            in_namespace.prefix if in_namespace else (),
        )
        self.nodes.append(node)
        return node

    # What runs wait for -------------------------------------------------------------------------

    async def until(self, seen: Callable[[], bool], what: str) -> None:
        """Wait until the site has seen something."""
        await self._in_time(self.site.until(seen), what)

    async def in_full_swing(self) -> None:
        """All nodes take part and every place is in use."""
        await self._until_all_take_part()
        await self._in_time(self.site.in_full_use(time.monotonic()), "the first full use")

    async def _until_all_take_part(self) -> None:
        names = {node.name for node in self.living}
        await self.until(lambda: self.site.visitors >= names, "all nodes to take part")

    async def transfers_under_way(self) -> None:
        """Wait until a node has one that will last: whatever is lost now, that holds a permit."""
        await self.until(lambda: bool(self._busy), "a transfer that lasts")

    @property
    def _busy(self) -> list[Node]:
        names = self.site.busy(self.lease)
        return [node for node in self.living if node.name in names]

    async def happens(self, event: asyncio.Event, what: str) -> None:
        await self._in_time(event.wait(), what)

    async def more(self, requests: int) -> None:
        goal = self.site.requests + requests
        await self.until(lambda: self.site.requests >= goal, "more requests")

    async def eventually(self, happened: Callable[[], bool], what: str) -> None:
        """Wait for what tells nobody that it has happened."""

        async def has_happened() -> bool:
            return happened()

        await self.sees(has_happened, what)

    async def sees(self, happened: Callable[[], Awaitable[bool]], what: str) -> None:
        """The same for what has to be asked for."""

        async def until_happened() -> None:
            while not await happened():  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.01)

        await self._in_time(until_happened(), what)

    def prove(self, what: str, shown: object) -> None:
        """Note what shows that a fault has done what its name says, or that it has not."""
        self.proofs += 1
        self.history.note("proof", id=what, count=bool(shown))

    async def recovers(self, promise: float = 0.0) -> None:
        """Wait for full use again, and note how long it took from now on.

        What is promised, by default, is what holds for all that happens to nodes.
        """
        since = time.monotonic()
        then = await self._in_time(self.site.in_full_use(since), "full use again")
        promise = promise or self.lease + self.lease / 3
        self.history.note("recovered", seconds=then - since, promise=promise)

    async def recovers_from_loss(self) -> None:
        """The same for a server that has lost its data, or may have: the recovery wait is added."""
        await self.recovers(self.lease + self.lease + self.lease / 3)

    async def all_log(self, text: str) -> None:
        """Wait until all nodes have logged this."""
        living = self.living
        await self.eventually(lambda: all(text in node.log for node in living), f"{text!r} in logs")

    async def finish(self) -> None:
        """Let the nodes come to the end of the site, and see what is left behind."""
        goal = self.plan.requests
        await self.until(lambda: self.site.requests >= goal, f"{goal} requests")
        self.site.backlog = 0
        ended = asyncio.gather(*(node.ended.wait() for node in self.nodes))
        await self._in_time(ended, "the end of the crawl")
        for node in self.nodes:
            if node.status != 0 and not node.was_told_to_end:
                self.history.note("problem", node.name, id=f"ended with exit status {node.status}")
            for error in node.errors:
                self.history.note("problem", node.name, id=f"logged: {error}")
        # At once: those of the dead have long been closed, and the living have given all back.
        with self.server.client() as client:
            scopes = [*client.keys("{semaphore}:scope:*"), *client.keys("{semaphore}:queue:*")]
            self.history.note("left", id="semaphore", count=len(scopes))
        with self._frontier.client() as client:
            keys = [key for key in client.keys("{crawl:*") if client.ttl(key) < 0]  # kept a while
            self.history.note("left", id="frontier", count=len(keys))

    async def _in_time(self, happens: Awaitable[T], what: str) -> T:
        try:
            return await asyncio.wait_for(happens, self.plan.wait_timeout_s)
        except TimeoutError:
            state = f"{self.site.requests} requests, {self.server.members()}"
            raise StuckError(
                f"waited {self.plan.wait_timeout_s:.0f} s for {what}; {state}"
            ) from None

    # What is done to nodes ----------------------------------------------------------------------

    def any_node(self) -> Node:
        """One with a transfer that will last, if there is any."""
        return self.dice.choice(self._busy or self.living)

    @property
    def living(self) -> list[Node]:
        return [node for node in self.nodes if node.runs]

    async def up_to_strength(self) -> None:
        """Replace the nodes that have gone."""
        while len(self.living) < self.plan.nodes:
            await self.start_node()
        await self._until_all_take_part()

    async def some_time(self, least: float, most: float) -> None:
        """Let this many leases pass, more or less."""
        await asyncio.sleep(self.dice.uniform(least, most) * self.lease)

    async def kill(self, node: Node) -> None:
        node.was_told_to_end = True
        self.site.afflicted.add(node.name)
        node.send(signal.SIGKILL)
        await node.ended.wait()
        self.prove(f"{node.name} was killed", node.status == -signal.SIGKILL)
        self.history.note("killed", node.name)

    @asynccontextmanager
    async def frozen(self, node: Node) -> AsyncIterator[None]:
        self.history.note("frozen", node.name)
        try:
            async with self.afflicted(node), self._stopped(node.pid, node.name):
                yield
        finally:
            self.history.note("woken", node.name)

    @asynccontextmanager
    async def _stopped(self, pid: int, name: str) -> AsyncIterator[None]:
        """Let a process stand still, and prove that it did, all the time."""
        os.kill(pid, signal.SIGSTOP)
        try:
            await self.eventually(lambda: is_stopped(pid), f"{name} to stand still")
            before = processor_time(pid)
            yield
            still = is_stopped(pid) and processor_time(pid) == before
            self.prove(f"{name} stood still", still)
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

    async def restart_server(
        self, leases_down: float = 0.0, meanwhile: Callable[[], object] | None = None
    ) -> None:
        """Kill it, do something to what is left of it, and start it again."""
        before = await self.life()
        self.server.kill()
        if meanwhile is not None:
            await asyncio.to_thread(meanwhile)
        await asyncio.sleep(leases_down * self.lease)
        await asyncio.to_thread(self.server.start)
        self.prove("the server was started anew", (await self.life()).run_id != before.run_id)

    @asynccontextmanager
    async def server_frozen(self) -> AsyncIterator[None]:
        async with self._stopped(self.server.pid, "the server"):
            yield

    async def life(self) -> Life:
        """Which life of the server this is."""
        run_id = (await self.info("server"))["run_id"]
        return Life(run_id, (await self.info("replication"))["master_replid"])

    async def info(self, section: str, at: RedisServer | None = None) -> dict[str, Any]:
        return dict(await self.command("INFO", section, at=at))

    async def start_server(self, clock: Clock | None = None) -> RedisServer:
        """Another server, which ends with the run."""
        environment = clock.environment if clock else {}
        server = RedisServer(started_empty=False, environment=environment)
        self._stack.callback(server.remove)
        await asyncio.to_thread(server.start)
        return server

    async def proxy_of(self, server: RedisServer) -> Proxy:
        """A proxy before a server, for another server that is to follow it."""
        return await self._stack.enter_async_context(Proxy(server.path))

    def use(self, server: RedisServer) -> None:
        """From now on this is the server, for whoever connects anew."""
        self.look_at(server)
        for node in self.nodes:
            node.proxy.target = server.path

    def look_at(self, server: RedisServer) -> None:
        """From now on this is the server, which others lead the nodes to."""
        self.server = self._audit.server = server

    async def put_before_the_server(self, proxy: HAProxy | CommandProxy) -> None:
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
