"""Explains in the log why requests wait for long."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterator

from semaphore_middleware.core.observer import Event, ObservedSemaphore, Observer, PermitWaiting
from semaphore_middleware.errors import SemaphoreError
from semaphore_middleware.model.inspection import Inspection

logger = logging.getLogger(__name__)

LONG_WAIT_S = 60.0  # a wait this long is explained
FIRST_LOOK_S = 3.0  # a wait this long is, in this node's first lease, if a node is gone
GONE = 0.6  # of a lease: a node that renews its leases has more left
SCOPE_INTERVAL_S = 600.0  # between two lines about one scope: at a slow site requests always wait
NAMED_HOLDERS_MAX = 5  # nodes named in a line


class LongWaits(Observer):
    """Logs why a request has waited for a minute: who holds the permits, or what else delays it.

    One line explains all requests waiting for the scope at that time; no request is explained
    twice. This costs a timer per scope, and per line one call to the server.
    """

    hears = (PermitWaiting,)

    def __init__(self) -> None:
        self._timers: dict[str, asyncio.TimerHandle] = {}  # of all watched scopes
        self._explained: dict[str, float] = {}  # scope -> the time of its last line
        self._looks: set[asyncio.Task[None]] = set()
        self._first_lease_ends = 0.0  # by the loop's clock

    async def open(self, semaphore: ObservedSemaphore) -> None:
        self._semaphore = semaphore

    def on_event(self, event: Event) -> None:
        if isinstance(event, PermitWaiting) and event.permit.scope not in self._timers:
            self._look_in(self._least_wait, event.permit.scope)

    async def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        looks = list(self._looks)
        for look in looks:
            look.cancel()
        await asyncio.gather(*looks, return_exceptions=True)

    @property
    def _least_wait(self) -> float:
        """How long a wait is before its cause is looked for."""
        now = asyncio.get_running_loop().time()
        if self._first_lease_ends == 0.0:
            self._first_lease_ends = now + self._semaphore.admin.lease
        return min(FIRST_LOOK_S, LONG_WAIT_S) if now < self._first_lease_ends else LONG_WAIT_S

    def _look_in(self, seconds: float, scope: str) -> None:
        loop = asyncio.get_running_loop()
        self._timers[scope] = loop.call_later(seconds, self._look, scope)

    def _look(self, scope: str) -> None:
        if not list(self._asked_at(scope)):
            del self._timers[scope]
            self._explained.pop(scope, None)
            return
        longest = max(self._unexplained(scope), default=0.0)
        if longest < self._least_wait:
            self._look_in(self._least_wait - longest, scope)
            return
        look = asyncio.ensure_future(self._explain(scope))
        self._looks.add(look)
        look.add_done_callback(self._looks.discard)

    async def _explain(self, scope: str) -> None:
        next_look = self._least_wait
        try:
            seen = await self._semaphore.admin.inspect(scope)
            longest = max(self._unexplained(scope), default=0.0)
            gone = list(self._gone(seen))
            if longest >= (FIRST_LOOK_S if gone else LONG_WAIT_S):  # it may have its permit now
                here = len(list(self._asked_at(scope)))
                logger.info("%s", " ".join((explanation(seen, longest, here), *gone)))
                self._explained[scope] = asyncio.get_running_loop().time()
                next_look = SCOPE_INTERVAL_S
        except SemaphoreError:
            pass  # the session logs an unreachable server
        self._look_in(next_look, scope)

    def _gone(self, seen: Inspection) -> Iterator[str]:
        """Who holds permits, and has not called for long."""
        for member in seen.members:
            if member.held and member.lease_left < GONE * self._semaphore.admin.lease:
                yield (
                    f"{member.node} seems to be gone: what it holds is free in "
                    f"{member.lease_left:.0f} s."
                )

    def _asked_at(self, scope: str) -> Iterator[float]:
        """When this process's requests waiting for the scope asked, on the loop's clock."""
        now = asyncio.get_running_loop().time()
        for permit in self._semaphore.permits():
            if permit.scope == scope and not permit.held:
                yield now - permit.wait

    def _unexplained(self, scope: str) -> Iterator[float]:
        """The waits of requests not explained yet, in seconds."""
        now = asyncio.get_running_loop().time()
        explained = self._explained.get(scope, -math.inf)
        return (now - asked_at for asked_at in self._asked_at(scope) if asked_at > explained)


def explanation(seen: Inspection, longest: float, here: int) -> str:
    """Why requests of a scope wait, in one line. `here`: the waiting requests of this node."""
    waiting = max(seen.waiting, here)  # the server hears of a node's further requests a turn later
    return " ".join(
        (
            f"{seen.scope}: a request has waited {longest:.0f} s for a permit.",
            f"On all nodes {waiting} wait for one, on this node {here}.",
            _limit(seen),
            _holders(seen),
            *_reasons(seen),
        )
    )


def _limit(seen: Inspection) -> str:
    limit = f"The limit is {seen.limit or 'unknown'}"
    if seen.limit and seen.limit_max and seen.limit_max > seen.limit:
        limit += f", of at most {seen.limit_max}, as the site's answers want it"
    if seen.set_by and not seen.paused:
        limit += f", and {seen.set_by} has set a rule"
    return f"{limit}."


def _holders(seen: Inspection) -> str:
    holders = [member for member in seen.members if member.held]
    if not holders:
        return "Nobody holds a permit."
    holders.sort(key=lambda member: -member.held)
    named = [f"{member.node} ({member.held})" for member in holders[:NAMED_HOLDERS_MAX]]
    if len(holders) > NAMED_HOLDERS_MAX:
        named.append(f"{len(holders) - NAMED_HOLDERS_MAX} more nodes")
    first = max(holders, key=lambda member: member.oldest)
    return (
        f"{seen.held} held by {', '.join(named)}; "
        f"the oldest for {first.oldest:.0f} s by {first.node}."
    )


def _reasons(seen: Inspection) -> Iterator[str]:
    """Reasons to wait, other than a lack of free permits."""
    if seen.paused:
        yield f"{seen.set_by or 'An operator'} has paused the site until it is resumed."
    if seen.down_for is not None:
        yield f"The site is down: it has not responded for {seen.down_for:.0f} s."
    if seen.backoff_left:
        left = f"{seen.backoff_left:.0f} s"
        yield (
            "The site refused a request, did not respond or asked for a pause, so nothing starts "
            f"there for another {left}."
        )
    if seen.delay:
        yield f"Requests start {seen.delay:.3g} s apart."
    if seen.rate:
        yield f"Requests start at a rate of at most {seen.rate}."
    free = seen.limit is not None and seen.held < seen.limit
    if free and not (seen.paused or seen.backoff_left or seen.delay or seen.rate):
        yield (
            "Permits are free, so its turn is now; or the server has lost its data, and waits "
            "until all that were granted before are over."
        )
