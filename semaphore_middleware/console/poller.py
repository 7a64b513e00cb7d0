"""One survey of the server a second, shared by all browsers; none while nobody looks."""

from __future__ import annotations

import asyncio
import time

from semaphore_middleware.console.web.state import Seen
from semaphore_middleware.core.admin import Admin
from semaphore_middleware.errors import SemaphoreError

EVERY = 1.0  # seconds from the end of a survey to the begin of the next
SHARE = 0.2  # of the time that surveys may take, however many scopes there are
PATIENCE = 2.0  # seconds that a browser waits for a survey, before it is shown the last one
LATE = 3.0  # times as long as the last: a survey that takes that long is not answered


class Lookout:
    def __init__(self, semaphore: Admin) -> None:
        self._semaphore = semaphore
        self._seen: Seen | None = None
        self._began = self._took = self._next = 0.0
        self._survey: asyncio.Task[None] | None = None
        self._problem: str | None = None

    async def look(self) -> tuple[Seen | None, str | None]:
        """The newest survey, and what is wrong if it is not new. None: there was none yet."""
        if self._survey is None and time.monotonic() >= self._next:
            self._began = time.monotonic()
            self._survey = asyncio.create_task(self._take())
        if self._survey is not None:
            left = self._began + PATIENCE - time.monotonic()
            # Not cancelled when this browser goes: others wait for it too. And while the server is
            # away it stays, so that there is one in line and not one a second.
            await asyncio.wait({self._survey}, timeout=max(0.0, left))
        if self._survey is None:
            return self._seen, self._problem
        late = time.monotonic() - self._began >= self._usual
        known = self._seen is not None and not late
        return self._seen, None if known else "The Redis server does not answer."

    async def stop(self) -> None:
        if self._survey is not None:
            self._survey.cancel()
            await asyncio.gather(self._survey, return_exceptions=True)

    @property
    def _usual(self) -> float:
        """Seconds that a survey may take: with thousands of scopes it is a matter of seconds."""
        return max(PATIENCE, LATE * self._took)

    async def _take(self) -> None:
        try:
            scopes = await self._semaphore.survey()
            rules = await self._semaphore.rules()
            self._seen = Seen.after(self._seen, time.monotonic(), scopes, rules)
            self._problem = None
        except SemaphoreError as error:
            self._problem = f"The Redis server does not serve: {error}."
        finally:
            now = time.monotonic()
            took = now - self._began
            # One that was late has waited for a server: that says nothing of how long it takes.
            self._next = now + max(EVERY, took * (1 / SHARE - 1) if took < self._usual else 0.0)
            self._took = min(took, self._usual)
            self._survey = None
