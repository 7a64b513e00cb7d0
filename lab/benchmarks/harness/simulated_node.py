"""A node reduced to its updates: how much it asks for is the benchmark's choice."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from semaphore_middleware.core.update_queue import LEASES_AT_ONCE
from semaphore_middleware.link.scripts import batches
from semaphore_middleware.model.limits import Limit
from tests.support.nodes import Caller


class SimulatedNode(Caller):
    """A node that says much in one round trip."""

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.connection.close()

    async def say_of(
        self, scopes: Iterable[str], limit: Limit, more: int = 0, give_back: int = 0
    ) -> None:
        """Want so many more permits of each of these scopes, and give so many back.

        In as few round trips as a session needs for what comes up in one cycle of the loop.
        """
        for some in batches(list(scopes), LEASES_AT_ONCE):
            for scope in some:
                book = self.book(scope)
                book.requested += more
                book.returned += give_back
            replies = await self.send(*(self.next_update(scope, limit) for scope in some))
            assert replies is not None, "the server has forgotten its epoch"
            for reply in replies:
                assert reply.status == "ok", reply
            self.apply(*replies)


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
