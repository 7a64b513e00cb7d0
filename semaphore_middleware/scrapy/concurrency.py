"""This node's own `CONCURRENT_REQUESTS`, for requests that hold a permit."""

from __future__ import annotations

import asyncio
from collections import deque

from semaphore_middleware.core.observer import Event, Observer, PermitWaiting

PERMIT_IDLE_TIMEOUT_S = 0.5
"""How long a permit may wait here for a free place: in a busy node one is free sooner."""


class LocalConcurrency(Observer):
    """Places for requests that hold a permit: at most `limit` of them at once (0: no limit).

    Requests that wait for a permit take no place, so more permits may be granted at once than there
    are places. A request that gets no place in time returns its permit, which other nodes can use,
    and parks until a place is free. Then it asks for a permit again.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._waiting: deque[asyncio.Future[None]] = deque()  # they hold a permit
        self._parked: deque[asyncio.Future[None]] = deque()  # they hold none

    @property
    def is_short(self) -> bool:
        """True if requests wait only because all places are taken."""
        return bool(self._waiting or self._parked)

    async def acquire(self) -> bool:
        """Take a place, first come first served. False if none was free in time."""
        if not self._is_full and not self._waiting:
            self._used += 1
            return True
        place = _join(self._waiting)
        try:
            await asyncio.wait([place], timeout=PERMIT_IDLE_TIMEOUT_S)
        except asyncio.CancelledError:
            if not place.cancel():  # it was given one meanwhile
                self.release()
            raise
        if place.done():
            place.result()
            return True
        place.cancel()
        return False

    def release(self) -> None:
        """Give a place to the first request that waits with a permit, else wake a parked one."""
        self._used -= 1
        if _wake_first(self._waiting):
            self._used += 1  # handed over at once: a newcomer must not be quicker
        else:
            self.wake_parked()

    async def park(self) -> None:
        """Wait until a place is free. It is not reserved: if the request that is woken has no use
        for it, another one is to be woken.
        """
        woken = _join(self._parked)
        try:
            await woken
        except asyncio.CancelledError:
            self.wake_parked()
            raise

    def wake_parked(self) -> None:
        """Wake the first parked request if a place is free."""
        if not self._is_full:
            _wake_first(self._parked)

    def on_event(self, event: Event) -> None:
        """A request that has to wait for its permit may be one that was woken for a free place."""
        if isinstance(event, PermitWaiting):
            self.wake_parked()

    def fail_all(self, error: Exception) -> None:
        """Raise `error` in all that wait for a place."""
        for future in (*self._waiting, *self._parked):
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()
        self._parked.clear()

    @property
    def _is_full(self) -> bool:
        return 0 < self._limit <= self._used


def _join(queue: deque[asyncio.Future[None]]) -> asyncio.Future[None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    queue.append(future)
    return future


def _wake_first(queue: deque[asyncio.Future[None]]) -> bool:
    """Wake the first that still waits. False if there is none."""
    while queue:
        future = queue.popleft()
        if not future.done():
            future.set_result(None)
            return True
    return False
