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
from lab.simulation.run import RenewalThread, Semaphore, connected_by
from lab.simulation.server import Server
from lab.simulation.world import BEGIN_S, Host, World
from semaphore_middleware.core.permit import Permit
from semaphore_middleware.link.location import Server as Location
from tests.support.nodes import MACHINE, Recorder
from tests.support.scopes import KEYS, look

LONGEST_S = 1e4  # of simulated time, after which a test has failed
SLICE_S = 100.0  # of it, after which we look whether the test has ended

P = ParamSpec("P")
T = TypeVar("T")


def in_simulated_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        world = World(seed=1)
        try:
            done = Host(world, "test").spawn(test(*args, **kwargs))
            while not done.done() and world.now < BEGIN_S + LONGEST_S:
                world.run(until=world.now + SLICE_S)
            done.result()
        finally:
            world.end()

    return run


class SimulatedServer:
    """A server in the test's world that was started empty; and its nodes, each with these options
    where the test gives no others.
    """

    def __init__(self, **options: Any) -> None:
        loop: Any = asyncio.get_running_loop()
        self.world: World = loop.world
        self.options = options
        self.network = Network(self.world, Random(1), lease=options["lease"])
        self.itself = self.network.server = Server(
            self.network.publish, self._on_bug, lambda *_: None, options["lease"]
        )
        self.client: Any = _Client(self)
        self.client.hset(KEYS.epoch, "started_empty", "run1")
        self._here = next(host for host in self.world.hosts if host.loop is loop)

    def _on_bug(self, text: str) -> None:
        raise AssertionError(text)

    def node(self, **options: Any) -> Semaphore:
        """A node on the test's own host, whose loop nothing blocks."""
        node = Semaphore(self.network, self._here, MACHINE, **{**self.options, **options})
        node._renewal_thread = None
        return node

    def connect(self, location: Location, host: Host | None = None) -> Location:
        """Let connections to this location be ones from a host, else the test's own, to here."""
        return connected_by(partial(Wire, self.network, host or self._here), location)

    def held(self, scope: str = "s") -> dict[str, int]:
        """How many permits each node holds, as the server has it."""
        return look(self.client, scope)[0].held

    def expiries(self) -> dict[bytes, float | None]:
        """All keys, each with the milliseconds until it expires, if it does."""
        return dict(self.itself.keys_left())

    def lose(self, *scopes: str) -> None:
        """Forget all of these scopes."""
        for scope in scopes:
            self.itself.evict_key(KEYS.of(scope)[0])

    def end_recovery(self) -> None:
        """What time does to the wait after a loss of data."""
        self.client.hset(KEYS.epoch, "from", 1)


class _Client:
    """As redis-py's: each method is the command of its name, with arguments as the server's."""

    def __init__(self, server: SimulatedServer) -> None:
        self._server = server

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self._execute, name.upper())

    def _execute(self, *command: object) -> Any:
        parts = [part if isinstance(part, bytes) else str(part).encode() for part in command]
        reply = self._server.itself.execute(parts, self._server.world.now)
        if isinstance(reply, Exception):
            raise reply
        return reply


class BusyHost:
    """A host beside the test's, whose loop a test may block; the renewal thread's goes on."""

    def __init__(self, server: SimulatedServer) -> None:
        self.itself = Host(server.world, "busy", has_renewal_thread=True)
        assert self.itself.renewal_thread is not None
        self.renewal_thread: Any = RenewalThread(self.itself.renewal_thread)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """On its loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.itself.loop))

    @contextmanager
    def stalled(self, with_renewal_thread: bool = False) -> Iterator[None]:
        """A callback blocks its loop; or the whole process stands still, `with_renewal_thread`."""
        self.itself.freeze() if with_renewal_thread else self.itself.block()
        try:
            yield
        finally:
            self.itself.thaw()


class BusyNode(BusyHost):
    """A node on such a host."""

    def __init__(self, server: SimulatedServer) -> None:
        super().__init__(server)
        self.recorder = Recorder()
        self.semaphore = Semaphore(
            server.network, self.itself, MACHINE, **server.options, observers=[self.recorder]
        )
        self.semaphore._renewal_thread = self.renewal_thread

    async def __aenter__(self) -> Self:
        await self.run(self.semaphore.open())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.run(self.semaphore.close())

    async def hold(self, limit: int = 1) -> Permit:
        return await self.run(self.semaphore.acquire("s", limit))
