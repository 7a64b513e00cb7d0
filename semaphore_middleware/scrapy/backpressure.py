"""Requests of this process that wait for permits, and scopes that have enough of them.

A request takes its scopes one after another, so at each moment it waits for one, its scope at
hand, and holds those before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, cast

from semaphore_middleware.core.observer import (
    Event,
    Observer,
    PermitGranted,
    PermitReleased,
    PermitWaiting,
)
from semaphore_middleware.model.hosts import encoded
from semaphore_middleware.scrapy.scopes import ScopeFinder, Scopes

if TYPE_CHECKING:
    from scrapy import Request

MAX_WAITING = 1000
"""Requests of the scheduler that wait here, at most: they must not grow with the number of full
scopes.
"""
MAX_WAITING_OF_SCOPE = 100
"""Of these, requests for one scope, however many it allows at once: so many wait where a rate holds
them up, and others are to find room.
"""
MAX_NAME_BYTES = 100
"""The longest scope that is used as it is in names of files."""
MAX_SLOT_BYTES = 200
"""The longest name of a slot. Scopes that it has no room for are left out."""
SEPARATOR = " + "
"""Between the scopes in the name of a slot."""


@dataclass(slots=True, eq=False)
class ScopeLoad:
    """One scope's requests in this process, from entering `fetch` to giving their permit back."""

    name: str
    """The scope's, in names of slots."""
    concurrency: float
    """Its limit; infinite for requests that need no permit."""
    members: int = 0
    """Requests that have it among their scopes."""
    waiting: int = 0
    """Requests whose scope at hand it is, and that have no permit."""
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
        return self.waiting >= min(self.concurrency, MAX_WAITING_OF_SCOPE)

    @property
    def exempt_from_concurrency(self) -> int:
        """Waiting requests that do not count towards `CONCURRENT_REQUESTS`: all, if the scope has
        no permit free. While it may have one, all that have just asked may start at once.
        """
        is_full = self.told_to_wait or self.held >= self.concurrency
        return self.waiting if is_full and self.concurrency < math.inf else self.blocked


@dataclass(slots=True, eq=False)
class Entry:
    """One request in `fetch`. Its own numbers are part of those of its scope at hand."""

    loads: tuple[ScopeLoad, ...]
    """Of its scopes, in the order in which it takes them."""
    is_scheduled: bool
    """False if it bypassed the scheduler, with `engine.download_async`."""
    place: int = 0
    """The number of permits that it holds: the place of its scope at hand among `loads`."""
    waiting: int = 0
    told_to_wait: int = 0
    blockers: int = 0
    """Requests that it waits for, and that are blocked."""
    followers: list[Entry] = field(default_factory=list)
    """Requests that wait for this one."""

    @property
    def load(self) -> ScopeLoad:
        """Of its scope at hand; of the last one, when it has all."""
        return self.loads[min(self.place, len(self.loads) - 1)]

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

    A request waits from the moment it enters `fetch` until it has its permits: also while it waits
    for the robots.txt of a full site. `on_room` is called when the scheduler may have more to do.
    """

    def __init__(self, scopes: ScopeFinder, on_room: Callable[[], None]) -> None:
        self._scopes = scopes
        self._on_room = on_room
        self._entries: dict[Request, Entry] = {}
        self._loads: dict[str, ScopeLoad] = {}  # by name, of scopes with requests in `fetch`
        self._unlimited = (ScopeLoad("", math.inf),)
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
        loads = self._join_loads(self._scopes.scopes_of(request))
        entry = self._entries[request] = Entry(loads, is_scheduled)
        if needed_by is not None:
            self.follow(needed_by, request)
        self._change(entry, waiting=1)

    def is_scheduled(self, request: Request) -> bool:
        """True unless the request bypassed the scheduler, as far as that is known."""
        entry = self._entries.get(request)
        return entry is None or entry.is_scheduled

    def update(self, request: Request, scopes: Scopes) -> None:
        """The scopes of a request that is about to wait for them: middlewares may have changed them
        since it entered `fetch`, and its address may not have been known.
        """
        entry = self._entries.get(request)
        names = [_name(scope) for scope, _ in scopes]
        if entry is None or not entry.waiting or [load.name for load in entry.loads] == names:
            return
        before, loads = entry.loads, self._join_loads(scopes)
        self._change(entry, waiting=-entry.waiting, told_to_wait=-entry.told_to_wait)
        entry.loads = loads
        self._change(entry, waiting=1)
        self._leave_loads(before)

    def _join_loads(self, scopes: Scopes) -> tuple[ScopeLoad, ...]:
        loads = []
        for scope, limit in scopes:
            name = _name(scope)
            load = self._loads.get(name)
            if load is None:
                load = self._loads[name] = ScopeLoad(name, limit.concurrency)
            load.members += 1
            loads.append(load)
        return tuple(loads) or self._unlimited

    def _leave_loads(self, loads: tuple[ScopeLoad, ...]) -> None:
        if loads is self._unlimited:
            return
        for load in loads:
            load.members -= 1
            if not load.members:
                del self._loads[load.name]

    def on_event(self, event: Event) -> None:
        """A request learns that there is no permit free for it; or it has got one of several, and
        goes on to its next scope; or it has given those back, and begins anew.
        """
        if not isinstance(event, PermitWaiting | PermitGranted | PermitReleased):
            return
        entry = self._entries.get(cast("Request", event.permit.owner))
        if entry is None or not entry.waiting:
            return
        if isinstance(event, PermitWaiting):
            if not entry.told_to_wait:
                self._change(entry, told_to_wait=1)
        elif isinstance(event, PermitGranted):
            if entry.place < len(entry.loads) - 1:
                self._move(entry, entry.place + 1)
        elif entry.place > 0:
            self._move(entry, 0)

    def _move(self, entry: Entry, place: int) -> None:
        """A request that waits has another scope at hand, or with the last one, has them all."""
        waits = place < len(entry.loads)
        self._change(entry, waiting=-entry.waiting, told_to_wait=-entry.told_to_wait)
        for load in entry.loads[place : entry.place]:
            self._change_load(load, held=-1)
        for load in entry.loads[entry.place : place]:
            self._change_load(load, held=1)
        entry.place = place
        if waits:
            self._change(entry, waiting=1)

    def acquired(self, request: Request) -> None:
        """A request has its permits."""
        entry = self._entries.get(request)
        if entry is not None and entry.waiting:
            self._move(entry, len(entry.loads))

    def released(self, request: Request) -> None:
        """A request has given its permits back."""
        entry = self._entries.get(request)
        if entry is not None and not entry.waiting:
            self._give_back(entry)

    def suspend(self, request: Request) -> None:
        """A request has given its permits back, and waits for them once more."""
        entry = self._entries.get(request)
        if entry is not None and not entry.waiting:
            self._give_back(entry)
            self._change(entry, waiting=1)

    def _give_back(self, entry: Entry) -> None:
        for load in entry.loads[: entry.place]:
            self._change_load(load, held=-1)
        entry.place = 0

    def leave(self, request: Request) -> None:
        """A request leaves `fetch`."""
        entry = self._entries.pop(request, None)
        if entry is not None:
            self._change(entry, waiting=-entry.waiting, told_to_wait=-entry.told_to_wait)
            self._give_back(entry)
            self._leave_loads(entry.loads)

    def follow(self, request: Request, leader: Request) -> None:
        """A request waits for another one, until `unfollow`, or until that one leaves `fetch`."""
        follower, leader_entry = self._entries.get(request), self._entries.get(leader)
        if follower is None or leader_entry is None or follower is leader_entry:
            return
        leader_entry.followers.append(follower)
        if leader_entry.is_blocked:
            self._change(follower, blockers=1)

    def unfollow(self, request: Request, leader: Request) -> None:
        """A request no longer waits for the other one."""
        follower, leader_entry = self._entries.get(request), self._entries.get(leader)
        if follower is None or leader_entry is None or follower not in leader_entry.followers:
            return
        leader_entry.followers.remove(follower)
        if leader_entry.is_blocked:
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
        self, entry: Entry, waiting: int = 0, told_to_wait: int = 0, blockers: int = 0
    ) -> None:
        """Change an entry's numbers, and with them its scope's, the totals and its followers'."""
        was_blocked, filled_memory = entry.is_blocked, entry.fills_memory
        was_full = self.is_full
        entry.waiting += waiting
        entry.told_to_wait += told_to_wait
        entry.blockers += blockers
        self._filling_memory += entry.fills_memory - filled_memory
        blocked = entry.is_blocked - was_blocked
        self._change_load(entry.load, waiting, told_to_wait, blocked)
        if was_full and not self.is_full:
            self._on_room()
        if blocked:
            for follower in entry.followers:
                self._change(follower, blockers=1 if entry.is_blocked else -1)

    def _change_load(
        self,
        load: ScopeLoad,
        waiting: int = 0,
        told_to_wait: int = 0,
        blocked: int = 0,
        held: int = 0,
    ) -> None:
        was_saturated, was_exempt = load.is_saturated, load.exempt_from_concurrency
        load.waiting += waiting
        load.told_to_wait += told_to_wait
        load.blocked += blocked
        load.held += held
        more_exempt = load.exempt_from_concurrency - was_exempt
        self.exempt_from_concurrency += more_exempt
        if more_exempt > 0 or (was_saturated and not load.is_saturated):
            self._on_room()

    # What Scrapy's DownloaderAwarePriorityQueue asks its downloader ------------------------------

    def get_slot_key(self, request: Request) -> str:
        """The slot of a request: its scopes, by names that can be part of a file's name."""
        slot = ""
        for name in map(_name, self._scopes.slot_names(request)):
            longer = f"{slot}{SEPARATOR}{name}" if slot else name
            if len(encoded(longer)) <= MAX_SLOT_BYTES:
                slot = longer
        return slot

    def stats(self, possible_slots: Iterable[str]) -> list[tuple[int, str]]:
        """How many requests wait, for each slot none of whose scopes is saturated. The queue takes
        its next request from the slot with the fewest.
        """
        found = []
        for slot in possible_slots:
            loads = self._loads_of(slot)
            if not any(load.is_saturated for load in loads):
                found.append((sum(load.waiting for load in loads), slot))
        return found

    def _loads_of(self, slot: str) -> Sequence[ScopeLoad]:
        """The loads of a slot's scopes, of those that have requests in `fetch`."""
        names: list[str | None] = [*slot.split(SEPARATOR)]
        for place, name in enumerate(names):
            if name is not None and name.startswith("ip:"):
                names[place] = self._scopes.address_scope(name.removeprefix("ip:"))
        return [self._loads[name] for name in names if name in self._loads]


def _name(scope: str) -> str:
    """The scope, or a digest of it where it makes no good file name: under JOBDIR the queue names
    its files after slots.
    """
    if len(encoded(scope)) <= MAX_NAME_BYTES and scope.isprintable() and "+" not in scope:
        return scope
    return f"scope-{sha256(encoded(scope)).hexdigest()}"
