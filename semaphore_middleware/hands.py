"""A node's own CONCURRENT_REQUESTS, as it holds for requests that come out of a line."""

from __future__ import annotations

import asyncio
from collections import deque


class Hands:
    """Waiting requests take no room, so more of them may be granted at once than a node has hands
    for. Those give their permit back, to others who can use it, and are set aside until a hand is
    free; then they ask again.
    """

    def __init__(self, most: int) -> None:
        self._most = most  # 0: as many as there are permits
        self._busy = 0
        self._aside: deque[asyncio.Future[None]] = deque()

    @property
    def full(self) -> bool:
        return 0 < self._most <= self._busy

    @property
    def somebody_aside(self) -> bool:
        return bool(self._aside)

    def take(self) -> None:
        self._busy += 1

    def free(self) -> None:
        self._busy -= 1
        self.call_one()

    async def wait(self) -> None:
        """Be set aside until a hand is free. It is not kept free for who was called: if that one
        has no use for it, another is to be called.
        """
        called = asyncio.get_running_loop().create_future()
        self._aside.append(called)
        try:
            await called
        except asyncio.CancelledError:
            self.call_one()
            raise

    def call_one(self) -> None:
        while self._aside and not self.full:
            called = self._aside.popleft()
            if not called.done():
                called.set_result(None)
                return

    def refuse_all(self, error: Exception) -> None:
        while self._aside:
            called = self._aside.popleft()
            if not called.done():
                called.set_exception(error)
