"""Nodes reduced to their updates, and a look at the server from outside."""

from __future__ import annotations

import asyncio
import functools
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, Self, TypeVar

import pytest

from semaphore_middleware.core.calls import Recovery, Store
from semaphore_middleware.core.observer import Observer
from semaphore_middleware.core.protocol import LeaseUpdate, Reply
from semaphore_middleware.core.semaphore import FairSemaphore
from semaphore_middleware.errors import ServerRefusedError
from semaphore_middleware.link.connection import Connection
from semaphore_middleware.link.location import Server
from semaphore_middleware.model.events import Event
from semaphore_middleware.model.feedback import Backoff, FeedbackSummary
from semaphore_middleware.model.inspection import Inspection
from semaphore_middleware.model.limits import Limit
from semaphore_middleware.model.options import NodeOptions
from semaphore_middleware.operators.admin import Admin
from tests.support import scopes
from tests.support.proxy import SocketProxy
from tests.support.scopes import Look, edit, look, name_of, names_in
from tests.support.servers import RedisServer
from tests.support.times import ENDLESS_S, TIMEOUT_S

PASSWORD = "t0p-secret"

KEYS = scopes.KEYS
MACHINE = 1  # of all nodes, unless a test says otherwise
OPTIONS = NodeOptions(
    lease=ENDLESS_S,
    recovery_wait=ENDLESS_S,
    reuse_window=0.0,
    prefix=KEYS.prefix,
    job="",
    backoff=Backoff(),
    history=0.0,
)

P = ParamSpec("P")
T = TypeVar("T")


class Loop:
    """An event loop in a thread of its own: the main thread's belongs to pytest-twisted."""

    def __init__(self, factory: Callable[[], asyncio.AbstractEventLoop] | None = None) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._runner = asyncio.Runner(loop_factory=factory)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.submit(self._runner.run, work).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.submit(self._runner.close).result()
        self._thread.shutdown()


def in_asyncio(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with Loop() as loop:
            loop.run(asyncio.wait_for(test(*args, **kwargs), TIMEOUT_S))

    return run


async def eventually(happened: Callable[[], object]) -> None:
    """For what tells nobody that it has happened: the end of a lease, a key in a server.

    `happened` may be asynchronous.
    """
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            seen = happened()
            if await seen if isinstance(seen, Awaitable) else seen:
                return
            await asyncio.sleep(0.01)


def calls_of(
    patch: pytest.MonkeyPatch, owner: type, name: str, before: Callable[[], object] = lambda: None
) -> list[tuple[Any, ...]]:
    """The arguments of each call of a method from now on, `before` which something is done."""
    calls: list[tuple[Any, ...]] = []
    method = getattr(owner, name)

    def noted(*arguments: Any) -> Any:
        before()
        calls.append(arguments)
        return method(*arguments)

    patch.setattr(owner, name, noted)
    return calls


async def found_by(url: str, prefix: str = "semaphore") -> str:
    """The address of the server that a node would use."""
    connection = await Server(url, ENDLESS_S, prefix=prefix).connect()
    await connection.close()
    return str(connection.address)


def shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


async def refusal(url: str) -> str:
    """The one line about a server that is not to be waited for. Nothing shows the password."""
    with pytest.raises(ServerRefusedError) as refused:
        await FairSemaphore(url).open(wait=False)
    assert "\n" not in str(refused.value)
    assert PASSWORD not in shown(refused.value)
    return str(refused.value)


async def until_waiting(looks: FairSemaphore, count: int, scope: str = "s") -> None:
    """Until so many requests wait, as this node sees it."""

    async def as_many() -> bool:
        return (await looks.admin.inspect(scope)).waiting == count

    await eventually(as_many)


def renew(node: FairSemaphore) -> None:
    """What time does to a node: it says everything again, and checks where its server is."""
    assert node._session is not None
    node._session.updates.send_all()
    node._session.updates.check_server()


class Recorder(Observer):
    """Keeps the events of a semaphore."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def count(self, kind: type[Event]) -> int:
        return sum(type(event) is kind for event in self.events)


@dataclass(slots=True)
class Book:
    """One node's side of a lease. All counts are of this lease."""

    lease_id: int
    seq: int = 0
    requested: int = 0
    returned: int = 0
    granted_ack: int = 0

    @property
    def held(self) -> int:
        return self.granted_ack - self.returned

    @property
    def waiting(self) -> int:
        return self.requested - self.granted_ack

    def apply(self, granted: int) -> None:
        self.granted_ack = max(self.granted_ack, granted)
        self.requested = max(self.requested, self.granted_ack)


class Caller:
    """A node reduced to its updates: the test chooses their contents, and how often they are sent.

    It hears only replies: what it was granted meanwhile, it learns when it renews. By itself it
    says only that requests have begun, at the grant, where their starts are spaced. Nothing ends
    at a deadline.
    """

    def __init__(self, url: str, name: str, machine: int = MACHINE, **options: Any) -> None:
        self.name = name
        self.options = replace(OPTIONS, **options)
        self.losses: list[float] = []  # for how many seconds no permit was granted after each
        self.books: dict[str, Book] = {}
        self._last_lease_id = 0
        self._server = Server(url, ENDLESS_S)
        self.recovery = Recovery(KEYS, self.options, self.losses.append)
        self.store = Store(KEYS, name, machine, self.options, self.recovery)
        self.admin = Admin(url, name="boss", lease=self.options.lease)

    @classmethod
    async def join(cls, server: RedisServer | SocketProxy, name: str, **options: Any) -> Self:
        caller = cls(server.url, name, **options)
        await caller.connect()
        return caller

    async def connect(self) -> None:
        self.connection: Connection = await self._server.connect()
        await self.store.recovery.join_epoch(self.connection)

    # What tests say -----------------------------------------------------------------------------

    async def take(self, scope: str, n: int = 1, limit: int | Limit = 1) -> Reply:
        self.book(scope).requested += n
        return await self.update(scope, limit)

    async def give_back(
        self,
        scope: str,
        n: int = 1,
        limit: int | Limit = 1,
        *,
        take: int = 0,
        feedback: FeedbackSummary | None = None,
    ) -> Reply:
        """Give `n` permits back, and in the same update ask for `take` others."""
        book = self.book(scope)
        book.returned += n
        book.requested += take
        return await self.update(scope, limit, feedback=feedback)

    async def give_up(self, scope: str, n: int = 1, limit: int | Limit = 1) -> Reply:
        self.book(scope).requested -= n
        return await self.update(scope, limit)

    async def renew(self, scope: str, limit: int | Limit = 1) -> Reply:
        return await self.update(scope, limit)

    async def update(self, scope: str, limit: int | Limit = 1, **overrides: Any) -> Reply:
        """The present counts, except those overridden; sent again if the epoch is another one."""
        while True:
            update = self.next_update(scope, limit, **overrides)
            replies = await self.send(update)
            if replies is None:
                await self.begin_epoch()
                continue
            self.apply(*replies)
            has_begun_more = replies[0].granted > update.granted_ack
            if replies[0].interval is None or not has_begun_more or overrides:
                return replies[0]

    async def inspect(self, scope: str) -> Inspection:
        return await self.admin.inspect(scope)

    # How ----------------------------------------------------------------------------------------

    def book(self, scope: str) -> Book:
        if scope not in self.books:
            self.books[scope] = Book(self._new_lease_id())
        return self.books[scope]

    def held(self, scope: str) -> int:
        return self.book(scope).held

    def next_update(self, scope: str, limit: int | Limit = 1, **overrides: Any) -> LeaseUpdate:
        """The next update of the lease; it is not sent."""
        book = self.book(scope)
        book.seq += 1
        update = LeaseUpdate(
            scope,
            limit if isinstance(limit, Limit) else Limit(limit),
            book.lease_id,
            book.seq,
            book.requested,
            book.returned,
            book.granted_ack,
            started=book.granted_ack,
            unstarted=0,
            suspended=0,
            held_age=0.0,
            wait_age=0.0,
            start_age=0.0,
        )
        return replace(update, **overrides) if overrides else update

    async def send(self, *updates: LeaseUpdate) -> list[Reply] | None:
        """Send exactly these in one call; replies are not applied. None: under another epoch."""
        return await self.store.sync(self.connection, updates)

    def apply(self, *replies: Reply) -> None:
        """Replies, which may be late."""
        for reply in replies:
            scope, update = reply.update.scope, reply.update
            book = self.book(scope)
            if update.lease_id != book.lease_id:
                continue
            if reply.status != "ok":
                self.lose(scope, reply.lease_id)
                continue
            book.apply(reply.granted)
            was_last_and_empty = update.seq == book.seq and update.requested == update.returned
            if was_last_and_empty and reply.granted == book.requested == book.returned:
                del self.books[scope]  # the server has closed the entry

    def lose(self, scope: str, above: int = 0) -> None:
        """All that it held is over; what it waits for, it asks for under a new lease."""
        self._last_lease_id = max(self._last_lease_id, above)
        self.books[scope] = Book(self._new_lease_id(), requested=self.book(scope).waiting)

    async def begin_epoch(self) -> None:
        """Go on under new leases, and claim what is held."""
        await self.store.recovery.join_epoch(self.connection)
        for scope, book in self.books.items():
            held, waiting = book.held, book.waiting
            self.books[scope] = Book(self._new_lease_id(), 0, held + waiting, 0, held)

    def _new_lease_id(self) -> int:
        self._last_lease_id += 1
        return self._last_lease_id


def key(scope: str) -> bytes:
    return KEYS.of(scope)[0]


class Outside:
    """The server's keys and channels, seen (and moved in time) by no node."""

    def __init__(self, server: RedisServer) -> None:
        self.client: Any = server.client()  # redis-py's types promise every kind of reply
        self._channels: Any = self.client.pubsub(  # type: ignore[no-untyped-call]
            ignore_subscribe_messages=True
        )
        self._channels.psubscribe(KEYS.channel("*"))
        self.notified()

    # See ----------------------------------------------------------------------------------------

    def look(self, *scopes: str) -> list[Look]:
        return look(self.client, *scopes)

    def held(self, scope: str = "s") -> dict[str, int]:
        return self.look(scope)[0].held

    def waiting(self, scope: str = "s") -> dict[str, int]:
        return self.look(scope)[0].waiting

    def queue(self) -> list[str]:
        return self.look("s")[0].queue

    def state(self, scope: str = "s") -> Mapping[str, str]:
        return self.look(scope)[0].state

    def in_use(self) -> set[bytes]:
        """All keys except the epoch and the history."""
        keys = set(self.client.scan_iter("*", count=1000)) - {KEYS.epoch}
        past = (KEYS.named("history"), KEYS.changed_rules, KEYS.index)
        return {key for key in keys if not key.startswith(past)}

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
        return {key: (self._content(key), ends(key)) for key in keys}

    def _content(self, key: bytes) -> object:
        # The order of a large hash's fields changes by itself.
        is_hash = self.client.type(key) == b"hash"
        return self.client.hgetall(key) if is_hash else self.client.dump(key)

    def notified(self) -> list[tuple[str, str]]:
        """The notifications since the last call: node and text, in order."""
        self.client.publish(KEYS.channel(END), "end")
        notified: list[tuple[str, str]] = []
        while True:
            message = self._channels.get_message(timeout=TIMEOUT_S)
            if message is None:
                continue
            node = name_of(message["channel"].removeprefix(KEYS.channel("")))
            if node == END:
                return notified
            notified.append((node, name_of(message["data"])))

    # What time does -----------------------------------------------------------------------------

    def edit(self, scope: str, part: str, **values: float) -> None:
        """Change numbers of a scope's "state", of what it has "learned", or of "node:<name>"."""
        edit(self.client, scope, part, **values)

    def end_leases(self, node: str, *scopes: str) -> None:
        """What time does to a node that no longer renews."""
        for scope in scopes:
            self.edit(scope, f"node:{node}", lease_end=1)
            self.edit(scope, "state", due=1)

    def end_backoff(self, scope: str = "s") -> None:
        """What time does to a site that has refused a request."""
        ends = [name for name in names_in("learned") if name.endswith("_end")]
        self.edit(scope, "learned", **dict.fromkeys(ends, 0))

    def start_is_due(self, scope: str = "s") -> None:
        """What time does to a delay, and to a rate."""
        self.edit(scope, "state", last_start=0, next_at_rate=0)

    def pass_idle(self, seconds: float, scope: str = "s") -> None:
        """What time does to an idle scope."""
        since = float(self.state(scope)["idle_since"])
        self.edit(scope, "state", idle_since=since - 1000 * seconds)

    def end_recovery(self) -> None:
        """What time does to the wait after the server has lost its data."""
        self.client.hset(KEYS.epoch, "from", 1)


END = "\0 the end of the notifications"
