"""The requests of one scope that wait for a permit."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from heapq import heapify, heappop, heappush
from itertools import count

from semaphore_middleware.core.permit import Permit

QUEUE_SLACK = 16  # the heap is rebuilt when this many more requests have given up than still wait


class WaitQueue:
    """Waiting requests: the highest priority comes first, and among equals the oldest."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Permit, None] = OrderedDict()  # the oldest first
        self._heap: list[tuple[float, int, Permit]] = []  # these, and some that gave up
        self._numbers = count()
        self._unanswered: list[tuple[int, Permit]] = []  # by the seq of the first update that asks

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def permits(self) -> Collection[Permit]:
        """Their permits, the oldest first."""
        return self._waiting.keys()

    def add(self, permit: Permit, seq: int | None) -> None:
        """Add a request. The update `seq` is the first to ask for it; None: no reply is awaited."""
        self._waiting[permit] = None
        # promise: highest priority
        heappush(self._heap, (-permit._priority, next(self._numbers), permit))
        if seq is not None:
            self._unanswered.append((seq, permit))

    def drop(self, permit: Permit) -> None:
        """Remove a request."""
        self._waiting.pop(permit, None)
        if len(self._heap) > 2 * len(self._waiting) + QUEUE_SLACK:
            self._heap = [entry for entry in self._heap if entry[2] in self._waiting]
            heapify(self._heap)
            self._unanswered = [entry for entry in self._unanswered if entry[1] in self._waiting]

    def pop(self) -> Permit:
        """Remove the first request, and return its permit."""
        while True:
            _, _, permit = heappop(self._heap)
            if permit in self._waiting:
                del self._waiting[permit]
                return permit

    def clear(self) -> list[Permit]:
        """Remove all requests, and return their permits."""
        permits = list(self._waiting)
        self._waiting.clear()
        self._unanswered.clear()
        return permits

    def pop_answered(self, seq: int) -> list[Permit]:
        """The permits first asked for by this update or an earlier one, each returned once."""
        answered = [permit for first_seq, permit in self._unanswered if first_seq <= seq]
        # promise: requests answered once
        self._unanswered = [entry for entry in self._unanswered if entry[0] > seq]
        return answered

    def ask_anew(self) -> None:
        """Let the first update of a new lease ask for all permits without an answer."""
        self._unanswered = [(1, permit) for _, permit in self._unanswered]
