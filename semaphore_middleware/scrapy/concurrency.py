"""This node's own `CONCURRENT_REQUESTS`, for requests that have all permits that they need."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from semaphore_middleware.core.observer import Event, Observer, PermitWaiting

if TYPE_CHECKING:
    from scrapy import Request


class LocalConcurrency(Observer):
    """Places for requests that have the permits that they need, be it none: at most `limit` of them
    at once (0: no limit).

    Requests that wait for a permit take no place, so more permits may be granted at once than there
    are places. Requests that lack a place form one line, by priority, then first come first served.
    A place that is free is reserved for the first of them until it uses the place or leaves: so it
    may give its permit to other nodes meanwhile, and ask for another with the place in its hand. If
    it is told to wait for that permit, the place goes to the next in line.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0  # places in use, and reserved ones
        self._reserved: set[Request] = set()
        self._line: dict[Request, asyncio.Future[None]] = {}
        self._priorities: dict[Request, float] = {}  # of those in line

    @property
    def is_short(self) -> bool:
        """True if requests wait only because all places are taken."""
        return bool(self._line)

    def reserve(self, request: Request) -> bool:
        """Reserve a place for a request. False if it has none, and none is free."""
        if request in self._reserved:
            return True
        if 0 < self._limit <= self._taken:
            return False
        self._taken += 1
        self._reserved.add(request)
        return True

    async def wait(
        self, request: Request, timeout: float | None = None, priority: float = 0.0
    ) -> None:
        """Wait until a place is reserved for the request, or for `timeout` seconds. It stays in
        line until it has a place or leaves, so it can go on waiting later.
        """
        if self.reserve(request):
            return
        if request not in self._line:
            self._line[request] = asyncio.get_running_loop().create_future()
            self._priorities[request] = priority
        place = self._line[request]
        await asyncio.wait([place], timeout=timeout)
        if place.done():
            place.result()

    def use(self, request: Request) -> bool:
        """Let a request begin in the place that is reserved for it. False if none is."""
        if request not in self._reserved:
            return False
        self._reserved.remove(request)
        return True

    def leave(self, request: Request) -> None:
        """A request no longer waits for a place, nor needs the one that is reserved for it."""
        if place := self._line.pop(request, None):
            del self._priorities[request]
            place.cancel()
        elif self.use(request):
            self.release()

    def release(self) -> None:
        """A place is free: reserve it for the first in line."""
        self._taken -= 1
        if self._line:
            request = max(self._line, key=self._priorities.__getitem__)
            place = self._line.pop(request)
            del self._priorities[request]
            self.reserve(request)
            place.set_result(None)

    def on_event(self, event: Event) -> None:
        """A request has to wait for its permit: others can use its place meanwhile."""
        if isinstance(event, PermitWaiting):
            request = cast("Request", event.permit.owner)
            if self.use(request):
                self.release()

    def fail_all(self, error: Exception) -> None:
        """Raise `error` in all that wait for a place."""
        for place in self._line.values():
            place.set_exception(error)
        self._line.clear()
        self._priorities.clear()
