"""Requests taken from the scheduler that have no permit yet, and sites that have enough of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from semaphore_middleware.limits import Limits

if TYPE_CHECKING:
    from scrapy import Request

MOST = 1000  # waiters in memory, so that they do not grow with the number of full sites


class Waiters:
    """A request is a waiter from the moment it enters the downloader's `fetch` until it has its
    permit: behind the robots.txt of a full site it waits just as well.
    """

    def __init__(
        self,
        scope_of: Callable[[Request], str | None],
        limits: Limits,
        room_made: Callable[[], None],
    ) -> None:
        self._scope_of = scope_of
        self._limits = limits
        self._room_made = room_made
        self._scopes: dict[Request, str] = {}
        self._counts: Counter[str] = Counter()
        self.taking_no_room = 0
        """Waiters that are not to count as work in hand: of each site, up to a limit's worth. A
        scheduler that takes no heed of full sites is held up by the others, as it is without us.
        """

    def __len__(self) -> int:
        return len(self._scopes)

    @property
    def too_many(self) -> bool:
        return len(self) >= MOST

    def is_full(self, scope: str) -> bool:
        """Whether a site has a limit's worth of waiters here: more of them would only take room."""
        limit = self._limits.of(scope)
        return limit is not None and self._counts[scope] >= limit.concurrency

    @contextmanager
    def expecting(self, request: Request) -> Iterator[None]:
        """While a request is fetched; `arrived` says that it waits no more."""
        scope = self._scope_of(request)
        if scope is not None and self._limits.of(scope) is not None:
            self.taking_no_room += not self.is_full(scope)
            self._scopes[request] = scope
            self._counts[scope] += 1
        try:
            yield
        finally:
            self.arrived(request)

    def arrived(self, request: Request) -> None:
        scope = self._scopes.pop(request, None)
        if scope is None:
            return
        had_room = not self.too_many and not self.is_full(scope)
        self._counts[scope] -= 1
        self.taking_no_room -= not self.is_full(scope)
        if not self._counts[scope]:
            del self._counts[scope]
        if not had_room:
            self._room_made()

    # What Scrapy's DownloaderAwarePriorityQueue asks its downloader ------------------------------

    def get_slot_key(self, request: Request) -> str:
        return self._scope_of(request) or ""

    def stats(self, possible_slots: Iterable[str]) -> list[tuple[int, str]]:
        """Of those that are not full, how busy they are: the queue takes the least busy."""
        return [(self._counts[slot], slot) for slot in possible_slots if not self.is_full(slot)]
