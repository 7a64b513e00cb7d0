"""A node's own CONCURRENT_REQUESTS, as it holds for requests that come out of a line."""

from __future__ import annotations

import asyncio
from collections import deque

BRIEF = 0.5  # seconds that a permit may wait for a hand: with many at work, one is soon free


class Hands:
    """Waiting requests take no room, so more of them may be granted at once than a node has hands
    for. Who gets none in brief gives the permit back, to others who can use it, and is set aside
    until a hand is free; then it asks again.
    """

    def __init__(self, most: int) -> None:
        self._most = most  # 0: as many as there are permits
        self._busy = 0
        self._with_permit: deque[asyncio.Future[None]] = deque()
        self._aside: deque[asyncio.Future[None]] = deque()

    @property
    def wanted(self) -> bool:
        """Whether requests wait for nothing but a hand."""
        return bool(self._with_permit or self._aside)

    async def take(self) -> bool:
        """Take a hand, in the order of asking; False if none was free in brief."""
        if not self._full and not self._with_permit:
            self._busy += 1
            return True
        handed = _join(self._with_permit)
        try:
            await asyncio.wait([handed], timeout=BRIEF)
        except asyncio.CancelledError:
            if not handed.cancel():
                self.free()
            raise
        if handed.done():
            handed.result()
            return True
        handed.cancel()
        return False

    def free(self) -> None:
        self._busy -= 1
        if _call_first(self._with_permit):
            self._busy += 1  # it goes from hand to hand: who comes now must not be quicker
        else:
            self.call_one()

    async def wait(self) -> None:
        """Be set aside until a hand is free. It is not kept free for who was called: if that one
        has no use for it, another is to be called.
        """
        called = _join(self._aside)
        try:
            await called
        except asyncio.CancelledError:
            self.call_one()
            raise

    def call_one(self) -> None:
        if not self._full:
            _call_first(self._aside)

    def refuse_all(self, error: Exception) -> None:
        for waiting in (*self._with_permit, *self._aside):
            if not waiting.done():
                waiting.set_exception(error)
        self._with_permit.clear()
        self._aside.clear()

    @property
    def _full(self) -> bool:
        return 0 < self._most <= self._busy


def _join(queue: deque[asyncio.Future[None]]) -> asyncio.Future[None]:
    called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    queue.append(called)
    return called


def _call_first(queue: deque[asyncio.Future[None]]) -> bool:
    while queue:
        called = queue.popleft()
        if not called.done():
            called.set_result(None)
            return True
    return False
