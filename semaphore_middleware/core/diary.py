"""What this node does to each site, by minute, until the server has it in its history. No I/O.

Minutes and seconds are those of the server's wall clock, the same for all nodes.
"""

from __future__ import annotations

from collections.abc import Callable

from semaphore_middleware.model.history import CLASS_OF
from semaphore_middleware.model.limits import Limit
from semaphore_middleware.redis.protocol import Batch, Tally

TALLIES_PER_BATCH = 100


class Diary:
    """Counts for the history. `now` is the loop's clock, in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._ahead = 0.0  # of the server's wall clock, before ours
        self._tallies: dict[str, Tally] = {}  # of the present minute, or of the last in use
        self._ended: list[Tally] = []
        self._heard: dict[str, tuple[int, int]] = {}  # permits held by all nodes, and the limit
        self._batch: Batch | None = None  # said, and not answered
        self._said = 0
        self.is_closed = False
        """True once the server has heard that this node says no more."""

    def set_clock(self, wall: float, sent: float, heard: float) -> None:
        """The server's wall clock said `wall` between these two times."""
        self._ahead = min(max(self._ahead, wall - heard), wall - sent)

    @property
    def wall(self) -> float:
        """The server's wall clock, as far as it is known, in seconds."""
        return self._now() + self._ahead

    # What happens -------------------------------------------------------------------------------

    def begun(self, scope: str, limit: Limit) -> float:
        """A request begins. Returns when, by the server's wall clock."""
        wall = self.wall
        tally = self._of(scope, wall)
        tally.requests += 1
        tally.seconds[int(wall % 60)] += 1
        if limit.delay or limit.rate:
            tally.gap = max(tally.gap, limit.least_gap)
            tally.interval = max(tally.interval, limit.interval)
        return wall

    def received(self, scope: str, status: int, size: int) -> None:
        """A request ends with a response of so many bytes; status 0: without one."""
        tally = self._of(scope, self.wall)
        kind = CLASS_OF.get(status // 100, "ok") if status else "silent"
        setattr(tally, kind, getattr(tally, kind) + 1)
        tally.size += size

    def refused(self, scope: str) -> None:
        """The site has refused a request."""
        self._of(scope, self.wall).refused += 1

    def begun_late(self, scope: str, paused_at: int, late: float) -> None:
        """A request has begun so many milliseconds after a pause did."""
        of_scope = self._of(scope, self.wall).late
        of_scope[paused_at] = max(of_scope.get(paused_at, 0.0), late)

    def heard(self, scope: str, held: int, limit: int) -> None:
        """All nodes hold so many permits, of so many that they may."""
        self._heard[scope] = held, limit
        tally = self._of(scope, self.wall)
        tally.most, tally.limit = max(tally.most, held), max(tally.limit, limit)

    def forget(self, scope: str) -> None:
        """This node has nothing to do with the scope any more."""
        self._heard.pop(scope, None)

    def _of(self, scope: str, wall: float) -> Tally:
        begin = int(wall // 60 * 60)
        tally = self._tallies.get(scope)
        if tally is None or tally.at != begin:
            if tally is not None:
                self._ended.append(tally)
            most, limit = self._heard.get(scope, (0, 0))
            tally = self._tallies[scope] = Tally(begin, most=most, limit=limit, scope=scope)
        return tally

    # To the server ------------------------------------------------------------------------------

    @property
    def seconds_left(self) -> float:
        """Until the present minute ends."""
        return 60 - self.wall % 60

    def next_batch(self, is_closing: bool) -> Batch:
        """What is to be said: the batch that is not answered, word for word; else the next, of
        minutes that have ended; if the node is closing also of the present one.
        """
        if self._batch is None:
            begin = int(self.wall // 60 * 60)
            over = [one for one in self._tallies.values() if is_closing or one.at != begin]
            for tally in over:
                del self._tallies[tally.scope]
            self._ended = sorted([*self._ended, *over], key=lambda one: one.at)
            first = self._ended[:TALLIES_PER_BATCH]
            here = [one for one in first if one.at == first[0].at]
            del self._ended[: len(here)]
            minute = (here[0].at if here else begin) // 60
            self._said += 1
            self._batch = Batch(self._said, minute, here, is_closing and not self._ended)
        return self._batch

    def on_said(self, batch: Batch) -> bool:
        """The server has it, or refuses it. True if there is more to say."""
        self._batch = None
        self.is_closed = batch.is_last
        return bool(self._ended)
