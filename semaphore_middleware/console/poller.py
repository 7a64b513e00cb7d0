"""Surveys the Redis server for the page, without loading it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from semaphore_middleware.errors import SemaphoreError, ServerRefusedError
from semaphore_middleware.model.inspection import Inspection
from semaphore_middleware.operators.admin import Admin
from semaphore_middleware.operators.snapshot import Snapshot

logger = logging.getLogger(__name__)

MAX_SHARE = 0.2  # of the time that surveys may take, for any number of scopes
LATE_AFTER_S = 2.0  # a survey is late after this time at least; `look` waits no longer
LATE_FACTOR = 3.0  # and after this many times the time of the last one
T = TypeVar("T")


def snapshots(admin: Admin, last_hour: LastHour) -> Callable[[], Awaitable[Snapshot]]:
    """A function that surveys the scopes, with their starts a second over the last few surveys, and
    adds each survey to the last hour.
    """
    meter = StartsMeter()

    async def survey() -> Snapshot:
        seen = await admin.survey()
        starts = meter.measure_starts(seen, time.monotonic())
        snapshot = Snapshot.of(seen, await admin.rules(), starts, await admin.server_state())
        last_hour.add_survey(snapshot.scopes, *meter.newest, time.time())
        return snapshot

    return survey


class Poller(Generic[T]):
    """Surveys the server on demand, and shares each survey among all callers.

    A survey begins at the earliest `interval` seconds after the end of the last one, and later
    if surveys take long: all surveys take at most `MAX_SHARE` of the time. With `logs`, it logs
    when surveys begin to fail, and when they succeed again.
    """

    def __init__(
        self, survey: Callable[[], Awaitable[T]], interval: float, logs: bool = True
    ) -> None:
        self._survey = survey
        self._interval = interval
        self._logs = logs
        self._running: asyncio.Task[None] | None = None
        self._began = 0.0
        self._took = 0.0
        self._next = 0.0
        self._began_at = 0.0  # Unix time
        self._failing_since = 0.0  # Unix time
        self.snapshot: T | None = None
        """The newest; None before the first."""
        self.error: Exception | None = None
        """The last survey's error; None if it succeeded."""

    @property
    def is_late(self) -> bool:
        """True if the survey under way takes too long."""
        return self._running is not None and time.monotonic() - self._began >= self._late_after

    @property
    def is_current(self) -> bool:
        """True if the newest survey has succeeded, and none is late."""
        return self.error is None and not self.is_late

    @property
    def away_since(self) -> float | None:
        """The Unix time since when surveys fail or are late; None if they succeed, or the server
        answers and refuses them.
        """
        if isinstance(self.error, ServerRefusedError):
            return None
        if self.error is not None:
            return self._failing_since
        return self._began_at if self.is_late else None

    async def look(self) -> T | None:
        """The newest snapshot, after a survey if one is due and does not take too long."""
        if self._running is None and time.monotonic() >= self._next:
            self._began = time.monotonic()
            self._began_at = time.time()
            self._running = asyncio.create_task(self._run())
        if self._running is not None:
            left = self._began + LATE_AFTER_S - time.monotonic()
            # Not cancelled with this caller: others wait for the same survey.
            await asyncio.wait({self._running}, timeout=left)
        return self.snapshot

    async def stop(self) -> None:
        """End the survey under way."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    @property
    def _late_after(self) -> float:
        """Seconds until a survey is late. With thousands of scopes each survey takes seconds."""
        return max(LATE_AFTER_S, LATE_FACTOR * self._took)

    async def _run(self) -> None:
        try:
            self.snapshot = await self._survey()
            if self.error is not None and self._logs:
                logger.info("The Redis server answers again.")
            self.error = None
        except Exception as error:
            self._note(error)
        finally:
            now = time.monotonic()
            took = now - self._began
            # A late survey has waited for its server: its time does not predict later ones.
            pause = took * (1 / MAX_SHARE - 1) if took < self._late_after else 0.0
            self._next = now + max(self._interval, pause)
            self._took = min(took, self._late_after)
            self._running = None

    def _note(self, error: Exception) -> None:
        """Note a survey's failure. Only the first of several is logged."""
        if self.error is None or isinstance(self.error, ServerRefusedError):
            self._failing_since = self._began_at
        if not isinstance(error, SemaphoreError):
            if type(error) is not type(self.error):
                logger.error("A survey failed (a bug: please report it).", exc_info=error)
        elif self.error is None and self._logs:
            logger.warning("%s; trying again.", error)
        self.error = error


def new_starts(before: Mapping[str, int], now: Mapping[str, int]) -> Mapping[str, int]:
    """Requests started between two surveys. If a scope is new, or its count fell, it was idle
    before, so all its starts are new.
    """
    new: dict[str, int] = {}
    for scope, started in now.items():
        known = before.get(scope, 0)
        new[scope] = started - known if started >= known else started
    return new


WINDOW = 6  # surveys in the mean of a scope's starts a second


class StartsMeter:
    """Requests started a second, by scope: the mean over the last few surveys."""

    def __init__(self) -> None:
        self._started: Mapping[str, int] = {}
        self._time: float | None = None
        self._new: deque[tuple[float, Mapping[str, int]]] = deque(maxlen=WINDOW)

    @property
    def newest(self) -> tuple[float, Mapping[str, int]]:
        """Seconds between the last two surveys, and the starts in them."""
        return self._new[-1] if self._new else (0.0, {})

    def measure_starts(self, seen: Iterable[Inspection], now: float) -> Mapping[str, float] | None:
        """The starts a second after a survey; `now`: seconds of a monotonic clock.

        None after the first survey: the times of its starts are unknown.
        """
        started = {row.scope: row.started for row in seen}
        if self._time is not None:
            self._new.append((now - self._time, new_starts(self._started, started)))
        self._started = started
        self._time = now
        if not self._new:
            return None
        seconds = sum(passed for passed, _ in self._new)
        sums: Counter[str] = Counter()
        for _, new in self._new:
            sums.update(new)
        return {scope: round(count / seconds, 2) for scope, count in sums.items()}


LAST_HOUR_MINUTES = 60
LAST_HOUR_SCOPES_MAX = 1000  # kept of a minute, the first of the table: some 15 MB


@dataclass(slots=True)
class SeenMinute:
    """The figures of one minute, from all its surveys."""

    number: int
    """Minutes since 1970."""
    seconds: float = 0.0
    """The time covered by the counts of starts."""
    scopes: dict[str, tuple[int, float, float]] = field(default_factory=dict)
    """By scope: starts, longest wait and longest backoff. Scopes without any are left out."""

    def figures(self, scope: str) -> tuple[float | None, float, float]:
        """Starts a second (None: not counted), longest wait and longest backoff."""
        starts, wait, backoff = self.scopes.get(scope, (0, 0.0, 0.0))
        return (round(starts / self.seconds, 2) if self.seconds else None, wait, backoff)


class LastHour:
    """The scopes' figures in the last hour, minute by minute."""

    def __init__(self) -> None:
        self._minutes: deque[SeenMinute] = deque(maxlen=LAST_HOUR_MINUTES)

    def add_survey(
        self, rows: Iterable[Inspection], seconds: float, starts: Mapping[str, int], now: float
    ) -> None:
        """Add a survey at the Unix time `now`, with the starts of the `seconds` before it."""
        number = int(now // 60)
        if not self._minutes or self._minutes[-1].number != number:
            self._minutes.append(SeenMinute(number))
        minute = self._minutes[-1]
        minute.seconds += seconds
        for row in rows:
            started, wait, backoff = minute.scopes.get(row.scope, (0, 0.0, 0.0))
            started += starts.get(row.scope, 0)
            wait = max(wait, row.longest_wait)
            backoff = max(backoff, row.backoff_left, row.backoff_last)
            is_known = row.scope in minute.scopes or len(minute.scopes) < LAST_HOUR_SCOPES_MAX
            if is_known and (started or wait or backoff):
                minute.scopes[row.scope] = started, wait, backoff

    def figures_of(self, scope: str) -> dict[str, list[float | None]]:
        """The scope's figures by minute, the oldest first; None: not surveyed."""
        minutes = {minute.number: minute for minute in self._minutes}
        last = max(minutes, default=0)
        first = max(min(minutes, default=1), last - LAST_HOUR_MINUTES + 1)
        figures = [
            minutes[number].figures(scope) if number in minutes else (None, None, None)
            for number in range(first, last + 1)
        ]
        names = ("starts_per_second", "longest_wait", "backoff")
        return {name: [minute[i] for minute in figures] for i, name in enumerate(names)}
