"""The requests of a closing spider: most go back to the scheduler, and some go on for a while."""

from __future__ import annotations

import asyncio
import logging
import math
from contextvars import ContextVar
from typing import TYPE_CHECKING

from semaphore_middleware.scrapy.admission import ASKING, ON_THE_WIRE, OVER, READY, WAITING
from semaphore_middleware.scrapy.engine import PageIncompleteError, SpiderClosingError

if TYPE_CHECKING:
    from semaphore_middleware.core.semaphore import FairSemaphore
    from semaphore_middleware.scrapy.admission import Admission, Admissions

logger = logging.getLogger(__name__)

GOES_ON_S = 20.0
"""How long requests go on after a stop: less than the 30 s after which supervisors kill a node."""
LONGEST_PAUSE_S = 5.0
"""No request waits longer than this for the end of a site's pause."""
CHECK_INTERVAL_S = 0.5

current_page: ContextVar[str] = ContextVar("current_page", default="")
"""The URL of the request whose `fetch`, callback or item pipelines run in this task."""


class SpiderClosing:
    """Decides which requests go on while the spider closes, and until when.

    Waiting requests from the scheduler go back to it, and what only they need, such as a
    robots.txt, is not fetched. A request that bypassed the scheduler goes on, as in Scrapy: a
    callback or an item pipeline waits for it, and their page would not be fetched again. It is
    given up if its site is closed for longer than `LONGEST_PAUSE_S`, or `GOES_ON_S` after the stop.
    """

    def __init__(self, admissions: Admissions, semaphore: FairSemaphore) -> None:
        self._admissions = admissions
        self._semaphore = semaphore
        self._until = math.inf
        self._watching: asyncio.Task[None] | None = None
        self._given_up: dict[Admission, str] = {}  # with the reason

    @property
    def has_begun(self) -> bool:
        return self._watching is not None

    def begin(self) -> None:
        """Cancel the waiting requests that do not go on, as the spider begins to close."""
        if self.has_begun:
            return
        self._until = asyncio.get_running_loop().time() + GOES_ON_S
        self._watching = asyncio.ensure_future(self._watch())
        for admission in self._admissions:
            waits = admission.state is not ON_THE_WIRE
            if admission.task is not None and waits and not self._goes_on(admission):
                admission.task.cancel()

    def end(self) -> None:
        """Stop watching the requests, as the spider has closed."""
        if self._watching is not None:
            self._watching.cancel()

    def may_ask(self, admission: Admission) -> bool:
        if not self.has_begun:
            return True
        return self._goes_on(admission) and asyncio.get_running_loop().time() < self._until

    def has_cancelled(self, error: BaseException) -> bool:
        """True if `error` is from the closing, and nothing else has cancelled the current task. The
        cancellation is taken back.
        """
        task = asyncio.current_task()
        is_cancelled = self.has_begun and isinstance(error, asyncio.CancelledError)
        return is_cancelled and task is not None and not task.uncancel()

    def error_of(self, admission: Admission, reason: str = "") -> SpiderClosingError:
        """The error of a request that bypassed the scheduler. Logged if a page needs it."""
        if not self._goes_on(admission):
            return SpiderClosingError("the spider is closing")
        reason = reason or self._given_up.pop(admission, "") or _late()
        page = current_page.get()
        text = f"{admission.request} is not made, as the spider is closing. {reason}"
        what = f"The items of {page} that wait for it are" if page else "What waits for it is"
        logger.error("%s %s incomplete.", text, what)
        return PageIncompleteError(text)

    def _goes_on(self, admission: Admission) -> bool:
        """True if a request bypassed the scheduler, unless only requests that have not begun need
        it.
        """
        if admission.is_scheduled:
            return False
        needed_by = admission.needed_by
        return not needed_by or any(
            other.state not in (ASKING, WAITING, READY) or self._goes_on(other)
            for other in needed_by
        )

    async def _watch(self) -> None:
        """Give up requests at closed sites and, `GOES_ON_S` after the stop, all others."""
        loop = asyncio.get_running_loop()
        while loop.time() < self._until:
            waiting = [one for one in self._admissions if one.waits_at and self._goes_on(one)]
            if waiting:
                self._semaphore.refresh()
            await asyncio.sleep(min(CHECK_INTERVAL_S, self._until - loop.time()))
            for admission in waiting:
                if reason := self._reason_to_give_up(admission):
                    self._give_up(admission, reason)
        for admission in self._admissions:
            if admission.state is not OVER and not admission.is_scheduled:
                self._give_up(admission, _late())

    def _reason_to_give_up(self, admission: Admission) -> str:
        """Why a request that still waits is given up now; empty: its site is not closed."""
        if admission.waits_at is None or not admission.scopes.limits:
            return ""
        scope, _ = admission.scopes.limits[admission.next_scope]
        reason, left = self._semaphore.reason_at(scope)
        if reason is None or reason.kind != "closed":
            return ""
        return reason.text(left) if left is None or left > LONGEST_PAUSE_S else ""

    def _give_up(self, admission: Admission, reason: str) -> None:
        if admission.task is not None:
            self._given_up[admission] = reason
            admission.task.cancel()


def _late() -> str:
    return f"It was not done {GOES_ON_S:g} s after the stop."
