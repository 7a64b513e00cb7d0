"""Requests of this process that wait for permits, and scopes that have enough of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, cast

from semaphore_middleware.core.observer import Event, Observer, PermitWaiting
from semaphore_middleware.model.limits import LimitTable

if TYPE_CHECKING:
    from scrapy import Request

MAX_WAITING = 1000
"""Requests of the scheduler that wait here, at most: they must not grow with the number of full
scopes.
"""
MAX_SLOT_CHARS = 100
"""The longest scope that is used as it is in names of files."""


@dataclass(slots=True, eq=False)
class ScopeLoad:
    """One scope's requests in this process, from entering `fetch` to giving their permit back."""

    slot: str
    """The scope's name for Scrapy's queue."""
    concurrency: float
    """Its limit; infinite for requests that need no permit."""
    waiting: int = 0
    """Requests without a permit."""
    told_to_wait: int = 0
    """Of these, requests for which the server had no permit free."""
    blocked: int = 0
    """Of those that wait, requests that were told to, or that wait for another one that is blocked:
    for its robots.txt, as a rule."""
    held: int = 0
    """Requests with a permit."""

    @property
    def is_saturated(self) -> bool:
        """True if a limit's worth of requests wait here: more of them would only take up memory."""
        return self.waiting >= self.concurrency

    @property
    def exempt_from_concurrency(self) -> int:
        """Waiting requests that do not count towards `CONCURRENT_REQUESTS`: all, if the scope has
        no permit free. While it may have one, all that have just asked may start at once.
        """
        is_full = self.told_to_wait or self.held >= self.concurrency
        return self.waiting if is_full and self.concurrency < math.inf else self.blocked


@dataclass(slots=True, eq=False)
class Entry:
    """One request in `fetch`. Numbers that are 0 or 1 are added to those of its scope."""

    load: ScopeLoad
    is_scheduled: bool
    """False if it came past the scheduler, with `engine.download_async`."""
    waiting: int = 0
    told_to_wait: int = 0
    held: int = 0
    blockers: int = 0
    """Requests that it waits for, and that are blocked."""
    followers: list[Entry] = field(default_factory=list)
    """Requests that wait for this one."""

    @property
    def is_blocked(self) -> bool:
        """True if it waits for a permit that is not free, itself or for another one's sake."""
        return bool(self.waiting and (self.told_to_wait or self.blockers))

    @property
    def fills_memory(self) -> bool:
        """True if it only waits, and could have stayed in the scheduler."""
        needs_permit = self.load.concurrency < math.inf
        return self.is_scheduled and bool(self.waiting and (needs_permit or self.blockers))


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
        self._entries: dict[Request, Entry] = {}
        self._loads: dict[str, ScopeLoad] = {}  # by slot, of scopes with requests in `fetch`
        self._unlimited = ScopeLoad("", math.inf)
        self._filling_memory = 0
        self.exempt_from_concurrency = 0
        """Waiting requests of all scopes that do not count towards `CONCURRENT_REQUESTS`."""

    @property
    def is_full(self) -> bool:
        """True if no further request should be taken from the scheduler, of whatever scope."""
        return self._filling_memory >= MAX_WAITING

    # The stages of a request --------------------------------------------------------------------

    def enter(
        self, request: Request, is_scheduled: bool = True, needed_by: Request | None = None
    ) -> None:
        """A request enters `fetch`, perhaps because another one there needs its response."""
        if request in self._entries:
            return
        entry = self._entries[request] = Entry(self._load_of(request), is_scheduled)
        if needed_by is not None:
            self.follow(needed_by, request)
        self._change(entry, waiting=1)

    def _load_of(self, request: Request) -> ScopeLoad:
        scope = self._scope_of(request)
        limit = self._limits.of(scope) if scope is not None else None
        if scope is None or limit is None:
            return self._unlimited
        slot = _slot(scope)
        load = self._loads.get(slot)
        if load is None:
            load = self._loads[slot] = ScopeLoad(slot, limit.concurrency)
        return load

    def on_event(self, event: Event) -> None:
        """A request learns that there is no permit free for it."""
        if isinstance(event, PermitWaiting):
            entry = self._entries.get(cast("Request", event.permit.owner))
            if entry is not None and entry.waiting and not entry.told_to_wait:
                self._change(entry, told_to_wait=1)

    def acquired(self, request: Request) -> None:
        """A request has its permit."""
        entry = self._entries.get(request)
        if entry is not None and entry.waiting:
            self._change(entry, waiting=-1, told_to_wait=-entry.told_to_wait, held=1)

    def released(self, request: Request) -> None:
        """A request has given its permit back."""
        entry = self._entries.get(request)
        if entry is not None and entry.held:
            self._change(entry, held=-1)

    def leave(self, request: Request) -> None:
        """A request leaves `fetch`."""
        entry = self._entries.pop(request, None)
        if entry is not None:
            self._change(
                entry,
                waiting=-entry.waiting,
                told_to_wait=-entry.told_to_wait,
                held=-entry.held,
            )

    def follow(self, request: Request, leader: Request) -> None:
        """A request waits for another one, until `unfollow`, or until that one leaves `fetch`."""
        follower, led_by = self._entries.get(request), self._entries.get(leader)
        if follower is None or led_by is None or follower is led_by:
            return
        led_by.followers.append(follower)
        if led_by.is_blocked:
            self._change(follower, blockers=1)

    def unfollow(self, request: Request, leader: Request) -> None:
        """A request no longer waits for the other one."""
        follower, led_by = self._entries.get(request), self._entries.get(leader)
        if follower is None or led_by is None or follower not in led_by.followers:
            return
        led_by.followers.remove(follower)
        if led_by.is_blocked:
            self._change(follower, blockers=-1)

    @contextmanager
    def blocked(self, request: Request) -> Iterator[None]:
        """A request waits for what another node does, which may wait for a permit."""
        entry = self._entries.get(request)
        if entry is not None:
            self._change(entry, blockers=1)
        try:
            yield
        finally:
            if entry is not None:
                self._change(entry, blockers=-1)

    def _change(
        self,
        entry: Entry,
        waiting: int = 0,
        told_to_wait: int = 0,
        held: int = 0,
        blockers: int = 0,
    ) -> None:
        load = entry.load
        was_blocked, filled_memory = entry.is_blocked, entry.fills_memory
        was_saturated, was_exempt = load.is_saturated, load.exempt_from_concurrency
        was_full = self.is_full
        entry.waiting += waiting
        entry.told_to_wait += told_to_wait
        entry.held += held
        entry.blockers += blockers
        load.waiting += waiting
        load.told_to_wait += told_to_wait
        load.held += held
        load.blocked += entry.is_blocked - was_blocked
        self._filling_memory += entry.fills_memory - filled_memory
        more_exempt = load.exempt_from_concurrency - was_exempt
        self.exempt_from_concurrency += more_exempt
        is_open = (was_saturated and not load.is_saturated) or (was_full and not self.is_full)
        if more_exempt > 0 or is_open:
            self._on_room()
        if not load.waiting and not load.held and self._loads.get(load.slot) is load:
            del self._loads[load.slot]
        if entry.is_blocked != was_blocked:
            for follower in entry.followers:
                self._change(follower, blockers=1 if entry.is_blocked else -1)

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
