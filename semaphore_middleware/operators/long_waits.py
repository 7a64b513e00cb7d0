"""Log lines about long waits: their reasons, and limits stricter than this node's own."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import suppress

from semaphore_middleware.core.observer import (
    LimitOverruled,
    ObservedSemaphore,
    Observer,
    PermitWaiting,
)
from semaphore_middleware.errors import SemaphoreError
from semaphore_middleware.link.location import Server
from semaphore_middleware.model.events import Event
from semaphore_middleware.model.inspection import Inspection
from semaphore_middleware.model.limits import LIMITLESS, Limit
from semaphore_middleware.model.options import NodeOptions

logger = logging.getLogger(__name__)

INTERACTIVE_WAIT_S = 1.5  # in Scrapy's commands, a wait this long is explained
FIRST_LOOK_S = 3.0  # the same in this node's first lease, if another node seems gone
GONE = 0.6  # of a lease: a live node's lease always has more left
SCOPE_INTERVAL_S = 600.0  # between two lines about one scope: at a slow site requests always wait
NAMED_HOLDERS_MAX = 5  # holders named in a line
SITES_MAX = 50  # sites reported: fleets with limits of their own may differ at each site
NAMED_NODES_MAX = 3  # nodes named that ask for a stricter limit
RETRY_S = 1.0  # from an error to the next call about these nodes


class Explaining(Observer):
    """Base of the observers below: each of their log lines takes a call to the server."""

    def __init__(self) -> None:
        self._explanations: set[asyncio.Task[None]] = set()

    async def open(self, semaphore: ObservedSemaphore) -> None:
        self._semaphore = semaphore

    def _begin(self, explaining: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(explaining)
        self._explanations.add(task)
        task.add_done_callback(self._explanations.discard)

    async def close(self) -> None:
        for task in self._explanations:
            task.cancel()
        await asyncio.gather(*self._explanations, return_exceptions=True)


class LongWaits(Explaining):
    """Logs why requests wait for `long_wait` seconds or more: who holds the permits, or what else
    delays them.

    One line explains all requests waiting for the scope at that time; no request is explained
    twice.
    """

    kinds = (PermitWaiting,)

    def __init__(self, long_wait: float) -> None:
        super().__init__()
        self._long_wait = long_wait
        self._watched: set[str] = set()  # scopes
        self._first_lease_ends = 0.0  # by the loop's clock

    def on_event(self, event: Event) -> None:
        assert isinstance(event, PermitWaiting)
        scope = event.permit.scope
        if scope not in self._watched:
            self._watched.add(scope)
            self._begin(self._watch(scope))

    @property
    def _least_wait(self) -> float:
        """Seconds of waiting before an explanation."""
        now = asyncio.get_running_loop().time()
        if self._first_lease_ends == 0.0:
            self._first_lease_ends = now + self._semaphore.admin.lease
        return self._first_look if now < self._first_lease_ends else self._long_wait

    @property
    def _first_look(self) -> float:
        return min(FIRST_LOOK_S, self._long_wait)

    async def _watch(self, scope: str) -> None:
        """Explain the long waits for a scope, as long as requests wait for it."""
        explained_at = -math.inf
        pause = self._least_wait
        while True:
            await asyncio.sleep(pause)
            if not self._waits(scope):
                break
            pause = self._least_wait - self._longest(scope, explained_at)
            if pause <= 0:
                pause = self._least_wait
                with suppress(SemaphoreError):  # the session logs an unreachable server
                    if await self._explain(scope, explained_at):
                        explained_at = asyncio.get_running_loop().time()
                        pause = SCOPE_INTERVAL_S
        self._watched.discard(scope)

    async def _explain(self, scope: str, since: float) -> bool:
        """Log a line, unless requests have got their permits by now."""
        seen = await self._semaphore.admin.inspect(scope)
        longest = self._longest(scope, since)
        gone = list(self._gone(seen))
        if longest < (self._first_look if gone else self._long_wait):
            return False
        text = explanation(seen, longest, here=len(self._waits(scope)))
        logger.info("%s", " ".join((text, *gone)))
        return True

    def _gone(self, seen: Inspection) -> Iterator[str]:
        """A sentence for each node with permits and without a recent call."""
        for member in seen.members:
            if member.held and member.lease_left < GONE * self._semaphore.admin.lease:
                yield (
                    f"{member.node} seems to be gone: its permits are free in "
                    f"{member.lease_left:.0f} s."
                )

    def _waits(self, scope: str) -> list[float]:
        """For how long requests of this process have waited for the scope, in seconds."""
        permits = self._semaphore.permits()
        return [permit.wait for permit in permits if permit.scope == scope and not permit.held]

    def _longest(self, scope: str, since: float) -> float:
        """The longest of these waits that began after `since`, on the loop's clock."""
        waited = asyncio.get_running_loop().time() - since
        return max((wait for wait in self._waits(scope) if wait < waited), default=0.0)


def explain_waits(options: NodeOptions, _: Server) -> LongWaits:
    """The observer of the option `explain_waits`."""
    return LongWaits(options.explain_waits)


class StricterLimits(Explaining):
    """Logs, once for each site, a limit stricter than this node's, and the nodes asking for it.

    Without this line, a fleet slowed down by one node with a stricter limit would look healthy:
    nothing fails.
    """

    kinds = (LimitOverruled,)

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
        if not others:  # the node with the stricter limit has left meanwhile
            self._named.discard(scope)
            return
        logger.warning(
            "%s: another node asks for a stricter limit than this one's (%s), and the strictest "
            "counts: %s. `scrapy semaphore limit` sets one for all nodes%s",
            scope,
            own,
            _some([f"{member.node} ({member.asks_for})" for member in others], NAMED_NODES_MAX),
            "" if len(self._named) < SITES_MAX else "; further sites are not named",
        )


# Text -----------------------------------------------------------------------------------------


def explanation(seen: Inspection, longest: float, here: int) -> str:
    """The reason for a scope's waits, in one line. `here`: this node's waiting requests."""
    waiting = max(seen.waiting, here)  # the latest are sent to the server one reuse window later
    return " ".join(
        (
            f"{seen.scope}: a request has waited {longest:.0f} s for a permit.",
            f"On all nodes {waiting} wait for one, on this node {here}.",
            _limit(seen),
            _holders(seen),
            seen.why or "Permits are free: it is about to get one.",
        )
    )


def _limit(seen: Inspection) -> str:
    is_none = seen.limit is not None and seen.limit >= LIMITLESS
    no_limit = "There is no limit on the number of requests"
    parts = [no_limit if is_none else f"The limit is {seen.limit or 'unknown'}"]
    if seen.limit and seen.limit_max and seen.limit_max > seen.limit:
        parts.append(f"of at most {seen.limit_max}")
    if seen.effective.further:
        parts.append(seen.effective.further)
    if seen.set_by:
        parts.append(f"with a rule set by {seen.set_by}")
    return f"{', '.join(parts)}."


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
    named = ", ".join(nodes[:most])
    more = len(nodes) - most
    return f"{named}, {more} more nodes" if more > 0 else named
