"""Explains in the log why requests wait for long, and whose limit they keep to."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Coroutine, Iterator, Sequence

from semaphore_middleware.core.observer import (
    Event,
    LimitOverruled,
    ObservedSemaphore,
    Observer,
    PermitWaiting,
)
from semaphore_middleware.errors import SemaphoreError
from semaphore_middleware.model.inspection import Inspection
from semaphore_middleware.model.limits import Limit

logger = logging.getLogger(__name__)

LONG_WAIT_S = 60.0  # a wait this long is explained
FIRST_LOOK_S = 3.0  # a wait this long is, in this node's first lease, if a node is gone
GONE = 0.6  # of a lease: a node that renews its leases has more left
SCOPE_INTERVAL_S = 600.0  # between two lines about one scope: at a slow site requests always wait
NAMED_HOLDERS_MAX = 5  # nodes named in a line
SITES_MAX = 50  # with a stricter limit; fleets with limits of their own may differ at each site
NAMED_NODES_MAX = 3  # that ask for a stricter limit
RETRY_S = 1.0  # until the server is asked again for these


class Explaining(Observer):
    """Looks at the server for what it says in the log: a call for each line."""

    def __init__(self) -> None:
        self._looks: set[asyncio.Task[None]] = set()

    async def open(self, semaphore: ObservedSemaphore) -> None:
        self._semaphore = semaphore

    def _begin(self, explaining: Coroutine[None, None, None]) -> None:
        look = asyncio.ensure_future(explaining)
        self._looks.add(look)
        look.add_done_callback(self._looks.discard)

    async def close(self) -> None:
        for look in self._looks:
            look.cancel()
        await asyncio.gather(*self._looks, return_exceptions=True)


class LongWaits(Explaining):
    """Logs why a request has waited for a minute: who holds the permits, or what else delays it.

    One line explains all requests waiting for the scope at that time; no request is explained
    twice. This costs a timer per scope.
    """

    hears = (PermitWaiting,)

    def __init__(self) -> None:
        super().__init__()
        self._timers: dict[str, asyncio.TimerHandle] = {}  # of all watched scopes
        self._explained: dict[str, float] = {}  # scope -> the time of its last line
        self._first_lease_ends = 0.0  # by the loop's clock

    def on_event(self, event: Event) -> None:
        if isinstance(event, PermitWaiting) and event.permit.scope not in self._timers:
            self._look_in(self._least_wait, event.permit.scope)

    async def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        await super().close()

    @property
    def _least_wait(self) -> float:
        """How long a wait is before its cause is looked for."""
        now = asyncio.get_running_loop().time()
        if self._first_lease_ends == 0.0:
            self._first_lease_ends = now + self._semaphore.admin.lease
        return FIRST_LOOK_S if now < self._first_lease_ends else LONG_WAIT_S

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
        self._begin(self._explain(scope))

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


class StricterLimits(Explaining):
    """Logs, once for each site, that a limit stricter than this node's is in force, and whose.

    A fleet that one visitor with a stricter limit slows down would look healthy otherwise: nothing
    fails.
    """

    hears = (LimitOverruled,)

    def __init__(self) -> None:
        super().__init__()
        self._named: set[str] = set()  # sites

    def on_event(self, event: Event) -> None:
        assert isinstance(event, LimitOverruled)
        if event.scope not in self._named and len(self._named) < SITES_MAX:
            self._named.add(event.scope)
            self._begin(self._explain(event.scope, event.own))

    async def _explain(self, scope: str, own: Limit) -> None:
        while True:
            try:
                seen = await self._semaphore.admin.inspect(scope)
                break
            except SemaphoreError:  # the session logs an unreachable server
                await asyncio.sleep(RETRY_S)
        others = [member for member in seen.strictest if member.node != self._semaphore.node]
        if not others:  # it has left meanwhile
            self._named.discard(scope)
            return
        logger.warning(
            "%s: another node asks for a stricter limit than this one's (%s), so all keep to "
            "that: %s. `scrapy semaphore limit` sets one for all nodes%s",
            scope,
            own,
            _some([f"{member.node} ({member.asks_for})" for member in others], NAMED_NODES_MAX),
            "" if len(self._named) < SITES_MAX else "; further sites are not named",
        )


# Words ----------------------------------------------------------------------------------------


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
    named = _some([f"{member.node} ({member.held})" for member in holders], NAMED_HOLDERS_MAX)
    first = max(holders, key=lambda member: member.oldest)
    return f"{seen.held} held by {named}; the oldest for {first.oldest:.0f} s by {first.node}."


def _some(nodes: Sequence[str], most: int) -> str:
    """The first nodes, and how many more there are."""
    more = len(nodes) - most
    return ", ".join([*nodes[:most], *([f"{more} more nodes"] if more > 0 else [])])


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
