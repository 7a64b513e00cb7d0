"""Says in the log that another node asks for a stricter limit at a site, and which one."""

from __future__ import annotations

import asyncio
import logging

from semaphore_middleware.core.observer import Event, LimitOverruled, ObservedSemaphore, Observer
from semaphore_middleware.errors import SemaphoreError
from semaphore_middleware.model.limits import Limit

logger = logging.getLogger(__name__)

SITES_MAX = 50  # that are named; fleets with limits of their own may differ at each site
NAMED_NODES_MAX = 3


class StricterLimits(Observer):
    """Logs, once for each site, that a limit stricter than this node's is in force, and whose.

    A fleet that one visitor with a stricter limit slows down would look healthy otherwise: nothing
    fails. This costs a call to the server for each line.
    """

    hears = (LimitOverruled,)

    def __init__(self) -> None:
        self._named: set[str] = set()  # sites
        self._looks: set[asyncio.Task[None]] = set()

    async def open(self, semaphore: ObservedSemaphore) -> None:
        self._semaphore = semaphore

    def on_event(self, event: Event) -> None:
        assert isinstance(event, LimitOverruled)
        if event.scope not in self._named and len(self._named) < SITES_MAX:
            self._named.add(event.scope)
            look = asyncio.ensure_future(self._explain(event.scope, event.own))
            self._looks.add(look)
            look.add_done_callback(self._looks.discard)

    async def close(self) -> None:
        looks = list(self._looks)
        for look in looks:
            look.cancel()
        await asyncio.gather(*looks, return_exceptions=True)

    async def _explain(self, scope: str, own: Limit) -> None:
        try:
            seen = await self._semaphore.admin.inspect(scope)
        except SemaphoreError:  # the session logs an unreachable server
            self._named.discard(scope)
            return
        others = [member for member in seen.strictest if member.node != self._semaphore.node]
        if not others:  # it has left meanwhile
            self._named.discard(scope)
            return
        names = [f"{member.node} ({member.asks_for})" for member in others]
        if len(names) > NAMED_NODES_MAX:
            names[NAMED_NODES_MAX:] = [f"{len(names) - NAMED_NODES_MAX} more nodes"]
        logger.warning(
            "%s: another node asks for a stricter limit than this one's (%s), so all keep to "
            "that: %s. `scrapy semaphore limit` sets one for all nodes%s",
            scope,
            own,
            ", ".join(names),
            "" if len(self._named) < SITES_MAX else "; further sites are not named",
        )
