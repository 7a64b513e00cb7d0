"""Log lines about a crawl's waits for permits: one a minute, and one at the end."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
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
class _Waits:
    """The time in which at least one request has waited for a scope."""

    reason: str
    """Why requests wait, as last reported."""
    until: float = 0.0
    """Loop time up to which it is counted."""
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """By reason."""

    @property
    def total(self) -> float:
        """Of all reasons, in seconds."""
        return sum(self.seconds.values())


class Progress(Observer):
    """Logs this node's permits and waits: at each interval, and in one sentence at the end.

    `find_interval` returns the seconds between two lines, or 0 for none; it is called when the node
    has joined the server. `count_pages` returns the number of responses.
    """

    kinds = (NodeJoined, PermitWaiting, PermitGranted)

    def __init__(self, find_interval: Callable[[], float], count_pages: Callable[[], int]) -> None:
        self._find_interval = find_interval
        self._count_pages = count_pages
        self._joined_at: float | None = None
        self._waits: dict[str, _Waits] = {}  # by scope
        self._longest: dict[str, Permit] = {}  # by scope: had waited longest at the last look
        self._looking: asyncio.TimerHandle | None = None
        self._logging: asyncio.TimerHandle | None = None

    async def open(self, semaphore: ObservedSemaphore) -> None:
        self._semaphore = semaphore
        self._now = asyncio.get_running_loop().time

    def on_event(self, event: Event) -> None:
        if isinstance(event, NodeJoined):
            self._joined_at = self._now()
            if interval := self._find_interval():
                self._log_in(interval)
        elif isinstance(event, PermitWaiting | PermitGranted) and event.permit.waited:
            # A request that begins to wait must not end the count of those that wait already.
            if isinstance(event, PermitGranted) or event.permit.scope not in self._waits:
                self._count(event.permit)
            if self._looking is None:
                self._look_later()

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
        waiting = self._waiting()
        held = sum(permit.held for permit in self._semaphore.permits())
        verb = "waits" if len(waiting) == 1 else "wait"
        text = f"{count(held, 'permit')} held, {count(len(waiting), 'request')} {verb} for one"
        if not waiting:
            return f"{text}."
        longest = waiting[-1]
        text += f", the longest for {time_of(longest.wait)}, at {longest.scope}."
        if self._semaphore.problem is not None:
            return f"{text} The server cannot be used: {self._semaphore.problem}."
        reason, _ = self._semaphore.reason_at(longest.scope)
        return f"{text} {reason.sentence}" if reason else text

    # At the end ---------------------------------------------------------------------------------

    def summary(self, seconds: float) -> str:
        """The crawl's pages and its longest waits, in a time of `seconds`, in one sentence."""
        text = f"{count(self._count_pages(), 'page')} in {time_of(seconds)}"
        longest = self._longest_first()
        if not longest:
            return f"{text}; no request had to wait for a permit."
        named = ", ".join(map(self._wait_at, longest[:NAMED_MAX]))
        more = ", and for others" if len(longest) > NAMED_MAX else ""
        return f"{text}; requests waited {named}{more}."

    def _wait_at(self, scope: str) -> str:
        """As in: 19 s for example.com (delay 1.5 s)."""
        waits = self._waits[scope]
        reason = max(waits.seconds, key=lambda name: waits.seconds[name])
        why = f" ({reason})" if reason else ""
        return f"{time_of(waits.total)} for {scope}{why}"

    def _longest_first(self) -> list[str]:
        return sorted(self._waits, key=lambda scope: -self._waits[scope].total)

    # Waits --------------------------------------------------------------------------------------

    def _waiting(self) -> list[Permit]:
        """The permits that this node's requests wait for, the longest wait last."""
        permits = self._semaphore.permits()
        waiting = [permit for permit in permits if not (permit.held or permit.lost)]
        return sorted(waiting, key=lambda permit: permit.wait)

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._looking = loop.call_later(LOOK_INTERVAL_S, self._look)

    def _look(self) -> None:
        """Count the waits of requests that still wait."""
        self._looking = None
        self._longest = {permit.scope: permit for permit in self._waiting()}
        for permit in self._longest.values():
            self._count(permit)
        if self._longest:
            self._look_later()

    def _count(self, permit: Permit) -> None:
        """Count a wait up to now, for its reason as last reported: that of the next grant may be
        another one.
        """
        scope, now = permit.scope, self._now()
        reason = self._semaphore.held_back_by(scope)
        waits = self._waits.get(scope)
        if waits is None:
            if len(self._waits) == SCOPES_MAX:
                for shorter in self._longest_first()[SCOPES_KEPT:]:
                    del self._waits[shorter]
            waits = self._waits[scope] = _Waits(reason)
        longest = self._longest.get(scope, permit)  # one of higher priority is served before it
        wait = longest.wait if longest.granted_at > now else permit.wait
        waits.seconds[waits.reason] += now - max(waits.until, now - wait)
        waits.until = now
        waits.reason = reason or waits.reason
