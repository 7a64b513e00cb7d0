"""The network: connections from hosts to the server, which carry calls and messages.

A connection keeps the order of what it carries, as TCP does. What a host has sent arrives although
the host has given up and closed it meanwhile, up to two leases late.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import hiredis
from redis import exceptions

from lab.simulation.server import Server
from lab.simulation.world import Host, World


@dataclass(frozen=True)
class Weather:
    """The state of the network now: the odds of what may happen to a call or a message."""

    latency: tuple[float, float] = (0.0002, 0.004)  # seconds one way: least, most
    lost: float = 0.0  # a call or its reply: its connection then carries nothing more that way
    late: float = 0.0
    repeated: float = 0.0
    torn: float = 0.0  # only the first commands of a call arrive before the connection breaks
    message_lost: float = 0.0
    message_late: float = 0.0
    message_repeated: float = 0.0


CALM = Weather()


@dataclass
class Link:
    """A host's way to the server. What is under way on a cut one arrives when it is mended."""

    out: list[Callable[[], None]] | None = None  # None: not cut
    back: list[Callable[[], None]] | None = None

    @property
    def is_cut(self) -> bool:
        return self.out is not None or self.back is not None


@dataclass
class Network:
    """All connections to the server. Calls and messages may be up to two leases late."""

    world: World
    random: Random
    lease: float
    server: Server = field(init=False)
    weather: Weather = CALM
    is_server_down: bool = False
    _thaws_at: float = 0.0
    _wires: list[Wire] = field(default_factory=list)
    _links: dict[Host, Link] = field(default_factory=dict)

    def link(self, host: Host) -> Link:
        if host not in self._links:
            self._links[host] = Link()
            if host.renewal_thread is not None:
                self._links[host.renewal_thread] = self._links[host]
        return self._links[host]

    def cut(self, host: Host, out: bool, back: bool) -> None:
        """Cut a host off, one way or both, until `mend`."""
        link = self.link(host)
        if out and link.out is None:
            link.out = []
        if back and link.back is None:
            link.back = []

    def mend(self, host: Host) -> None:
        link = self.link(host)
        waiting = [*(link.out or ()), *(link.back or ())]
        link.out = link.back = None
        for arrive in waiting:
            self.world.after(self.latency(), arrive)

    def freeze_server(self, seconds: float) -> None:
        """Stop the server for so many seconds."""
        self._thaws_at = max(self._thaws_at, self.world.now + seconds)

    def break_all(self, host: Host | None = None) -> None:
        """Break all connections, or those of one host."""
        for wire in list(self._wires) if host is None else self.connections_of(host):
            self.break_one(wire)

    def connections_of(self, host: Host) -> list[Wire]:
        return [wire for wire in self._wires if wire.machine in (host, host.renewal_thread)]

    def break_one(self, wire: Wire) -> None:
        """End a connection; the host is notified if it can be reached."""
        wire.is_gone = True
        self.forget(wire)
        self._bring_back(
            wire, exceptions.ConnectionError("Connection reset by peer"), self.latency()
        )

    def move_all(self) -> None:
        """Lead all connections to another server without notice, as a proxy may. Their
        subscriptions stay behind.
        """
        for wire in self._wires:
            wire.channels = frozenset()

    def forget(self, wire: Wire) -> None:
        if wire in self._wires:
            self._wires.remove(wire)

    @property
    def connections(self) -> int:
        """How many connections exist."""
        return len(self._wires)

    def latency(self) -> float:
        return self.random.uniform(*self.weather.latency)

    # From hosts to the server -------------------------------------------------------------------

    def accept(self, wire: Wire) -> None:
        self._wires.append(wire)

    def send(self, wire: Wire, commands: list[Sequence[bytes]]) -> None:
        """Carry a call to the server, as the weather has it."""
        if wire.is_dead:
            return
        weather, random = self.weather, self.random
        delay, answers, count = self.latency(), True, len(commands)
        fate = random.random()
        is_operators = wire.machine.name == "operator"  # whose calls come in their order, and once
        if fate < weather.lost:
            answers, wire.is_dead = False, True
            count = random.choice((0, count))  # nothing arrives, or nothing comes back
        elif fate < weather.lost + weather.late:
            late = random.uniform(0.02, 2.0) * self.lease
            delay = delay if is_operators else late
        elif fate < weather.lost + weather.late + weather.repeated:
            again = random.uniform(0.0, 2.0) * self.lease * random.choice((0.001, 0.05, 1.0))
            if not is_operators:
                self.world.after(delay + again, partial(self._arrive, wire, commands, False))
        elif fate < weather.lost + weather.late + weather.repeated + weather.torn:
            answers, count = False, random.randrange(count + 1)
            self.world.after(delay + 1e-6, partial(self.break_one, wire))
        wire.arrived_at = max(wire.arrived_at, self.world.now + delay)
        self.world.at(wire.arrived_at, partial(self._arrive, wire, commands[:count], answers))

    def _arrive(self, wire: Wire, commands: list[Sequence[bytes]], answers: bool) -> None:
        arrive = partial(self._arrive, wire, commands, answers)
        link = self.link(wire.machine)
        if wire.is_gone or self.is_server_down:
            return
        if link.out is not None:
            link.out.append(arrive)
        elif self.world.now < self._thaws_at:
            self.world.at(self._thaws_at, arrive)
        else:
            replies = [self._execute(wire, command) for command in commands]
            if answers:
                self._bring_back(wire, replies, self.latency())

    def _execute(self, wire: Wire, command: Sequence[bytes]) -> Any:
        if command[0] == b"SUBSCRIBE":
            wire.channels = frozenset(command[1:])
            return [b"subscribe", command[1], 1]
        return self.server.execute(command, self.world.now)

    # Back to the hosts --------------------------------------------------------------------------

    def publish(self, channel: bytes, message: bytes) -> None:
        """Send a message to all who have subscribed to the channel."""
        weather, random = self.weather, self.random
        for wire in list(self._wires):
            if channel in wire.channels and random.random() >= weather.message_lost:
                delay = self.latency()
                if random.random() < weather.message_late:
                    delay = random.uniform(0.0, 1.5) * self.lease
                for _ in range(1 + (random.random() < weather.message_repeated)):
                    self._bring_back(wire, [[b"message", channel, message]], delay)

    def _bring_back(self, wire: Wire, what: Any, delay: float) -> None:
        # Late messages are overtaken: otherwise all that follow would be late, too.
        when = self.world.now + delay
        if not wire.channels:
            when = wire.heard_at = max(wire.heard_at, when)
        self.world.at(when, partial(self._come_back, wire, what))

    def _come_back(self, wire: Wire, what: Any) -> None:
        link = self.link(wire.machine)
        if link.back is not None:
            link.back.append(partial(self._come_back, wire, what))
        elif not wire.machine.is_dead:
            wire.machine.loop.call_soon(wire.receive, what)


class Wire:
    """A connection of a host, with the part of redis-py's class that `Connection` uses."""

    def __init__(self, network: Network, machine: Host, **_: Any) -> None:
        at_work = asyncio.get_running_loop()
        renewal_thread = machine.renewal_thread
        self.machine = (
            renewal_thread if renewal_thread and renewal_thread.loop is at_work else machine
        )
        self.is_connected = False
        self.is_gone = False  # at the server's end
        self.is_dead = False  # it carries nothing more to the server
        self.channels: frozenset[bytes] = frozenset()
        self.arrived_at = self.heard_at = 0.0  # the latest, at each end
        self._network = network
        self._reader = hiredis.Reader()
        self._inbox: deque[Any] = deque()
        self._news = asyncio.Event()

    def __repr__(self) -> str:
        return f"a connection of {self.machine.name}"

    async def connect(self) -> None:
        network = self._network
        await asyncio.sleep(2 * network.latency())
        if network.link(self.machine).is_cut:
            await asyncio.Event().wait()
        if network.is_server_down:
            raise exceptions.ConnectionError("Connection refused")
        network.accept(self)
        self.is_connected = True

    async def send_packed_command(self, data: bytes, **_: object) -> None:
        self._reader.feed(data)
        commands = []
        while (command := self._reader.gets()) is not False:
            commands.append(command)
        self._network.send(self, commands)

    def receive(self, what: Any) -> None:
        """Replies, messages or an error have come."""
        self._inbox.extend(what if isinstance(what, list) else [what])
        self._news.set()

    async def read_response(self, timeout: float | None = None, **_: object) -> Any:
        while not self._inbox:
            if not self.is_connected:
                raise exceptions.ConnectionError("Connection closed")
            self._news.clear()
            try:
                async with asyncio.timeout(timeout):
                    await self._news.wait()
            except TimeoutError:
                return None
        reply = self._inbox.popleft()
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def disconnect(self, **_: object) -> None:
        self.is_connected = False
        self._network.forget(self)
        self._news.set()
