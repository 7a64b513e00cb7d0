"""Requests in the downloader: one record each, from entering `fetch` to leaving it. No I/O.

A request takes the permits of its scopes one after another: at each moment it waits for one scope,
its next scope, and holds the permits of all scopes before it.
"""

from __future__ import annotations

import asyncio
import math
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING

from semaphore_middleware.core.permit import PermitSet
from semaphore_middleware.scrapy.scopes import NO_SCOPES, ScopeFinder, ScopeNames, Scopes, names_in

if TYPE_CHECKING:
    from scrapy import Request

    from semaphore_middleware.scrapy.slots import OpenSlot

MAX_WAITING = 1000
"""The most requests from the scheduler that wait here: otherwise their number would grow with that
of full scopes.
"""
MAX_WAITING_OF_SCOPE = 100
"""The most of them that wait for one scope, even if its limit is higher: a rate may hold up all of
these, and requests of other scopes need room.
"""
SHARED_KEY = "semaphore_shared"
"""The meta key of a `SharedRequest`, in requests of our own that never leave this process."""
PREREQUISITES_FIRST = 2.0**40
"""Added to the priority of requests that bypass the scheduler; higher than any user's priority."""
LAST_NAME = chr(sys.maxunicode)
"""Comes after all scope names, which are printable."""


class State(Enum):
    """The states of a request in the downloader."""

    ASKING = "asking"
    """It lacks permits."""
    WAITING = "waiting"
    """It lacks permits, and the server has none free for it."""
    READY = "ready"
    """It has its permits, and begins as soon as it has a slot of CONCURRENT_REQUESTS."""
    ON_THE_WIRE = "on the wire"
    ANSWERED = "answered"
    """Its transfer is over. It keeps its permits until its `fetch` ends, as other nodes may reuse
    its response.
    """
    OVER = "over"
    """It has ended, and has no permits."""


ASKING, WAITING, READY, ON_THE_WIRE, ANSWERED, OVER = State


class Standing(Enum):
    """The state of a request at one of its scopes."""

    LATER = "later"
    """It has no permit of this scope, and does not ask for one now."""
    ASKS = "asks"
    """It lacks permits, and this is its next scope."""
    WAITS = "waits"
    """It asks, and the server has no permit free."""
    HOLDS = "holds"
    """It has a permit of this scope."""


LATER, ASKS, WAITS, HOLDS = Standing


@dataclass(slots=True, eq=False, repr=False)
class ScopeUsage:
    """One scope's requests in this process, from entering `fetch` to giving their permits back."""

    name: str
    concurrency: float
    """Its limit; infinite for requests that need no permit."""
    members: dict[Admission, Standing] = field(default_factory=dict)
    """The requests that have this scope."""
    asking: int = 0
    """How many of them ask for a permit of this scope, or wait for one."""
    waiting: int = 0
    """How many of these must wait."""
    held: int = 0
    """How many permits of this scope they hold."""
    is_saturated: bool = False
    """As many requests ask here as the limit allows: more would only take up memory."""
    is_full: bool = False
    """The scope has no free permit. While it may have one, all requests that have just asked may
    start at once.
    """

    def put(self, admission: Admission, standing: Standing) -> None:
        """Set the standing of a request, unless it has left."""
        before = self.members.get(admission)
        if before is None or before is standing:
            return
        self.members[admission] = standing
        self._count(before, -1)
        self._count(standing, 1)
        self.is_saturated = self.asking >= min(self.concurrency, MAX_WAITING_OF_SCOPE)
        self.is_full = self.waiting > 0 or self.held >= self.concurrency

    def leave(self, admission: Admission) -> None:
        """Remove a request: it has ended, or no longer has this scope."""
        self.put(admission, LATER)
        self.members.pop(admission, None)

    def _count(self, standing: Standing, change: int) -> None:
        if standing is HOLDS:
            self.held += change
        elif standing is not LATER:
            self.asking += change
            if standing is WAITS:
                self.waiting += change


@dataclass(slots=True, weakref_slot=True, eq=False)
class Admission:
    """One request in the downloader. Only `Admissions` changes its state and its permits."""

    request: Request
    is_scheduled: bool
    """False if it bypassed the scheduler, with `engine.download_async`."""
    state: State = ASKING
    scopes: Scopes = NO_SCOPES
    usages: tuple[ScopeUsage, ...] = ()
    """The usage of each of its scopes, in the order of taking their permits."""
    next_scope: int = 0
    """How many permits it holds: the index of its next scope among `usages`."""
    permits: PermitSet | None = None
    """Its permits while it is ready, on the wire or answered."""
    slot: asyncio.Future[None] | None = None
    """While it waits for a slot of CONCURRENT_REQUESTS: done when it gets one. None if it has
    stopped waiting without one.
    """
    scrapy_slot: OpenSlot | None = None
    """Its slot in Scrapy's downloader, once it has asked for permits."""
    needs: frozenset[Admission] = frozenset()
    """Requests it waits for, such as its robots.txt."""
    needed_by: frozenset[Admission] = frozenset()
    """Requests waiting for this one."""
    is_stuck: bool = False
    """It must wait for a permit, or waits for a stuck request."""
    task: asyncio.Task[object] | None = None
    """Its task while it waits for permits, or is on the wire, if it can be cancelled."""
    retries_most: int | None = None
    """The number of refusals to be retried, if the site has refused it."""
    is_left_to_others: bool = False
    """It was refused, and the next middlewares and the spider decide about a retry."""
    is_nodes_fault: bool = False
    """It got no response, as no site responds to this node."""
    has_headers: bool = False
    """It has got the headers of a response."""
    has_left: bool = False
    """Its `fetch` is over, or will not call `leave_fetch`: it was cancelled, or began before the
    downloader was wrapped. It may still be on the wire.
    """

    def __repr__(self) -> str:
        return f"<Admission of {self.request}: {self.state.value}>"

    @property
    def priority(self) -> float:
        """Its priority among this node's requests. One that bypassed the scheduler comes first:
        usually another request waits for it.
        """
        return self.request.priority + (0.0 if self.is_scheduled else PREREQUISITES_FIRST)

    @property
    def waits_at(self) -> ScopeUsage | None:
        """Its next scope while it lacks permits; otherwise None."""
        if self.state is not ASKING and self.state is not WAITING:
            return None
        return self.usages[self.next_scope] if self.next_scope < len(self.usages) else None


class Admissions:
    """All requests in a crawl's downloader, and their slots of CONCURRENT_REQUESTS.

    A request that has its permits needs one of the `concurrency` slots (0: no limit).
    Requests waiting for permits use no slot, so more permits may be granted at once than there are
    slots. Requests without a slot wait in one queue, by priority, then first come first served. A
    free slot is reserved for the first of them, until the request uses the slot or must wait for a
    permit. So a request that waits for a slot may leave its permits to other nodes, and ask for new
    ones when a slot is reserved.

    `on_room` is called when the engine may take more requests from the scheduler.
    """

    def __init__(self, scopes: ScopeFinder, concurrency: int, on_room: Callable[[], None]) -> None:
        self._scopes = scopes
        self._concurrency = concurrency or math.inf
        self._on_room = on_room
        self._by_request: dict[Request, Admission] = {}
        self._usages: dict[str, ScopeUsage] = {}  # by name, of scopes with requests in `fetch`
        self._unlimited = (ScopeUsage("", math.inf),)
        self._exempt: set[Admission] = set()
        """Waiting requests that do not count in `needs_backout`: their next scope is full, or they
        wait for a stuck request.
        """
        self._only_waiting: set[Admission] = set()  # they could have stayed in the scheduler
        self.scheduler_passes_over = False
        """The scheduler keeps the requests of saturated scopes: its queue calls `next_names`."""
        self._in_slots: set[Admission] = set()  # with a slot of CONCURRENT_REQUESTS, used or not
        self._slot_queue: dict[Admission, asyncio.Future[None]] = {}  # without a slot

    def __iter__(self) -> Iterator[Admission]:
        return iter([*self._by_request.values()])

    def admission_of(self, request: Request) -> Admission | None:
        """The record of a request; None if it is not in `fetch`."""
        return self._by_request.get(request)

    def needs_backout(self, in_fetch: int) -> bool:
        """True if the engine should take no request of any scope from the scheduler: too many
        requests wait for permits, one waits only for a slot of CONCURRENT_REQUESTS, or those
        `in_fetch` will use all slots.

        Of a scheduler that cannot pass over saturated scopes, all those `in_fetch` count, as in
        Scrapy: otherwise it would be emptied into memory, and a killed node would lose its queue.
        """
        exempt = len(self._exempt) if self.scheduler_passes_over else 0
        return (
            in_fetch - exempt >= self._concurrency
            or bool(self._slot_queue)
            or len(self._only_waiting) >= MAX_WAITING
        )

    # A request ----------------------------------------------------------------------------------

    def enter_fetch(
        self,
        request: Request,
        is_scheduled: bool = True,
        needed_by: Admission | None = None,
    ) -> Admission:
        """Record a request's entry into `fetch`. `needed_by`: the request whose `fetch` waits for
        its response.
        """
        admission = self._by_request.get(request)
        if admission is not None:  # a middleware fetches its own request
            return admission
        admission = self._by_request[request] = Admission(request, is_scheduled)
        self._set_scopes(admission, self._scopes.scopes_of(request))
        if needed_by is not None:
            self._need(needed_by, admission)
        return admission

    def take_over(self, admission: Admission) -> PermitSet | None:
        """Take the permits and the slot of the ready or answered requests that wait for this one.
        It cannot simply ask for the permits that they give back, as requests without a record may
        also hold permits while they wait for it.

        Returns permits of the same scopes, for this request; None if there are none.
        """
        taken = None
        for needer in self._ready_needers(admission):
            if taken is None and needer.state is READY and needer.usages == admission.usages:
                taken, needer.permits, needer.next_scope = needer.permits, None, 0
            if needer in self._in_slots and admission not in self._in_slots:
                self._in_slots.remove(needer)
                self._in_slots.add(admission)
            self.move(needer, ASKING)
            self._leave_slot(needer)
        return taken

    def _ready_needers(self, admission: Admission) -> list[Admission]:
        """Requests with their permits that wait for this one, or for one that waits for it."""
        needers = [*admission.needed_by]
        for needer in needers:
            needers += needer.needed_by.difference(needers)
        return [needer for needer in needers if needer.state in (READY, ANSWERED)]

    def leave_fetch(self, admission: Admission) -> None:
        """Record the end of a request's `fetch`. A cancelled request may still be on the wire."""
        admission.has_left = True
        if admission.state is OVER:
            self._forget(admission)
        elif admission.state is not ON_THE_WIRE:
            self.move(admission, OVER)

    def move(self, admission: Admission, state: State, permits: PermitSet | None = None) -> None:
        """Change a request's state. Its permits go back if it asks, waits or is over, and its
        slot goes to others if it waits or is over.
        """
        before, admission.state = admission.permits, state
        if state is ON_THE_WIRE or state is ANSWERED:
            return
        if state is READY:
            admission.permits, admission.next_scope = permits, len(admission.usages)
        else:
            admission.permits = None
            if before is not None or state is OVER:
                admission.next_scope = 0
        self._count(admission)
        if before is not None:
            before.release()
        if state is READY:
            self._take_slot(admission)
        elif state is not ASKING:
            self._leave_slot(admission)
        if state is OVER and admission.has_left:
            self._forget(admission)

    def _take_slot(self, admission: Admission) -> None:
        if len(self._in_slots) < self._concurrency:
            self._in_slots.add(admission)
        elif admission not in self._in_slots and admission not in self._slot_queue:
            admission.slot = self._slot_queue[admission] = (
                asyncio.get_running_loop().create_future()
            )

    def _leave_slot(self, admission: Admission) -> None:
        """Give a request's slot, and any other free one, to the first that wait for one."""
        self._in_slots.discard(admission)
        if slot := self._slot_queue.pop(admission, None):
            slot.cancel()
            admission.slot = None
        while self._slot_queue and len(self._in_slots) < self._concurrency:
            first = max(self._slot_queue, key=attrgetter("priority"))
            slot = self._slot_queue.pop(first)
            self._in_slots.add(first)
            if not slot.done():  # the request may be about to end
                slot.set_result(None)
            if not self._slot_queue:
                self._on_room()

    def has_slot(self, admission: Admission) -> bool:
        """True if a request has a slot of CONCURRENT_REQUESTS, or one is reserved for it."""
        return admission in self._in_slots

    def update(self, admission: Admission, scopes: Scopes) -> None:
        """Set the scopes of a request again, before it asks for permits: middlewares may have
        changed them since it entered `fetch`.
        """
        # Nearly always they are the same object, and identity is checked faster than equality.
        if scopes is not admission.scopes and scopes != admission.scopes:
            self._leave_usages(admission)
            self._set_scopes(admission, scopes)

    def enter_slot(self, admission: Admission, slot: OpenSlot) -> None:
        """Put a request that asks for permits into its slot in Scrapy's downloader."""
        if admission.scrapy_slot not in (slot, None):
            self._leave_scrapy_slot(admission)
        admission.scrapy_slot = slot
        slot.enter(admission.request, admission.scopes)

    def _leave_scrapy_slot(self, admission: Admission) -> None:
        if admission.scrapy_slot is not None:
            admission.scrapy_slot.active.discard(admission.request)

    def _set_scopes(self, admission: Admission, scopes: Scopes) -> None:
        admission.scopes = scopes
        usages = []
        for (_, limit), name in zip(scopes.limits, scopes.scope_names, strict=True):
            usage = self._usages.get(name)
            if usage is None:
                usage = self._usages[name] = ScopeUsage(name, limit.concurrency)
            usages.append(usage)
        admission.usages = tuple(usages) or self._unlimited
        for usage in admission.usages:
            usage.members[admission] = LATER
        self._count(admission)

    def _leave_usages(self, admission: Admission) -> None:
        for usage in admission.usages:
            usage.leave(admission)
            if not usage.members:
                self._usages.pop(usage.name, None)

    def _forget(self, admission: Admission) -> None:
        if self._by_request.get(admission.request) is admission:
            del self._by_request[admission.request]
        self._leave_usages(admission)
        self._leave_scrapy_slot(admission)
        for needed in admission.needs:
            needed.needed_by -= {admission}
        for other in admission.needed_by:
            other.needs -= {admission}
            self._count(other)

    @contextmanager
    def needing(self, request: Request, needed: Admission | None) -> Iterator[None]:
        """Record, in this context, that a request waits for `needed` to leave `fetch`. The ready
        requests that wait for `needed` give their permits back, as it may wait for these.
        """
        admission = self._by_request.get(request)
        if admission is None or needed is None or admission is needed:
            yield
            return
        self._need(admission, needed)
        for needer in self._ready_needers(needed):
            self.move(needer, ASKING)
            self._leave_slot(needer)
        try:
            yield
        finally:
            admission.needs -= {needed}
            needed.needed_by -= {admission}
            self._count(admission)

    def _need(self, admission: Admission, needed: Admission) -> None:
        admission.needs |= {needed}
        needed.needed_by |= {admission}
        self._count(admission)

    def follow(self, admission: Admission, taken: int, waits: bool) -> None:
        """Record how many permits a request has taken, and if it must wait for the next one
        (`waits`).
        """
        admission.next_scope = taken
        self.move(admission, WAITING if waits else ASKING)

    # Counts -------------------------------------------------------------------------------------

    def _count(self, admission: Admission) -> None:
        """Put a request into the sets of its state, and wake the engine if that makes room. If the
        request has become stuck, or no longer is, recount the requests that wait for it.
        """
        exempt_before = len(self._exempt)
        was_crowded = len(self._only_waiting) >= MAX_WAITING
        was_stuck = admission.is_stuck
        waits_at = admission.waits_at
        is_desaturated = self._put_into_usages(admission, waits_at)
        self._put_into_sets(admission, waits_at)
        is_crowded = len(self._only_waiting) >= MAX_WAITING
        is_less_crowded = was_crowded and not is_crowded
        if is_desaturated or is_less_crowded or len(self._exempt) > exempt_before:
            self._on_room()
        if admission.is_stuck is not was_stuck:
            for other in admission.needed_by:
                self._count(other)

    def _put_into_usages(self, admission: Admission, waits_at: ScopeUsage | None) -> bool:
        """Set a request's standing at its scopes. True if one of them is no longer saturated."""
        is_desaturated = False
        standing = WAITS if admission.state is WAITING else ASKS
        for index, usage in enumerate(admission.usages):
            was_saturated = usage.is_saturated
            was_full = usage.is_full
            if usage is waits_at:
                usage.put(admission, standing)
            else:
                usage.put(admission, HOLDS if index < admission.next_scope else LATER)
            if usage.is_full is not was_full:
                self._exempt_all(usage)
            if was_saturated and not usage.is_saturated:
                is_desaturated = True
        return is_desaturated

    def _put_into_sets(self, admission: Admission, waits_at: ScopeUsage | None) -> None:
        """Put a request into the crawl's sets, by its state, its next scope and its needs."""
        is_stuck = admission.state is WAITING
        asks = is_stuck or admission.state is ASKING
        if asks and admission.needs:
            is_stuck = is_stuck or any(needed.is_stuck for needed in admission.needs)
        admission.is_stuck = is_stuck
        is_exempt = is_stuck or (waits_at is not None and waits_at.is_full)
        (self._exempt.add if is_exempt else self._exempt.discard)(admission)
        needs_permit = is_stuck or admission.usages is not self._unlimited
        only_waits = asks and admission.is_scheduled and needs_permit
        (self._only_waiting.add if only_waits else self._only_waiting.discard)(admission)

    def _exempt_all(self, usage: ScopeUsage) -> None:
        """Exempt all requests waiting for a scope if it is full, otherwise only stuck ones."""
        asking = {one for one, standing in usage.members.items() if standing in (ASKS, WAITS)}
        if usage.is_full:
            self._exempt |= asking
        else:
            self._exempt -= {one for one in asking if not one.is_stuck}

    # For the scheduler's queue -------------------------------------------------------------------

    def queue_key(self, request: Request) -> str:
        return self._scopes.queue_key(request)

    def is_saturated(self, key: str) -> bool:
        """True if a scope of this queue is saturated."""
        return self._waiting_at(names_in(key), math.inf)[0] == math.inf

    def next_names(self, all_names: Sequence[ScopeNames], last: ScopeNames) -> ScopeNames | None:
        """The scope names with the fewest waiting requests, round robin after `last`; None if all
        names include a saturated scope.

        `all_names` are sorted, so those that begin with one scope are neighbours. If that scope
        alone has too many waiting requests, all of them are skipped in one step.
        """
        after_last = bisect_right(all_names, last)
        fewest: float = 0
        while fewest < math.inf:
            more = math.inf
            for begin, end in ((after_last, len(all_names)), (0, after_last)):
                index = begin
                while index < end:
                    names = all_names[index]
                    waiting, depth = self._waiting_at(names, fewest)
                    if waiting <= fewest:
                        return names
                    more = min(more, waiting)
                    index += 1
                    if depth < len(names):
                        index = bisect_right(all_names, (*names[:depth], LAST_NAME), index, end)
            fewest = more
        return None

    def _waiting_at(self, names: ScopeNames, most: float) -> tuple[float, int]:
        """The number of waiting requests with these scopes, infinite if a scope is saturated; and
        how many scopes were counted until it exceeded `most`.
        """
        waiting: float = 0
        for depth, name in enumerate(names, 1):
            usage = self._usages.get(name)
            if usage is not None:
                waiting = math.inf if usage.is_saturated else waiting + usage.asking
                if waiting > most:
                    return waiting, depth
        return waiting, len(names)
