"""Nodes in simulated time: the real ones, over the simulation's network and server.

A test runs on a host of its own. Its sleeps take no time, nothing that it waits for depends on how
busy the machine is, and it is the same each time.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any, ParamSpec, Self, TypeVar

from lab.simulation.network import Network, Wire
from lab.simulation.run import URL, Keeper, Semaphore, connected_by
from lab.simulation.server import Server
from lab.simulation.world import BEGIN_S, Host, World
from semaphore_middleware.core.permit import Permit
from semaphore_middleware.model import chance
from semaphore_middleware.model.lease import call_timeout
from semaphore_middleware.redis.location import Server as Location
from tests.support.nodes import MACHINE, Recorder
from tests.support.scopes import KEYS, look

LONGEST_S = 1e5  # of simulated time, after which a test has failed
SLICE_S = 100.0  # of it, after which we look whether the test has ended

P = ParamSpec("P")
T = TypeVar("T")


def in_simulated_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        world, before = World(), chance.source
        chance.source = Random(1)
        try:
            done = Host(world, "test").spawn(test(*args, **kwargs))
            while not done.done() and world.now < BEGIN_S + LONGEST_S:
                world.run(until=world.now + SLICE_S)
            done.result()
        finally:
            world.end()
            chance.source = before

    return run


class SimulatedServer:
    """A server in the test's world that was started empty; and its nodes, each with these options
    where the test gives no others.
    """

    def __init__(self, **options: Any) -> None:
        loop: Any = asyncio.get_running_loop()
        self.world: World = loop.world
        self._here = next(host for host in self.world.hosts if host.loop is loop)
        self._options = options
        self.network = Network(self.world, Random(1), lease=options["lease"])
        self.itself = self.network.server = Server(
            self.network.publish, self._on_bug, lambda *_: None, options["lease"]
        )
        self._execute("HSET", KEYS.epoch, "started_empty", "run1")

    def _on_bug(self, text: str) -> None:
        raise AssertionError(text)

    def node(self, **options: Any) -> Semaphore:
        """A node on the test's own host, whose loop nothing blocks."""
        node = Semaphore(self.network, self._here, MACHINE, **{**self._options, **options})
        node._keeper = None
        return node

    def location(self) -> Location:
        """Where it is, for connections from the test's own host."""
        server = Location(URL, call_timeout(self._options["lease"]))
        return connected_by(partial(Wire, self.network, self._here), server)

    def busy_node(self, **options: Any) -> BusyNode:
        """A node on a host of its own, whose loop a test may block."""
        return BusyNode(self, Host(self.world, "busy", has_keeper=True), options)

    def held(self, scope: str = "s") -> dict[str, int]:
        """How many permits each node holds, as the server has it."""
        return look(self, scope)[0].held

    def expiries(self) -> dict[bytes, float | None]:
        """All keys, each with the milliseconds until it expires, if it does."""
        return dict(self.itself.keys_left())

    def lose(self, *scopes: str) -> None:
        """Forget all of these scopes."""
        for scope in scopes:
            self.itself.evict_key(KEYS.of(scope)[0])

    def end_recovery(self) -> None:
        """What time does to the wait after a loss of data."""
        self._execute("HSET", KEYS.epoch, "from", "1")

    # As the part of redis-py's client that `look` uses --------------------------------------------

    def eval(self, script: str, count: int, *rest: str | bytes) -> Any:
        return self._execute("EVAL", script, str(count), *rest)

    def zrange(self, key: bytes, first: int, last: int) -> Any:
        return self._execute("ZRANGE", key, str(first), str(last))

    def _execute(self, *command: str | bytes) -> Any:
        parts = [part.encode() if isinstance(part, str) else part for part in command]
        return self.itself.execute(parts, self.world.now)


class BusyNode:
    """A node on a host with a keeper."""

    def __init__(self, server: SimulatedServer, host: Host, options: dict[str, Any]) -> None:
        self.host = host
        self.recorder = Recorder()
        given = {**server._options, "observers": [self.recorder], **options}
        self.semaphore = Semaphore(server.network, host, MACHINE, **given)
        assert host.keeper is not None
        self.semaphore._keeper = Keeper(host.keeper)  # type: ignore[assignment]

    async def __aenter__(self) -> Self:
        await self.run(self.semaphore.open())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.run(self.semaphore.close())

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """On its loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.host.loop))

    async def hold(self, limit: int = 1) -> Permit:
        return await self.run(self.semaphore.acquire("s", limit))

    @contextmanager
    def blocked(self) -> Iterator[None]:
        """A callback blocks its loop."""
        self.host.block()
        try:
            yield
        finally:
            self.host.thaw()
