"""Nodes reduced to their calls, and a look at the server from outside."""

from __future__ import annotations

import asyncio
import binascii
import functools
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, Self, TypeVar

from semaphore_middleware.core.admin import Admin
from semaphore_middleware.core.observer import Event, Observer
from semaphore_middleware.model.inspection import Inspection
from semaphore_middleware.model.limits import Limit
from semaphore_middleware.redis.connection import Connection
from semaphore_middleware.redis.keys import Keys
from semaphore_middleware.redis.location import Server
from semaphore_middleware.redis.protocol import Ask, Reply, Verb
from semaphore_middleware.redis.recovery import Recovery
from semaphore_middleware.redis.store import Store
from tests.support.servers import RedisServer

TIMEOUT_S = 30.0  # seconds: after that a test has failed, it never shows that one has passed
ENDLESS_S = 600.0  # seconds: a lease, or a wait, that no test lives to see the end of

P = ParamSpec("P")
T = TypeVar("T")


class Loop:
    """An event loop in a thread of its own: the main thread's belongs to pytest-twisted."""

    def __init__(self, factory: Callable[[], asyncio.AbstractEventLoop] | None = None) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._runner = asyncio.Runner(loop_factory=factory)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.submit(self._runner.run, work).result()

    def close(self) -> None:
        self._thread.submit(self._runner.close).result()
        self._thread.shutdown()


def in_asyncio(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run the test on a new loop."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        loop = Loop()
        try:
            loop.run(asyncio.wait_for(test(*args, **kwargs), 2 * TIMEOUT_S))
        finally:
            loop.close()

    return run


async def eventually(happened: Callable[[], Awaitable[object]]) -> None:
    """For what tells nobody that it has happened: the end of a lease, a key in a server."""
    async with asyncio.timeout(TIMEOUT_S):
        while not await happened():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)


class Recorder(Observer):
    """Keeps the events of a semaphore."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def count(self, kind: type[Event]) -> int:
        """How many events of this type there were."""
        return sum(type(event) is kind for event in self.events)


class Caller:
    """A node reduced to its calls: what it says, and how often, is the test's to choose."""

    def __init__(
        self,
        server: RedisServer,
        name: str,
        lease: float = ENDLESS_S,
        recovery_wait: float = ENDLESS_S,
    ) -> None:
        self.name = name
        self.losses: list[float] = []  # for how many seconds no permit was granted after each
        self._server = Server(server.url, 5.0)
        keys = Keys("semaphore")
        recovery = Recovery(keys, lease, recovery_wait, self.losses.append)
        self.store = Store(keys, name, lease, recovery)
        self.admin = Admin(server.url, name="boss", lease=lease)

    @classmethod
    async def join(cls, server: RedisServer, name: str, **options: float) -> Self:
        caller = cls(server, name, **options)
        await caller.connect()
        return caller

    async def connect(self) -> None:
        self.connection: Connection = await self._server.connect()
        self.store.meet(self.connection)

    async def acquire(self, scope: str, *numbers: int, limit: int | Limit = 1) -> Reply:
        return await self.say("acquire", scope, numbers, limit)

    async def release(self, scope: str, *numbers: int, limit: int | Limit = 1) -> Reply:
        return await self.say("release", scope, numbers, limit)

    async def renew(self, scope: str, *numbers: int, limit: int | Limit = 1) -> Reply:
        return await self.say("renew", scope, numbers, limit)

    async def poke(self, scope: str) -> Reply:
        """Change nothing oneself, but let be done what time has made due."""
        return await self.release(scope, 10**9, limit=10**9)

    async def say(
        self, verb: Verb, scope: str, numbers: Sequence[int], limit: int | Limit
    ) -> Reply:
        limit = limit if isinstance(limit, Limit) else Limit(limit)
        ask = Ask(verb, scope, limit, tuple(numbers))
        (reply,) = await self.store.run(self.connection, [ask])
        return reply

    async def inspect(self, scope: str) -> Inspection:
        return await self.admin.inspect(scope)


def key(scope: str, part: str) -> bytes:
    name = scope.encode("utf-8", "surrogatepass")
    bucket = binascii.crc_hqx(name, 0) % 256
    return b"semaphore:{%d}:%s:%s" % (bucket, name, part.encode())


def epoch_key(scope: str) -> bytes:
    bucket = binascii.crc_hqx(scope.encode("utf-8", "surrogatepass"), 0) % 256
    return b"semaphore:{%d}:epoch" % bucket


class Outside:
    """The server's keys and channels, seen (and moved in time) by no node."""

    def __init__(self, server: RedisServer) -> None:
        self.client: Any = server.client()  # redis-py's types promise every kind of reply
        self._channels: Any = self.client.pubsub(  # type: ignore[no-untyped-call]
            ignore_subscribe_messages=True
        )
        self._channels.psubscribe("semaphore:grants:*")
        self.told()

    def held(self, scope: str = "s") -> list[str]:
        return self._members(scope, "held")

    def line(self, scope: str = "s") -> list[str]:
        return self._members(scope, "line")

    def _members(self, scope: str, part: str) -> list[str]:
        return [id.decode() for id in self.client.zrange(key(scope, part), 0, -1)]

    def in_use(self) -> set[bytes]:
        """All but the epochs, and the mark of a server that was born empty."""
        keys = set(self.client.scan_iter("semaphore:*", count=1000))
        return {key for key in keys if not key.endswith(b":epoch")}

    def state(self, scope: str = "s") -> dict[str, str]:
        fields = self.client.hgetall(key(scope, "state"))
        return {name.decode(): value.decode() for name, value in fields.items()}

    def ttl(self, key: bytes) -> int:
        """Milliseconds until the key expires; -1: never."""
        left: int = self.client.pttl(key)
        return left

    def dump(self) -> dict[bytes, object]:
        """Every key, with when it ends."""
        version = self.client.info("server")["redis_version"]
        # Redis 6.2 cannot tell when a key ends, only whether it does.
        ends = self.client.pexpiretime if version >= "7" else lambda key: self.ttl(key) > 0
        keys = self.client.scan_iter("*", count=1000)
        return {key: (self.client.dump(key), ends(key)) for key in keys}

    def told(self) -> list[tuple[str, str]]:
        """What nodes were told since the last look: node and text, in order."""
        self.client.publish("semaphore:grants:", "end")
        told: list[tuple[str, str]] = []
        while True:
            message = self._channels.get_message(timeout=TIMEOUT_S)
            if message is None:
                continue
            node = message["channel"].decode().rpartition("grants:")[2]
            if not node:
                return told
            told.append((node, message["data"].decode()))

    def end_leases(self, node: str, *scopes: str) -> None:
        """What time does to a node that no longer renews."""
        for scope in scopes:
            for part in ("held", "waiting"):
                for id in self._members(scope, part):
                    if id.rpartition(":")[0] == node:
                        self.client.zadd(key(scope, part), {id: 1}, xx=True)
                        self.client.hset(key(scope, "state"), "due", 1)

    def everyone(self, scope: str = "s") -> list[str]:
        return [*self.held(scope), *self.line(scope)]

    def first_lease_end(self, scope: str = "s") -> float:
        ends = [
            score
            for part in ("held", "waiting")
            for _, score in self.client.zrange(key(scope, part), 0, 0, withscores=True)
        ]
        return min(ends, default=math.inf)

    def end_quiet(self, scope: str = "s") -> None:
        """What time does to a site that has said "not now"."""
        if learnt := self.state(scope).get("learnt"):
            rest = learnt.partition(" ")[2]
            self.client.hset(key(scope, "state"), "learnt", f"0 {rest}")

    def end_recovery(self, *scopes: str) -> None:
        """What time does to the wait after the server has lost its data."""
        for scope in scopes:
            self.client.hset(epoch_key(scope), "from", 1)
