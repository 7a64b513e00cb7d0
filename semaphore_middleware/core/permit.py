"""A permit: the right to one request at a site, from asking for it to giving it back; and the set
of permits of a request that needs several.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from enum import Enum
from threading import get_ident
from types import TracebackType
from typing import Protocol, Self

from semaphore_middleware.core.closings import Closing
from semaphore_middleware.core.failures import Failures
from semaphore_middleware.errors import PermitLostError
from semaphore_middleware.model.feedback import Feedback
from semaphore_middleware.model.hosts import kind_of, site_index
from semaphore_middleware.model.inspection import Finding
from semaphore_middleware.model.limits import Limit
from semaphore_middleware.model.validation import LONGEST_S, shown


class Stage(Enum):
    """The stages of a permit's life in this process."""

    WAITING = "waiting"
    HELD = "held"
    LOST = "lost"
    """The lease could not be renewed in time; another node may hold the permit by now."""
    RELEASED = "released"


class Lease(Protocol):
    """What a permit needs of its `ScopeLease`."""

    deadline: float
    last_success: float
    failures: Failures

    @property
    def findings(self) -> Sequence[Finding]: ...
    @property
    def starts_count(self) -> bool: ...
    def is_expired(self, now: float) -> bool: ...
    def start(self, permit: Permit) -> None: ...
    def note_response(self, status: int, size: int) -> None: ...
    def cancel(self, permit: Permit) -> None: ...
    def release(self, permit: Permit) -> None: ...
    def release_lost(self, permit: Permit) -> None: ...


@dataclass(slots=True, eq=False, repr=False)
class Permit:
    """The right to one request at a site, until `release()`. Get it from `FairSemaphore`.

    Its methods do not wait, and send nothing by themselves. All times are in seconds. Names that
    begin with an underscore are internal.

    It is held under a lease on the server, which the semaphore renews. If that fails for too long,
    the permit is lost: `lost` becomes true, and what runs within `until_lost()` is cancelled, 0.65
    of the lease time after the last successful call, before the server can grant the permit to
    another node.
    """

    scope: str
    limit: Limit
    _loop: asyncio.AbstractEventLoop
    _lease: Lease
    owner: object = None
    """An object of the caller, which shows observers the permit's purpose."""
    _priority: float = 0.0
    """Of this node's requests that wait for the scope, the highest priority comes first."""
    _on_wait: Callable[[], object] | None = None
    """Called if it is not granted at once."""
    waited: bool = field(default=False, init=False)
    """True if it was not granted at once."""
    granted_at: float = field(default=math.inf, init=False)
    """On the loop's clock; infinite until it is granted."""
    must_not_start: bool = field(default=False, init=False)
    """True if the site has refused a request since the grant: do not begin one now."""
    _begun: bool = field(default=False, init=False)
    """True once its request has begun."""
    _stage: Stage = field(default=Stage.WAITING, init=False)
    _thread: int = field(default_factory=get_ident, init=False)
    _requested_at: float = field(init=False)
    _granted: asyncio.Future[None] = field(init=False)
    _reuse_until: float = field(default=0.0, init=False)
    """On the loop's clock: until then it may serve the node's next request after this one."""
    _watchers: tuple[Callable[[], object], ...] = field(default=(), init=False)
    """Called when it is lost; empty: nothing runs under it that could be cancelled."""
    _is_of_thread: bool = field(default=False, init=False)
    """True if a thread works under it, which cannot be cancelled."""
    _error: PermitLostError | None = field(default=None, init=False)
    """The reason of the loss."""
    _outcome: Feedback | None = field(default=None, init=False)
    """The result of the request, sent with the release if the server needs it."""

    def __post_init__(self) -> None:
        self._requested_at = self._loop.time()
        self._granted = self._loop.create_future()

    def __repr__(self) -> str:
        return f"<Permit for {self.scope!r}: {self._stage.value}>"

    @property
    def wait(self) -> float:
        """Seconds from the request to the grant, or until now."""
        return min(self.granted_at, self._loop.time()) - self._requested_at

    @property
    def held(self) -> bool:
        """True from the grant until it is given back or lost."""
        return self._stage is Stage.HELD

    @property
    def lost(self) -> bool:
        """True if it could not be renewed in time; another node may hold it by now."""
        return self._stage is Stage.LOST

    def release(self) -> None:
        """Give it back, or stop waiting for it. Does nothing the second time; raises nothing.

        May be called in any thread.
        """
        if get_ident() != self._thread:
            with suppress(RuntimeError):  # its loop is closed
                self._loop.call_soon_threadsafe(self.release)
        elif self._stage is not Stage.RELEASED:
            if self._stage is Stage.HELD:
                self._lease.release(self)
            elif self._stage is Stage.WAITING:
                self._lease.cancel(self)
            else:
                self._lease.release_lost(self)
            self._stage = Stage.RELEASED
            self._granted.cancel()

    @property
    def site_answered_at(self) -> float:
        """When the newest request known to have succeeded began, on any node; or -infinity."""
        return self._lease.last_success

    @property
    def refuses_pages(self) -> bool:
        """True if the site refuses some pages, however many requests there are, as last reported:
        then a page's second refusal says nothing of the site.
        """
        return any(finding.refuses_pages for finding in self._lease.findings)

    @property
    def no_retry(self) -> str:
        """Why the request is not retried if the site refuses it; empty: it may be."""
        return next((each.no_retry for each in self._lease.findings if each.no_retry), "")

    def answered(self, latency: float | None, retry_after: float = 0.0) -> None:
        """Report a response of the site, after `latency` seconds. Call it before `release`.

        An `adaptive` limit learns from the latency. None: the response is an error, whose latency
        does not count (errors often come sooner than pages). No node gets a permit of this scope
        for `retry_after` seconds, at most the semaphore's `backoff.most`.
        """
        self._lease.failures.closings.note_answer(self.granted_at)
        self._outcome = Feedback(latency, retry_after=_cut(retry_after))

    def refused(
        self,
        retry_after: float = 0.0,
        what: str = "refused a request",
        status: int = 0,
        is_metered: bool = True,
        quota_interval: float = 0.0,
    ) -> None:
        """Report a refusal by the site. Call it before `release`: no node gets a permit
        of this scope for `retry_after` seconds, at most the semaphore's `backoff.most`. 0: the site
        named no time, so the pause doubles from incident to incident. `what` it did is logged;
        operators see the `status` of its response.

        After nothing but refusals for long, requests fail at once, except one after each pause.

        If many requests are refused because they were too many (`is_metered`), the scope gets an
        interval between starts, learned from how many the site answers. If the site has named a
        quota, it begins at `quota_interval` seconds, and is not longer.
        """
        self._lease.failures.closings.note_answer(self.granted_at)
        self._outcome = Feedback(
            refused=True,
            retry_after=_cut(retry_after),
            status=status,
            is_metered=is_metered,
            quota_interval=_cut(quota_interval),
            what=what,
        )

    def failed(self) -> None:
        """Report a site without a response: it refused the connection, or took too long.

        Call it before `release`. Three in a row, on any nodes, count as a refusal, and then one
        request is tried at a time. After five in a row, and the semaphore's `backoff.down_after`,
        others fail at once with `HostDownError`.
        """
        self._outcome = Feedback(failed=True)

    def closed(
        self, page: str, what: str = "closed a connection", may_be_idle: bool = False
    ) -> bool:
        """Report that the site closed the connection before any part of a response. Call it before
        `release`. Returns True if the request should be repeated like a refused one. If the site
        refuses requests this way, this counts as `refused`. Otherwise it counts as `failed`, or for
        nothing.

        The site refuses if it has closed connections for three different pages, and has answered
        requests of this node in between. Of connections closed at the same moment, the first
        counts; requests of the others should be repeated. Those for a page that is closed again,
        though others are answered, do not count. Neither do those that may have been idle before
        the request (`may_be_idle`), unless one was closed since the last answer. `page` identifies
        what was requested; `what` the site did is logged.
        """
        closing = self._lease.failures.closings.note(
            page, self.granted_at, self._loop.time(), may_be_idle
        )
        is_refusal = closing is Closing.REFUSAL
        if is_refusal or closing is Closing.FAILURE:
            self._outcome = Feedback(refused=is_refusal, failed=not is_refusal, what=what)
        return is_refusal or closing is Closing.SAME_MOMENT

    def received(self, status: int, size: int) -> None:
        """Before `release`, report the response's status (0: none) and the bytes of its body."""
        self._lease.note_response(status, size)

    def until_lost(self) -> UntilLost:
        """Cancel this task's work in the `with` when the permit is lost.

        Raises `PermitLostError` then, and at once if it is lost already. A cancellation from
        outside stays a cancellation. Use it within an asyncio task.
        """
        return UntilLost(self)

    # For the semaphore --------------------------------------------------------------------------

    def _begin(self) -> None:
        """Begin its request: a delay counts from now. A permit released before is no start."""
        if not self._begun:
            self._begun = True
            self._lease.start(self)

    def _grant(self, now: float) -> None:
        """Mark it as held since `now`, on the loop's clock, and wake its request."""
        self._stage = Stage.HELD
        self.granted_at = now
        if not self._granted.done():
            self._granted.set_result(None)

    def _lose(self, why: str) -> None:
        """Mark it as lost, and cancel its request if that is possible."""
        self._stage = Stage.LOST
        self._error = PermitLostError(why)
        for watcher in self._watchers:
            watcher()  # promise: lost permits

    def _refuse(self, error: BaseException) -> None:
        """Raise this error in its waiting request."""
        if isinstance(error, StopIteration):  # which no future may have
            error = RuntimeError(f"raised {shown(error)}")
        if not self._granted.done():
            self._granted.set_exception(error)

    def _check(self) -> None:
        """Raises `PermitLostError` if nothing may begin under this permit."""
        if self._error is not None:
            raise self._error
        if self._lease.is_expired(self._loop.time()):
            # A process that was stopped may come here before the timer of the deadline runs.
            raise PermitLostError(f"the permit for {self.scope!r} ended before its work began")


def _cut(seconds: float) -> float:
    """A time that a site has named, within what is allowed."""
    return min(max(0.0, seconds), LONGEST_S)


class PermitSet:
    """The permits of one request, one of each of its scopes: begun, used and given back together.

    Get it from `FairSemaphore.acquire_all`, with the permits in the order in which they were taken.
    """

    __slots__ = ("permits", "site_permit")

    def __init__(self, permits: Sequence[Permit]) -> None:
        self.permits = permits
        index = site_index(tuple([permit.scope for permit in permits]))
        self.site_permit = None if index is None else permits[index]
        """The permit of the request's site, on which its answer is noted; None: there is none."""

    def of_kind(self, kind: str) -> Permit | None:
        """The permit of the request's scope of this kind; None: it has no such scope."""
        return next((permit for permit in self.permits if kind_of(permit.scope) == kind), None)

    @property
    def starts_count(self) -> bool:
        """Whether the request should begin soon after the last grant: the starts at a scope are
        spaced by a delay or a rate, so that other nodes wait for this one, or their latency is
        measured.
        """
        return any(permit._lease.starts_count for permit in self.permits)

    @property
    def must_not_start(self) -> bool:
        """True if a site has refused a request since the grants: do not begin one now."""
        return any(permit.must_not_start for permit in self.permits)

    def begin(self) -> None:
        """Begin the request: now, for all of its scopes."""
        for permit in self.permits:
            permit._begin()

    def received(self, status: int, size: int) -> None:
        """Report the request's response for each scope (see `Permit`)."""
        for permit in self.permits:
            permit.received(status, size)

    def release(self) -> None:
        """Give all back. Does nothing the second time; raises nothing.

        An adaptive limit of any of the scopes learns from the site's latency.
        """
        outcome = self.site_permit._outcome if self.site_permit else None
        for permit in self.permits:
            if (
                outcome is not None
                and outcome.latency is not None
                and permit is not self.site_permit
            ):
                permit._outcome = Feedback(outcome.latency)  # pauses are of the site only
            permit.release()

    def until_lost(self) -> UntilLost:
        """Cancel this task's work in the `with` when one of them is lost (see `Permit`)."""
        return UntilLost(*self.permits)


class UntilLost(AbstractContextManager["UntilLost"]):
    """The context manager of `until_lost`; a generator would cost each request more."""

    __slots__ = ("_cancelled_before", "_cancelled_here", "_permits", "_task")

    def __init__(self, *permits: Permit) -> None:
        self._permits = [*permits]
        self._task: asyncio.Task[object] | None = None
        self._cancelled_here = False

    def __enter__(self) -> Self:
        for permit in self._permits:
            permit._check()
        for permit in self._permits:
            self._watch(permit)
        return self

    def add(self, permit: Permit) -> None:
        """Cancel the task when this permit is lost, too. Raises `PermitLostError` if it is."""
        permit._check()
        self._permits.append(permit)
        self._watch(permit)

    def _watch(self, permit: Permit) -> None:
        if self._task is None:
            self._task = asyncio.current_task()
            assert self._task is not None, "a permit is used within an asyncio task"
            self._cancelled_before = self._task.cancelling()
        permit._watchers += (self._cancel,)

    def _cancel(self) -> None:
        if self._task is not None and not self._cancelled_here:
            self._cancelled_here = self._task.cancel()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for permit in self._permits:
            permit._watchers = tuple(
                watcher for watcher in permit._watchers if watcher != self._cancel
            )
        if self._task is None or not self._cancelled_here:
            return
        # As in asyncio.timeout: our cancellation is taken back, whatever the body did with it.
        from_outside = self._task.uncancel() > self._cancelled_before
        if kind is asyncio.CancelledError and not from_outside:
            lost = (permit._error for permit in self._permits if permit._error is not None)
            raise next(lost) from None
