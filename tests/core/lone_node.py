"""Leases by hand: no server, no event loop, and a clock that only the test moves."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from semaphore_middleware.core.permit import Permit, Stage
from semaphore_middleware.core.protocol import LeaseUpdate, Reply
from semaphore_middleware.core.scope_lease import ScopeLease
from semaphore_middleware.link.lease import GRACE, RENEWAL
from semaphore_middleware.model.events import Event, Fields
from semaphore_middleware.model.feedback import Backoff
from semaphore_middleware.model.limits import Limit

LEASE_S = 100.0
GRACE_S = GRACE * LEASE_S
WINDOW_S = 8.0  # a power of two: windows end at times that a float has exactly
START_S = 1000.0  # on the clock, when a test begins; windows end at it
FULL = 0  # permits that a site has to spare
REPLY = {
    "status": "ok",
    "available": 5,
    "limit": 9,
    "held": 0,
    "paused_at": 0,
    "pause_length": 0.0,
    **dict.fromkeys(("starts_count", "wants_feedback", "is_stricter"), False),
    **dict.fromkeys(("interval", "least_interval", "retry_in", "backoff")),
    **dict.fromkeys(("answered_ago", "reason")),
}
"""The reply of the server if a test does not care."""


def reply_to(update: LeaseUpdate, **parts: Any) -> Reply:
    """By default it grants all that was asked for."""
    granted = {"lease_id": update.lease_id, "granted": update.requested}
    return Reply(update, **{**granted, **REPLY, **parts})


class Clock:
    """The part of an event loop that permits use. It stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = START_S

    def time(self) -> float:
        return self.now

    def create_future(self) -> Future[None]:
        return Future()


class LoneNode:
    """A node with one lease, and a server whose replies the test decides."""

    def __init__(self, limit: Limit | None = None, window: float = WINDOW_S) -> None:
        self.clock = Clock()
        self.node = "n"
        self.backoff = Backoff()
        self.grace = GRACE_S
        self.least_left = (GRACE - RENEWAL) * LEASE_S
        self.reuse_window = window
        self.events: list[Event] = []
        self.at_once: list[bool] = []  # for each wish to send
        self.windows_to_end: list[ScopeLease] = []
        self.retries: list[float] = []
        self.reports: list[float] = []
        self._last_lease_id = 0
        self.limit = limit or Limit(9)
        self.lease = ScopeLease("s", self.limit, self)

    # For the lease ------------------------------------------------------------------------------

    def now(self) -> float:
        return self.clock.now

    def new_lease_id(self, above: int = 0) -> int:
        self._last_lease_id = max(self._last_lease_id, above) + 1
        return self._last_lease_id

    def emit(self, kind: Callable[[*Fields], Event], *fields: *Fields) -> None:
        self.events.append(kind(*fields))

    def send_now(self, lease: ScopeLease) -> None:  # noqa: ARG002 - there is one
        self.at_once.append(True)

    def send_soon(self, lease: ScopeLease) -> None:  # noqa: ARG002 - there is one
        self.at_once.append(False)

    def send_at_window_end(self, lease: ScopeLease) -> None:
        self.windows_to_end.append(lease)

    def send_later(self, lease: ScopeLease, seconds: float) -> None:  # noqa: ARG002 - there is one
        self.retries.append(seconds)

    def send_by(self, lease: ScopeLease, seconds: float) -> None:  # noqa: ARG002
        self.reports.append(seconds)

    # For tests ----------------------------------------------------------------------------------

    def count(self, kind: type[Event]) -> int:
        """How many events of this type there were."""
        return sum(type(event) is kind for event in self.events)

    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds

    def permit(self, limit: Limit | None = None, priority: float = 0.0) -> Permit:
        """A permit that is not asked for yet."""
        loop: Any = self.clock
        return Permit("s", limit or self.limit, loop, self.lease, _priority=priority)

    def ask(self, limit: Limit | None = None, priority: float = 0.0) -> Permit:
        """A request wants a permit."""
        permit = self.permit(limit, priority)
        self.lease.acquire(permit)
        return permit

    def update(self) -> LeaseUpdate:
        """The present update; there is one."""
        return self.updates()[-1]

    def updates(self) -> Sequence[LeaseUpdate]:
        return self.lease.updates(self.now())

    def apply(self, update: LeaseUpdate, *, sent: float | None = None, **reply: Any) -> None:
        self.lease.on_reply(reply_to(update, **reply), self.now() if sent is None else sent)

    def exchange(self, **reply: Any) -> LeaseUpdate:
        """Send the present update, and apply the reply."""
        update = self.update()
        self.apply(update, **reply)
        return update

    def hold(self, count: int = 1, **reply: Any) -> list[Permit]:
        """Requests that have begun under a permit each, just granted by the server."""
        permits = [self.ask() for _ in range(count)]
        self.exchange(**reply)
        for permit in permits:
            assert permit._stage is Stage.HELD
            permit._begin()
        return permits
