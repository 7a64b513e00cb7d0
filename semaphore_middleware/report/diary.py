"""Counts of this node's requests to each site, by minute, until the server has them. No I/O.

Minutes and seconds are those of the server's wall clock, the same for all nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from struct import Struct

from semaphore_middleware.report.history import Minute, class_of
from semaphore_middleware.report.records import MINUTE, PAUSE

TALLIES_PER_BATCH = 100
ROUNDING_MS = 1  # the server counts in whole milliseconds
_SECONDS, _TIME = Struct(">60H"), Struct(">d")
_counts_of = attrgetter(*MINUTE.names)


@dataclass(slots=True)
class PauseNote:
    """What a node has seen of a pause, for the history, which keeps the highest of each number of
    all nodes' notes. Times are in milliseconds.
    """

    length: float
    asked: float = 0.0
    refused: int = -1
    """1: the site refused a request; 0: it did not respond, or asked for a pause; -1: not seen."""
    last: float = -1.0
    """Time from the pause's beginning to this node's last start; -1: there was none."""

    def pack(self, paused_at: int) -> bytes:
        """The bytes for the script: the time of its beginning, and the record `pause`."""
        numbers = PAUSE.pack(self.length, self.asked, self.refused, self.last)
        return _TIME.pack(paused_at) + numbers


@dataclass(slots=True, kw_only=True)
class Tally(Minute):
    """A node's requests to a site in one minute. The history counts each tally once."""

    scope: str
    seconds: list[int] = field(default_factory=lambda: [0] * 60)
    """The starts in each second."""
    pauses: dict[int, PauseNote] = field(default_factory=dict)
    """By the times of their beginnings."""

    def pack(self) -> bytes:
        """Bytes for the script: the record `minute`; the starts in each second, in 2 bytes; then
        the notes of pauses.
        """
        self.starts = max(self.seconds)
        starts = _SECONDS.pack(*(min(count, 65535) for count in self.seconds))
        pauses = b"".join(note.pack(paused_at) for paused_at, note in self.pauses.items())
        return MINUTE.pack(*_counts_of(self)) + starts + pauses


@dataclass(frozen=True, slots=True)
class Batch:
    """The tallies of one call. The server counts a batch of a number once."""

    number: int
    minute: int
    tallies: Sequence[Tally]
    is_last: bool
    """The node writes nothing after this batch."""
    is_resent: bool = False
    """It has been sent before, and the server may have counted it."""


@dataclass(slots=True)
class _ScopeState:
    """The present state of a scope in use by this node."""

    held: int = 0
    """Permits held by all nodes."""
    limit: int = 0
    least_interval: float = math.inf
    interval: float = math.inf
    """The effective limit, as in `Minute`."""
    begun_at: float = 0.0
    """The beginning of this node's last request, by the server's clock, in seconds."""
    paused_at: int = 0
    pause_length: float = 0.0

    def add_to(self, minute: Minute) -> None:
        """Note it in a minute's highest and lowest numbers."""
        minute.most = max(minute.most, self.held)
        minute.limit = max(minute.limit, self.limit)
        # promise: shortest interval
        minute.least_interval = min(minute.least_interval, self.least_interval)
        minute.interval = min(minute.interval, self.interval)


NOT_IN_USE = _ScopeState()


class Diary:
    """Counts for the history. `now` is the loop's clock, in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._ahead = 0.0  # the server's wall clock less our clock
        self._tallies: dict[str, Tally] = {}  # of the present minute, or of the scope's last one
        self._ended: list[Tally] = []
        self._in_use: dict[str, _ScopeState] = {}
        self._batch: Batch | None = None  # sent, and not answered
        self._number = 0
        self.is_closed = False
        """The server has the last batch of this node."""

    def set_clock(self, wall: float, sent: float, received: float) -> None:
        """Note that the server's wall clock showed `wall` between these two times."""
        self._ahead = min(max(self._ahead, wall - received), wall - sent)

    @property
    def wall(self) -> float:
        """The server's wall clock, as far as it is known, in seconds."""
        return self._now() + self._ahead

    # What happens -------------------------------------------------------------------------------

    def add_start(self, scope: str) -> None:
        """Count a request begun now."""
        wall = self.wall
        tally = self._find_tally(scope, wall)
        tally.requests += 1
        tally.seconds[int(wall % 60)] += 1
        state = self._use(scope)
        state.begun_at = wall
        self._note_late_start(scope, state)

    def add_response(self, scope: str, status: int, size: int) -> None:
        """Count a response of `size` bytes; status 0: a request ended without one."""
        tally = self._find_tally(scope, self.wall)
        kind = class_of(status) if status else "silent"
        setattr(tally, kind, getattr(tally, kind) + 1)
        tally.size += size

    def add_refusal(self, scope: str) -> None:
        """Count a request refused by the site."""
        self._find_tally(scope, self.wall).refused += 1

    def set_usage(
        self, scope: str, held: int, limit: int, least_interval: float, interval: float
    ) -> None:
        """Note the number of permits held by all nodes, and the effective limit. Times are in
        seconds.
        """
        state = self._use(scope)
        state.held, state.limit = held, limit
        state.least_interval, state.interval = least_interval, interval
        if held or self._has_tally(scope):  # a wait alone is no part of the history
            state.add_to(self._find_tally(scope, self.wall))

    def set_pause(self, scope: str, paused_at: int, length: float) -> None:
        """Note a new pause, or a new length of a known one. Times are in milliseconds."""
        state = self._use(scope)
        state.paused_at = paused_at
        state.pause_length = length
        self._note_late_start(scope, state)

    def add_cause(
        self, scope: str, paused_at: int, length: float, asked: float, refused: bool
    ) -> None:
        """Note the cause of a pause, seen by this node. Times are in milliseconds."""
        note = self._find_note(scope, paused_at, length)
        note.asked = max(note.asked, asked)
        note.refused = max(note.refused, int(refused))

    def _note_late_start(self, scope: str, state: _ScopeState) -> None:
        """Note this node's last start if it was within the pause's length."""
        late = 1000 * state.begun_at - state.paused_at
        if ROUNDING_MS < late < state.pause_length - ROUNDING_MS:  # promise: starts after a pause
            note = self._find_note(scope, state.paused_at, state.pause_length)
            note.last = max(note.last, late)

    def forget(self, scope: str) -> None:
        """Drop the state of a scope no longer used by this node."""
        self._in_use.pop(scope, None)  # promise: no history is left

    def _use(self, scope: str) -> _ScopeState:
        return self._in_use.setdefault(scope, _ScopeState())

    def _find_note(self, scope: str, paused_at: int, length: float) -> PauseNote:
        pauses = self._find_tally(scope, self.wall).pauses
        note = pauses.setdefault(paused_at, PauseNote(length))
        note.length = max(note.length, length)
        return note

    def _has_tally(self, scope: str) -> bool:
        tally = self._tallies.get(scope)
        return tally is not None and tally.at == int(self.wall // 60 * 60)

    def _find_tally(self, scope: str, wall: float) -> Tally:
        begin = int(wall // 60 * 60)
        tally = self._tallies.get(scope)
        if tally is None or tally.at != begin:
            if tally is not None:
                self._ended.append(tally)
            tally = self._tallies[scope] = Tally(at=begin, scope=scope)
            self._in_use.get(scope, NOT_IN_USE).add_to(tally)
        return tally

    # To the server ------------------------------------------------------------------------------

    @property
    def seconds_left(self) -> float:
        """Seconds until the present minute ends."""
        return 60 - self.wall % 60

    def next_batch(self, is_closing: bool) -> Batch:
        """The batch to send: the unanswered one; otherwise the next one, of minutes that have
        ended. If the node is closing, the present minute counts as ended. The first batch of all
        has no tallies, as the server cannot tell whether it has counted that one before.
        """
        if self._batch is not None:  # rule 27: until it is answered
            return replace(self._batch, is_resent=True)
        begin = int(self.wall // 60 * 60)
        over = [tally for tally in self._tallies.values() if is_closing or tally.at != begin]
        for tally in over:
            del self._tallies[tally.scope]
        self._ended = sorted([*self._ended, *over], key=lambda tally: tally.at)
        first = self._ended[:TALLIES_PER_BATCH] if self._number else []  # rule 27: announcement
        here = [tally for tally in first if tally.at == first[0].at]
        del self._ended[: len(here)]
        minute = (here[0].at if here else begin) // 60
        self._number += 1
        self._batch = Batch(self._number, minute, here, is_closing and not self._ended)
        return self._batch

    def on_sent(self, batch: Batch) -> bool:
        """Note that the server has the batch, or refuses it. Returns True if more is to be sent."""
        self._batch = None
        self.is_closed = batch.is_last
        return bool(self._ended)
