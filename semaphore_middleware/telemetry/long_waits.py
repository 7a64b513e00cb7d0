"""Requests that wait for long are explained in the log, for whoever asks why a site is slow."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Iterator

from semaphore_middleware.core.observer import Event, Observer, PermitWaiting
from semaphore_middleware.core.permit import Stage
from semaphore_middleware.core.semaphore import FairSemaphore
from semaphore_middleware.errors import SemaphoreError
from semaphore_middleware.model.inspection import Inspection

logger = logging.getLogger(__name__)

LONG = 60.0  # seconds of waiting that are explained
AGAIN = 600.0  # seconds until a scope is explained again: a slow site has others wait all the time
NAMED = 5  # nodes that are named as holders


class LongWaits(Observer):
    """One line speaks for all that wait for a scope when it is written: no request is explained
    twice. It costs a timer a scope, for the one that waits longest, and a line a look at the
    server.
    """

    def __init__(self) -> None:
        self._timers: dict[str, asyncio.TimerHandle] = {}  # of all scopes that are watched
        self._explained: dict[str, float] = {}  # scope -> who asked until then is
        self._looks: set[asyncio.Task[None]] = set()

    async def open(self, semaphore: FairSemaphore) -> None:
        self._semaphore = semaphore

    def on_event(self, event: Event) -> None:
        if isinstance(event, PermitWaiting) and event.permit.scope not in self._timers:
            self._look_in(LONG, event.permit.scope)

    async def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        looks = list(self._looks)
        for look in looks:
            look.cancel()
        await asyncio.gather(*looks, return_exceptions=True)

    def _look_in(self, seconds: float, scope: str) -> None:
        loop = asyncio.get_running_loop()
        self._timers[scope] = loop.call_later(seconds, self._look, scope)

    def _look(self, scope: str) -> None:
        waits = list(self._waits(scope))
        if not waits:
            del self._timers[scope]
            self._explained.pop(scope, None)
            return
        longest = max(self._unexplained(scope), default=0.0)
        if longest < LONG:
            self._look_in(LONG - longest, scope)
            return
        look = asyncio.ensure_future(self._explain(scope))
        self._looks.add(look)
        look.add_done_callback(self._looks.discard)

    async def _explain(self, scope: str) -> None:
        again = LONG
        try:
            seen = await self._semaphore.admin.inspect(scope)
            longest = max(self._unexplained(scope), default=0.0)
            if longest >= LONG:  # it may have got its permit meanwhile
                logger.info("%s", explanation(seen, longest, len(list(self._waits(scope)))))
                self._explained[scope] = asyncio.get_running_loop().time()
                again = AGAIN
        except SemaphoreError:
            pass  # a server that cannot be reached is complained of elsewhere
        self._look_in(again, scope)

    def _waits(self, scope: str) -> Iterator[float]:
        """When those asked who wait here."""
        for permit in self._semaphore.permits():
            if permit.scope == scope and permit.stage is Stage.WAITING:
                yield permit.asked_at

    def _unexplained(self, scope: str) -> Iterator[float]:
        """How long those have waited who are not explained yet."""
        now = asyncio.get_running_loop().time()
        explained = self._explained.get(scope, -math.inf)
        return (now - asked_at for asked_at in self._waits(scope) if asked_at > explained)


def explanation(seen: Inspection, longest: float, here: int) -> str:
    """Why requests of a scope wait, as far as the server knows."""
    return " ".join(
        (
            f"{seen.scope}: a request has waited {longest:.0f} s for a permit.",
            f"On all nodes {len(seen.waiters)} wait for one, on this node {here}.",
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
    if not seen.holders:
        return "Nobody holds a permit."
    by_node = Counter(holder.node for holder in seen.holders).most_common()
    named = [f"{node} ({count})" for node, count in by_node[:NAMED]]
    if len(by_node) > NAMED:
        named.append(f"{len(by_node) - NAMED} more nodes")
    oldest = max(seen.holders, key=lambda holder: holder.age)
    return (
        f"{len(seen.holders)} held by {', '.join(named)}; "
        f"the oldest for {oldest.age:.0f} s by {oldest.node}."
    )


def _reasons(seen: Inspection) -> Iterator[str]:
    """What else than holders is in the way."""
    if seen.paused:
        yield f"{seen.set_by or 'An operator'} has paused the site until it is resumed."
    if seen.backoff_left:
        left = f"{seen.backoff_left:.0f} s"
        yield f"The site said 'not now', so nothing starts there for another {left}."
    if seen.delay:
        yield f"Requests start {seen.delay:.3g} s apart."
    free = seen.limit is not None and len(seen.holders) < seen.limit
    if free and not (seen.paused or seen.backoff_left or seen.delay):
        yield (
            "Permits are free, so its turn is now; or the server has lost its data, and waits "
            "until all that were granted before are over."
        )
