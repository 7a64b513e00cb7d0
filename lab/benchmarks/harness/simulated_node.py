"""A node reduced to its statements: how much it asks for is the benchmark's choice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Self

from semaphore_middleware.core.outbox import ACCOUNTS_AT_ONCE
from semaphore_middleware.model.limits import Limit
from semaphore_middleware.redis.protocol import Notification, Statement, batches
from tests.support.nodes import ENDLESS_S, Caller


class SimulatedNode(Caller):
    """A node that says much in one round trip, and hears its channel, if it is asked to."""

    _listener: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.connect()
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
                book = self.books.get(said.scope)
                term, granted = said.numbers
                if book and term == book.term and granted > book.believed:
                    book.hear(granted)
                    on_grant(said.scope)

        task = link.listen(self.store.channels, ENDLESS_S, on_message)
        self._listener = asyncio.create_task(task)
        await subscribed.wait()

    def wish(self, scope: str, limit: Limit, more: int = 0, give_back: int = 0) -> Statement:
        """What it says if it wants so many more permits (or fewer), and gives so many back."""
        book = self.book(scope)
        book.asked += more
        book.returned += give_back
        return self.statement(scope, limit)

    async def tell(self, statements: Sequence[Statement]) -> None:
        """In one round trip, as a session does with what comes up in one turn of the loop."""
        replies = await self.send(*statements)
        assert replies is not None, "the server has forgotten its epoch"
        for reply in replies:
            assert reply.status == "ok", reply
        self.hear(*replies)

    async def say_of(
        self, scopes: Iterable[str], limit: Limit, more: int = 0, give_back: int = 0
    ) -> None:
        """The same of each of these scopes."""
        for some in batches(list(scopes), ACCOUNTS_AT_ONCE):
            await self.tell([self.wish(scope, limit, more, give_back) for scope in some])


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
        assert all(node.held(site) == each for site in self._sites)
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
