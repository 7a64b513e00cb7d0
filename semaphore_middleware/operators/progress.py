"""Log lines about a crawl's waits for permits: one a minute, and one at the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from semaphore_middleware.core.observer import (
    NodeJoined,
    ObservedSemaphore,
    Observer,
    PermitGranted,
    PermitWaiting,
)
from semaphore_middleware.core.permit import Permit
from semaphore_middleware.link.text import time_of
from semaphore_middleware.model.events import Event
from semaphore_middleware.operators.formatting import count

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.5  # between two look-ups of the reasons, while requests wait
SCOPES_KEPT = 10  # with the longest waits
SCOPES_MAX = 1000  # above this number, all but `SCOPES_KEPT` are forgotten
NAMED_MAX = 3  # scopes named at the end


@dataclass(slots=True)
class _Wait:
    """The requests that wait for one scope now."""

    since: float
    """Loop time up to which their wait is counted."""
    reason: str = ""
    """Why they wait, as last reported."""
    permits: set[Permit] = field(default_factory=set)


class Progress(Observer):
    """Logs this node's permits and waits: at each interval, and in one sentence at the end.

    A wait for a scope is the time in which at least one request waits for it. `find_interval`
    returns the seconds between two lines, or 0 for none; it is called when the node has joined the
    server. `count_pages` returns the number of responses.
    """

    kinds = (NodeJoined, PermitWaiting, PermitGranted)

    def __init__(self, find_interval: Callable[[], float], count_pages: Callable[[], int]) -> None:
        self._find_interval = find_interval
        self._count_pages = count_pages
        self._joined_at: float | None = None
        self._waits: dict[str, _Wait] = {}  # by scope
        self._totals: dict[str, dict[str, float]] = {}  # by scope, the seconds of each reason
        self._looking: asyncio.TimerHandle | None = None
        self._logging: asyncio.TimerHandle | None = None

    async def open(self, semaphore: ObservedSemaphore) -> None:
        self._semaphore = semaphore
        self._now = asyncio.get_running_loop().time

    def on_event(self, event: Event) -> None:
        if isinstance(event, PermitWaiting):
            self._begin(event.permit)
        elif isinstance(event, PermitGranted):
            self._end(event.permit)
        else:
            self._joined_at = self._now()
            if interval := self._find_interval():
                self._log_in(interval)

    async def close(self) -> None:
        for timer in (self._looking, self._logging):
            if timer is not None:
                timer.cancel()
        if self._joined_at is not None:
            logger.info("%s", self.summary(self._now() - self._joined_at))

    # Each minute --------------------------------------------------------------------------------

    def _log_in(self, interval: float) -> None:
        loop = asyncio.get_running_loop()
        self._logging = loop.call_later(interval, self._log, interval)

    def _log(self, interval: float) -> None:
        logger.info("%s", self.line())
        self._log_in(interval)

    def line(self) -> str:
        """This node's permits and waiting requests, and why the longest of these waits."""
        permits = self._semaphore.permits()
        waiting = [permit for permit in permits if not (permit.held or permit.lost)]
        held = sum(permit.held for permit in permits)
        verb = "waits" if len(waiting) == 1 else "wait"
        text = f"{count(held, 'permit')} held, {count(len(waiting), 'request')} {verb} for one"
        if not waiting:
            return f"{text}."
        longest = max(waiting, key=lambda permit: permit.wait)
        text += f", the longest for {time_of(longest.wait)}, at {longest.scope}."
        if self._semaphore.problem is not None:
            return f"{text} The server cannot be used: {self._semaphore.problem}."
        reason, _ = self._semaphore.reason_at(longest.scope)
        return f"{text} {reason.sentence}" if reason else text

    # At the end ---------------------------------------------------------------------------------

    def summary(self, seconds: float) -> str:
        """The crawl's pages and its longest waits, in a time of `seconds`, in one sentence."""
        pages = count(self._count_pages(), "page")
        longest = self._longest_first()
        if not longest:
            return f"{pages} in {time_of(seconds)}; no request had to wait for a permit."
        named = ", ".join(map(self._wait_at, longest[:NAMED_MAX]))
        more = ", and for others" if len(longest) > NAMED_MAX else ""
        return f"{pages} in {time_of(seconds)}; requests waited {named}{more}."

    def _wait_at(self, scope: str) -> str:
        """As in: 19 s for example.com (delay 1.5 s)."""
        reasons = self._totals[scope]
        reason = max(reasons, key=lambda name: reasons[name])
        why = f" ({reason})" if reason else ""
        return f"{time_of(self._total(scope))} for {scope}{why}"

    def _longest_first(self) -> list[str]:
        return sorted(self._totals, key=self._total, reverse=True)

    def _total(self, scope: str) -> float:
        return sum(self._totals[scope].values())

    # Waits --------------------------------------------------------------------------------------

    def _begin(self, permit: Permit) -> None:
        wait = self._waits.get(permit.scope)
        if wait is None:
            reason = self._semaphore.held_back_by(permit.scope)
            wait = self._waits[permit.scope] = _Wait(self._now(), reason)
        wait.permits.add(permit)
        if self._looking is None:
            self._look_later()

    def _end(self, permit: Permit) -> None:
        if wait := self._waits.get(permit.scope):
            self._charge(permit.scope, wait)
            wait.permits.discard(permit)
            if not wait.permits:
                del self._waits[permit.scope]

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._looking = loop.call_later(LOOK_INTERVAL_S, self._look)

    def _look(self) -> None:
        """Count the waits up to now, for their present reasons, and drop what was given up."""
        present = {permit for permit in self._semaphore.permits() if not permit.held}
        for scope, wait in [*self._waits.items()]:
            wait.reason = self._semaphore.held_back_by(scope) or wait.reason
            self._charge(scope, wait)
            wait.permits &= present
            if not wait.permits:
                del self._waits[scope]
        self._looking = None
        if self._waits:
            self._look_later()

    def _charge(self, scope: str, wait: _Wait) -> None:
        """Count a wait up to now, for its reason as last reported: that of the next grant may be
        another one.
        """
        now = self._now()
        reasons = self._totals.setdefault(scope, {})
        reasons[wait.reason] = reasons.get(wait.reason, 0.0) + now - wait.since
        wait.since = now
        if len(self._totals) > SCOPES_MAX:
            for shorter in self._longest_first()[SCOPES_KEPT:]:
                del self._totals[shorter]
