"""A permit: one place at a site, from asking for it to giving it back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import Enum
from types import TracebackType

from semaphore_middleware.errors import PermitLostError
from semaphore_middleware.limits import Limit
from semaphore_middleware.outcome import Outcome


class Stage(Enum):
    WAITING = "waiting"
    HELD = "held"
    LOST = "lost"
    """The lease could not be renewed in time; the permit may be another's by now."""
    RELEASED = "released"


class Permit:
    """The right to one request at a site, until `release()`. Get it from `FairSemaphore`.

    It lives on the server as a lease that the semaphore renews. When that fails for too long the
    permit is lost: `lost` turns true, and what runs within `until_lost()` is cancelled.
    """

    __slots__ = (
        "_give_back",
        "_granted",
        "_loop",
        "_on_wait",
        "_when_lost",
        "asked_at",
        "deadline",
        "error",
        "limit",
        "number",
        "outcome",
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
        on_wait: Callable[[], None] | None = None,
    ) -> None:
        self.scope = scope
        self.limit = limit
        self.number = number
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
        self._on_wait = on_wait
        self._when_lost: Callable[[], object] | None = None
        self.error: PermitLostError | None = None
        """Why it was lost."""
        self.withdrawn = False
        """Whether the site has said "not now" since the grant: what has not begun should not."""
        self.outcome: Outcome | None = None
        """What came of the request; told with the release, where it is of use."""

    def __repr__(self) -> str:
        return f"<Permit {self.number} for {self.scope!r}: {self.stage.value}>"

    @property
    def lost(self) -> bool:
        return self.stage is Stage.LOST

    @property
    def granted_at(self) -> float:
        """On the loop's clock."""
        return self.asked_at + self.wait

    @property
    def ends_with_loss(self) -> bool:
        """Whether something runs in `until_lost()`."""
        return self._when_lost is not None

    def release(self) -> None:
        """Give it back. Does nothing the second time."""
        if self.stage is not Stage.RELEASED:
            self._give_back(self)
            self.stage = Stage.RELEASED
            self._granted.cancel()

    def answered(self, latency: float) -> None:
        """The site answered as usual, after so many seconds. Say it before the release."""
        self.outcome = Outcome(latency)

    def refused(self, retry_after: float = 0.0) -> None:
        """The site said "not now", and for how many seconds if it did. Say it before the release:
        nobody else gets a permit of this scope until then.
        """
        self.outcome = Outcome(refused=True, retry_after=max(0.0, retry_after))

    def failed(self) -> None:
        """The site gave no answer. Some of these in a row are like a refusal."""
        self.outcome = Outcome()

    def until_lost(self) -> AbstractContextManager[None]:
        """Cancel what this task does in the `with` when the permit is lost.

        Raises `PermitLostError` then, where a cancellation from outside goes on as it is.
        """
        return UntilLost(self)

    # What the semaphore does to it --------------------------------------------------------------

    async def granted(self) -> None:
        await self._granted

    def wait_in_line(self) -> None:
        if not self.waited:
            self.waited = True
            if self._on_wait is not None:
                self._on_wait()

    def grant(self, now: float) -> None:
        self.stage = Stage.HELD
        self.wait = now - self.asked_at
        if not self._granted.done():
            self._granted.set_result(None)

    def lose(self, why: str) -> None:
        self.stage = Stage.LOST
        self.error = PermitLostError(why)
        if self._when_lost is not None:
            self._when_lost()

    def refuse(self, error: Exception) -> None:
        if not self._granted.done():
            self._granted.set_exception(error)

    def end_with_loss(self, end: Callable[[], object] | None) -> None:
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
