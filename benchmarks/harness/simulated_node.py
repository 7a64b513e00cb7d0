"""A node reduced to its statements: how much it asks for is the benchmark's choice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from semaphore_middleware.core.session import ACCOUNTS_AT_ONCE
from semaphore_middleware.model.limits import Limit
from semaphore_middleware.redis.keys import Keys
from semaphore_middleware.redis.location import Server
from semaphore_middleware.redis.protocol import Notification, Statement, batches
from semaphore_middleware.redis.recovery import Recovery
from semaphore_middleware.redis.store import Store

LEASE_S = 600.0  # longer than any benchmark takes: nothing is renewed
CALL_TIMEOUT_S = 5.0
KEYS = Keys("semaphore")


@dataclass(slots=True)
class Account:
    """A node's account with a scope, as the node knows it."""

    limit: Limit
    term: int = 0
    seq: int = 0
    asked: int = 0
    returned: int = 0
    granted: int = 0

    @property
    def held(self) -> int:
        return self.granted - self.returned

    @property
    def waiting(self) -> int:
        return self.asked - self.granted

    def hear(self, term: int, granted: int) -> bool:
        """The server says how many permits it has been granted. Returns whether any is new."""
        if term != self.term or granted <= self.granted:
            return False
        self.granted = granted
        self.asked = max(self.asked, granted)
        return True


class SimulatedNode:
    """Its accounts, and a connection to speak; another one to listen, if it is asked to."""

    def __init__(self, url: str, name: str) -> None:
        self.accounts: dict[str, Account] = {}
        self._server = Server(url, CALL_TIMEOUT_S)
        recovery = Recovery(KEYS, LEASE_S, LEASE_S, lambda _: None)
        self._store = Store(KEYS, name, LEASE_S, recovery)
        self._terms = 0
        self._listener: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.connection = await self._server.connect()
        await self._store.recovery.join_epoch(self.connection)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
        await self.connection.close()

    async def listen(self, on_grant: Callable[[str], None]) -> None:
        """Hear of grants from now on: `on_grant(scope)` is called for each that is news."""
        link = await self._server.connect()
        subscribed = asyncio.Event()

        def on_message(payload: bytes | None) -> None:
            if payload is None:
                subscribed.set()
                return
            said = Notification.read(payload)
            if said and said.kind == "granted":
                account = self.accounts.get(said.scope)
                if account and account.hear(said.term, said.granted):
                    on_grant(said.scope)

        task = link.listen(self._store.channels, LEASE_S, on_message)
        self._listener = asyncio.create_task(task)
        await subscribed.wait()

    def statement(self, scope: str, limit: Limit, more: int = 0, give_back: int = 0) -> Statement:
        """It wants so many more permits (or fewer), and gives so many back."""
        account = self.accounts.get(scope)
        if account is None or account.held == account.waiting == 0:
            self._terms += 1
            account = self.accounts[scope] = Account(limit, self._terms)
        account.seq += 1
        account.asked += more
        account.returned += give_back
        return Statement(
            scope,
            limit,
            account.term,
            account.seq,
            account.asked,
            account.returned,
            believed=account.granted,
            started=account.granted,
            pending=0,
            held_age=0.0,
            wait_age=0.0,
        )

    async def say(self, statements: Sequence[Statement]) -> None:
        """In one round trip, as a session does with what comes up in one turn of the loop."""
        replies = await self._store.sync(self.connection, statements)
        assert replies is not None, "the server has forgotten its epoch"
        for reply in replies:
            assert reply.status == "ok", reply
            self.accounts[reply.statement.scope].hear(reply.term, reply.granted)

    async def say_of(
        self, scopes: Iterable[str], limit: Limit, more: int = 0, give_back: int = 0
    ) -> None:
        """The same of each of these scopes."""
        for some in batches(list(scopes), ACCOUNTS_AT_ONCE):
            await self.say([self.statement(scope, limit, more, give_back) for scope in some])


class Batch:
    """So many permits at a time, of so many sites: a semaphore's, and the yardstick's."""

    def __init__(self, node: SimulatedNode, permits: int, sites: int) -> None:
        self.permits = permits
        self._node = node
        self._sites = [f"site-{number}.example" for number in range(sites)]
        self._each = permits // sites
        self._last = 0

    async def take_and_give_back(self) -> None:
        node, each, limit = self._node, self._each, Limit(self._each)
        await node.say_of(self._sites, limit, more=each)
        assert all(node.accounts[site].held == each for site in self._sites)
        await node.say_of(self._sites, limit, give_back=each)

    async def add_and_remove(self) -> None:
        first = self._last + 1
        self._last += self._each  # always new ones, as a node's requests are
        members = [
            (f"yardstick:{site}", number, f"node:{number}")
            for site in self._sites
            for number in range(first, self._last + 1)
        ]
        call = self._node.connection.call
        await call([("ZADD", key, number, member) for key, number, member in members])
        await call([("ZREM", key, member) for key, _, member in members])
