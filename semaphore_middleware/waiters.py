"""Requests taken from the scheduler that have no permit yet, and sites that have enough of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING

from semaphore_middleware.limits import Limits

if TYPE_CHECKING:
    from scrapy import Request

MOST = 1000  # waiters in memory, so that they do not grow with the number of full sites
LONG = 100  # characters of a scope, above which it makes no good name for a file


class Waiters:
    """A request is a waiter from the moment it enters the downloader's `fetch` until it has its
    permit: behind the robots.txt of a full site it waits just as well. A site is full when a
    limit's worth of its requests wait here: more of them would only take room.
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
        self._slots: dict[Request, tuple[str, int]] = {}  # its slot, and that slot's limit
        self._counts: dict[str, int] = {}
        self._full: set[str] = set()
        self.taking_no_room = 0
        """Waiters that are not to count as work in hand: of each site, up to a limit's worth. A
        scheduler that takes no heed of full sites is held up by the others, as it is without us.
        """

    @property
    def too_many(self) -> bool:
        return len(self._slots) >= MOST

    @contextmanager
    def expecting(self, request: Request) -> Iterator[None]:
        """While a request is fetched; `arrived` says that it waits no more."""
        scope = self._scope_of(request)
        limit = self._limits.of(scope) if scope is not None else None
        if scope is not None and limit is not None and request not in self._slots:
            slot = _slot(scope)
            self._slots[request] = slot, limit.concurrency
            self._count(slot, 1, limit.concurrency)
        try:
            yield
        finally:
            self.arrived(request)

    def arrived(self, request: Request) -> None:
        if request not in self._slots:
            return
        had_room = not self.too_many
        slot, limit = self._slots.pop(request)
        had_room = had_room and slot not in self._full
        self._count(slot, -1, limit)
        if not had_room:
            self._room_made()

    def _count(self, slot: str, change: int, limit: int) -> None:
        before = self._counts.get(slot, 0)
        now = before + change
        self.taking_no_room += min(now, limit) - min(before, limit)
        if now:
            self._counts[slot] = now
        else:
            del self._counts[slot]
        if now >= limit:
            self._full.add(slot)
        else:
            self._full.discard(slot)

    # What Scrapy's DownloaderAwarePriorityQueue asks its downloader ------------------------------

    def get_slot_key(self, request: Request) -> str:
        return _slot(self._scope_of(request) or "")

    def stats(self, possible_slots: Iterable[str]) -> list[tuple[int, str]]:
        """Of those that are not full, how busy they are: the queue takes the least busy."""
        counts, full = self._counts, self._full
        return [(counts.get(slot, 0), slot) for slot in possible_slots if slot not in full]


def _slot(scope: str) -> str:
    """The scope; or what stands for it in the queue, which makes file names of it under JOBDIR."""
    if len(scope) <= LONG and scope.isprintable():
        return scope
    return f"scope-{sha256(scope.encode('utf-8', 'surrogatepass')).hexdigest()}"
