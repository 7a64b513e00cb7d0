"""Requests of this process that wait for permits, and scopes that have enough of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, cast

from semaphore_middleware.core.observer import Event, Observer, PermitWaiting
from semaphore_middleware.model.limits import Limit, LimitTable

if TYPE_CHECKING:
    from scrapy import Request

MAX_WAITING = 1000
"""Requests that wait here, at most: they must not grow with the number of full scopes."""
MAX_SLOT_CHARS = 100
"""The longest scope that is used as it is in names of files."""


@dataclass(slots=True, eq=False)
class ScopeLoad:
    """One scope's requests in this process, from entering `fetch` to giving their permit back."""

    slot: str
    """The scope's name for Scrapy's queue."""
    limit: Limit
    waiting: int = 0
    """Requests without a permit."""
    told_to_wait: int = 0
    """Of these, requests for which the server had no permit free."""
    held: int = 0
    """Requests with a permit."""

    @property
    def is_saturated(self) -> bool:
        """True if a limit's worth of requests wait here: more of them would only take up memory."""
        return self.waiting >= self.limit.concurrency

    @property
    def exempt_from_concurrency(self) -> int:
        """Waiting requests that do not count towards `CONCURRENT_REQUESTS`.

        None, while the scope may have a permit free: all that have just asked may start at once.
        And not more than a limit's worth: a queue that does not pass over saturated scopes would
        hand out all that it has.
        """
        if self.told_to_wait or self.held >= self.limit.concurrency:
            return min(self.waiting, self.limit.concurrency)
        return 0


class Backpressure(Observer):
    """Tells Scrapy's queue which scopes are saturated, and its downloader which requests only wait.

    A request waits from the moment it enters `fetch` until it has its permit: also while it waits
    for the robots.txt of a full site. `on_room` is called when the scheduler may have more to do.
    """

    def __init__(
        self,
        scope_of: Callable[[Request], str | None],
        limits: LimitTable,
        on_room: Callable[[], None],
    ) -> None:
        self._scope_of = scope_of
        self._limits = limits
        self._on_room = on_room
        self._loads: dict[str, ScopeLoad] = {}  # by slot, of scopes with requests in `fetch`
        self._waiting: dict[Request, ScopeLoad] = {}
        self._told_to_wait: set[Request] = set()
        self._holding: dict[Request, ScopeLoad] = {}
        self.exempt_from_concurrency = 0
        """Waiting requests of all scopes that do not count towards `CONCURRENT_REQUESTS`."""

    @property
    def is_full(self) -> bool:
        """True if no further request should be taken from the scheduler, of whatever scope."""
        return len(self._waiting) >= MAX_WAITING

    # The stages of a request --------------------------------------------------------------------

    def enter(self, request: Request) -> None:
        """A request enters `fetch`."""
        scope = self._scope_of(request)
        limit = self._limits.of(scope) if scope is not None else None
        if scope is None or limit is None or request in self._waiting or request in self._holding:
            return
        slot = _slot(scope)
        load = self._loads.get(slot) or ScopeLoad(slot, limit)
        self._loads[slot] = self._waiting[request] = load
        self._change(load, waiting=1)

    def on_event(self, event: Event) -> None:
        """A request learns that there is no permit free for it."""
        if isinstance(event, PermitWaiting):
            request = cast("Request", event.permit.owner)
            load = self._waiting.get(request)
            if load is not None and request not in self._told_to_wait:
                self._told_to_wait.add(request)
                self._change(load, told_to_wait=1)

    def acquired(self, request: Request) -> None:
        """A request has its permit."""
        if load := self._stop_waiting(request, held=1):
            self._holding[request] = load

    def released(self, request: Request) -> None:
        """A request has given its permit back."""
        if load := self._holding.pop(request, None):
            self._change(load, held=-1)

    def leave(self, request: Request) -> None:
        """A request leaves `fetch`."""
        self.released(request)
        self._stop_waiting(request)

    def _stop_waiting(self, request: Request, held: int = 0) -> ScopeLoad | None:
        was_full = self.is_full
        load = self._waiting.pop(request, None)
        if load is None:
            return None
        told_to_wait = request in self._told_to_wait
        self._told_to_wait.discard(request)
        self._change(load, waiting=-1, told_to_wait=-told_to_wait, held=held)
        if was_full:
            self._on_room()
        return load

    def _change(
        self, load: ScopeLoad, waiting: int = 0, told_to_wait: int = 0, held: int = 0
    ) -> None:
        was_saturated, was_exempt = load.is_saturated, load.exempt_from_concurrency
        load.waiting += waiting
        load.told_to_wait += told_to_wait
        load.held += held
        more_exempt = load.exempt_from_concurrency - was_exempt
        self.exempt_from_concurrency += more_exempt
        if more_exempt > 0 or (was_saturated and not load.is_saturated):
            self._on_room()
        if not load.waiting and not load.held:
            del self._loads[load.slot]

    # What Scrapy's DownloaderAwarePriorityQueue asks its downloader ------------------------------

    def get_slot_key(self, request: Request) -> str:
        """The slot of a request: its scope, by a name that can be part of a file's name."""
        return _slot(self._scope_of(request) or "")

    def stats(self, possible_slots: Iterable[str]) -> list[tuple[int, str]]:
        """How many requests wait, for each slot that is not saturated. The queue takes its next
        request from the slot with the fewest.
        """
        found = []
        for slot in possible_slots:
            load = self._loads.get(slot)
            if load is None:
                found.append((0, slot))
            elif not load.is_saturated:
                found.append((load.waiting, slot))
        return found


def _slot(scope: str) -> str:
    """The scope, or a digest of it where it makes no good file name: under JOBDIR the queue names
    its files after slots.
    """
    if len(scope) <= MAX_SLOT_CHARS and scope.isprintable():
        return scope
    return f"scope-{sha256(scope.encode('utf-8', 'surrogatepass')).hexdigest()}"
