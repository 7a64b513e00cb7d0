"""A permit: one place at a site, from asking for it to giving it back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import Enum
from types import TracebackType

from semaphore_middleware.errors import PermitLostError
from semaphore_middleware.model.feedback import Feedback
from semaphore_middleware.model.limits import Limit


class Stage(Enum):
    WAITING = "waiting"
    HELD = "held"
    LOST = "lost"
    """The lease could not be renewed in time; the permit may be another's by now."""
    RELEASED = "released"


class Permit:
    """The right to one request at a site, until `release()`. Get it from `FairSemaphore`.

    It lives on the server as a lease that the semaphore renews (C. Gray and D. Cheriton, Leases:
    An Efficient Fault-Tolerant Mechanism for Distributed File Cache Consistency, 1989). When that
    fails for too long the permit is lost: `lost` turns true, and what runs within `until_lost()`
    is cancelled, at 0.65 of the lease after the last call that went well: before the server
    can give the permit to another. Its methods do not wait, and send nothing by themselves.

    Of use are `scope`, `limit`, `wait` and `waited`, and what follows; all times are in seconds.
    """

    __slots__ = (
        "_give_back",
        "_granted",
        "_loop",
        "_when_lost",
        "asked_at",
        "deadline",
        "error",
        "limit",
        "number",
        "outcome",
        "owner",
        "scope",
        "stage",
        "wait",
        "waited",
        "withdrawn",
    )

    def __init__(
        self,
        scope: str,
        limit: Limit,
        number: int,
        loop: asyncio.AbstractEventLoop,
        give_back: Callable[[Permit], None],
        owner: object = None,
    ) -> None:
        self.scope = scope
        self.limit = limit
        self.number = number
        self.owner = owner
        """The caller's own object: tells observers what this permit is for."""
        self.stage = Stage.WAITING
        self.deadline = 0.0
        """On the loop's clock: until then the server surely knows this permit. 0: never asked."""
        self.waited = False
        """Whether it was not to be had at once."""
        self.wait = 0.0
        """Seconds from asking to the grant."""
        self._loop = loop
        self.asked_at = loop.time()
        self._granted: asyncio.Future[None] = loop.create_future()
        self._give_back = give_back
        self._when_lost: Callable[[], object] | None = None
        self.error: PermitLostError | None = None
        """Why it was lost."""
        self.withdrawn = False
        """Whether the site has said "not now" since the grant: what has not begun should not."""
        self.outcome: Feedback | None = None
        """What came of the request; told with the release, where it is of use."""

    def __repr__(self) -> str:
        return f"<Permit {self.number} for {self.scope!r}: {self.stage.value}>"

    @property
    def lost(self) -> bool:
        """Whether it could not be renewed in time; by now it may be another's."""
        return self.stage is Stage.LOST

    @property
    def granted_at(self) -> float:
        """On the loop's clock, in seconds; of use once it is granted."""
        return self.asked_at + self.wait

    @property
    def ends_with_loss(self) -> bool:
        """Whether something runs in `until_lost()`."""
        return self._when_lost is not None

    def release(self) -> None:
        """Give it back, or leave the line. Does nothing the second time; raises nothing."""
        if self.stage is not Stage.RELEASED:
            self._give_back(self)
            self.stage = Stage.RELEASED
            self._granted.cancel()

    def answered(self, latency: float) -> None:
        """The site answered as usual, after `latency` seconds. Say it before the release.

        An `adaptive` limit learns from it; errors that come soon are better not said to be answers.
        """
        self.outcome = Feedback(latency)

    def refused(self, retry_after: float = 0.0) -> None:
        """The site said "not now". Say it before the release: nobody gets a permit of this scope
        for `retry_after` seconds, at most the semaphore's `backoff.most`; 0: the site named no
        time, so it is a pause that doubles from incident to incident.
        """
        self.outcome = Feedback(refused=True, retry_after=max(0.0, retry_after))

    def failed(self) -> None:
        """The site gave no answer: refused the connection, or took too long. Say it before the
        release. Three in a row, on whichever nodes, are like a refusal.
        """
        self.outcome = Feedback()

    def until_lost(self) -> AbstractContextManager[None]:
        """Cancel what this task does in the `with` when the permit is lost.

        Raises `PermitLostError` then, and at the beginning if it is lost already; a cancellation
        from outside goes on as it is. To be used within an asyncio task.
        """
        return UntilLost(self)

    # What the semaphore does to it --------------------------------------------------------------

    async def granted(self) -> None:
        """Wait for the grant. Raises `ClosedError` if there will be none."""
        await self._granted

    def grant(self, now: float) -> None:
        """It is held since `now`, on the loop's clock."""
        self.stage = Stage.HELD
        self.wait = now - self.asked_at
        if not self._granted.done():
            self._granted.set_result(None)

    def lose(self, why: str) -> None:
        """It could not be renewed in time: end what runs under it."""
        self.stage = Stage.LOST
        self.error = PermitLostError(why)
        if self._when_lost is not None:
            self._when_lost()

    def refuse(self, error: Exception) -> None:
        """Whoever waits for it gets this error."""
        if not self._granted.done():
            self._granted.set_exception(error)

    def end_with_loss(self, end: Callable[[], object] | None) -> None:
        """Call `end` when it is lost; None: nothing runs under it."""
        self._when_lost = end

    def check(self) -> None:
        """Raises `PermitLostError` if nothing may begin under this permit."""
        if self.error is not None:
            raise self.error
        if self._loop.time() >= self.deadline:
            # A process that stood still comes back here before it hears of anything.
            raise PermitLostError(f"the permit for {self.scope!r} was over before its work began")


class UntilLost(AbstractContextManager[None]):
    """Of a permit, what `until_lost` returns. A class, as one is entered for every request."""

    __slots__ = ("_cancelled_before", "_cancelled_here", "_permit", "_task")

    def __init__(self, permit: Permit) -> None:
        self._permit = permit

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "a permit is used within an asyncio task"
        self._permit.check()
        self._task = task
        self._cancelled_before = task.cancelling()
        self._cancelled_here = False
        self._permit.end_with_loss(self._cancel)

    def _cancel(self) -> None:
        self._cancelled_here = self._task.cancel()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._permit.end_with_loss(None)
        if not self._cancelled_here:
            return
        # As asyncio.timeout does: whatever the body made of the cancellation, we take it back.
        from_outside = self._task.uncancel() > self._cancelled_before
        if kind is asyncio.CancelledError and not from_outside:
            assert self._permit.error is not None
            raise self._permit.error from None
