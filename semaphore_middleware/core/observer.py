"""Events of a semaphore, and the observers that it passes them to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from semaphore_middleware.core.admin import Admin
    from semaphore_middleware.core.permit import Permit
    from semaphore_middleware.model.limits import Limit


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in this process. Times are in seconds.

    Other packages may define events of their own, and pass them on with `FairSemaphore.emit`.
    """

    counter: ClassVar[str | None] = None
    """Name of the stat that counts these events, if one does."""


@dataclass(frozen=True, slots=True)
class PermitWaiting(Event):
    """No permit is free: a request has to wait."""

    permit: Permit


@dataclass(frozen=True, slots=True)
class PermitGranted(Event):
    """A permit is held from now on."""

    counter = "acquired"

    permit: Permit
    limit: int | None
    """How many may hold a permit of its scope, as the server said last."""
    handed_on: bool
    """True if this node had the permit in its hand, so that no call was made for it."""


@dataclass(frozen=True, slots=True)
class PermitReleased(Event):
    """A permit that was granted has been given back, used or unused, even if it was lost before."""

    counter = "released"

    permit: Permit


@dataclass(frozen=True, slots=True)
class PermitLost(Event):
    """A permit's lease could not be renewed in time."""

    counter = "lost"

    permit: Permit


@dataclass(frozen=True, slots=True)
class AcquireTimedOut(Event):
    """A request has waited for a permit as long as its timeout allows."""

    counter = "timeouts"

    permit: Permit


@dataclass(frozen=True, slots=True)
class BackoffStarted(Event):
    """A site asked for a pause, refused a request or did not answer: no node starts one there for
    a while.
    """

    counter = "backoffs"

    scope: str
    seconds: float


@dataclass(frozen=True, slots=True)
class LimitOverruled(Event):
    """Another node asks for a stricter limit at a site than this one: it holds for both."""

    scope: str
    own: Limit
    """What this node asks for."""


@dataclass(frozen=True, slots=True)
class HostDown(Event):
    """A site now counts as down: it did not answer this node's request either."""

    counter = "hosts_down"

    scope: str
    seconds: float
    """For how long it has not responded."""


@dataclass(frozen=True, slots=True)
class FailedAtOnce(Event):
    """A request was not made, because its site is down."""

    counter = "failed_at_once"

    permit: Permit
    """The one that it waited for."""


@dataclass(frozen=True, slots=True)
class RoundTrip(Event):
    """The server answered a call."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Reconnected(Event):
    """The connection to the server broke, and there is a new one."""

    counter = "reconnects"


@dataclass(frozen=True, slots=True)
class StoreLost(Event):
    """The server has lost its data or was replaced by another one: no permit is granted for a
    while. Nobody knows that of a server which this node sees for the first time.
    """

    counter = "store_losses"

    seconds: float


@dataclass(frozen=True, slots=True)
class ProcessStalled(Event):
    """The event loop was blocked, or the process stopped, for so long that a renewal was missed."""

    counter = "stalls"

    seconds: float


@dataclass(frozen=True, slots=True)
class Subscribed(Event):
    """This node hears its channel from now on; earlier messages may have been missed."""


@dataclass(frozen=True, slots=True)
class RobotsTxtNotified(Event):
    """Another node has fetched a robots.txt that this one waits for, or has given up."""

    origin: str
    """Scheme, host and port."""


@dataclass(frozen=True, slots=True)
class UnknownNotification(Event):
    """A message on this node's channel could not be read."""

    counter = "strange_messages"


@dataclass(frozen=True, slots=True)
class StatementRefused(Event):
    """The server could make no sense of a statement of this node."""

    counter = "refused_statements"


class ObservedSemaphore(Protocol):
    """A semaphore as its observers see it: a `FairSemaphore`, or one crawl's part in one."""

    @property
    def node(self) -> str:
        """This node's name."""

    @property
    def admin(self) -> Admin:
        """What operators see and set."""

    def permits(self) -> Collection[Permit]:
        """The permits that are held here, and those that are waited for."""

    def limit_of(self, scope: str) -> int | None:
        """How many may hold a permit of `scope`, as last heard; None: it is not known."""


class Observer:
    """Base class of observers of a semaphore; each method does nothing by default.

    All are called on the semaphore's event loop. `on_event` is called several times for each
    permit: it must return soon, and raise nothing.
    """

    hears: ClassVar[tuple[type[Event], ...]] = (Event,)
    """Of which kinds are the events that it is told of."""

    async def open(self, semaphore: ObservedSemaphore) -> None:
        """The semaphore is about to reach its server, which may take long."""

    def on_event(self, event: Event) -> None:
        """Something happened."""

    async def close(self) -> None:
        """The semaphore has been closed."""


class Observers:
    """The observers of a semaphore, while they are open."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers
        self._open: list[Observer] = []
        self._of_kind: dict[type[Event], list[Callable[[Event], None]]] = {}

    async def open(self, semaphore: ObservedSemaphore) -> None:
        """Open all. Raises what one of them raises; `close` closes those that were opened."""
        for observer in self._observers:
            self._open.append(observer)
            self._of_kind.clear()
            await observer.open(semaphore)

    def emit(self, event: Event) -> None:
        """Tell an event to all that hear it."""
        kind = type(event)
        hearing = self._of_kind.get(kind)
        if hearing is None:
            hearing = [one.on_event for one in self._open if issubclass(kind, one.hears)]
            self._of_kind[kind] = hearing
        for on_event in hearing:
            on_event(event)

    async def close(self) -> None:
        """Close all, in reverse order. Each hears events until it is closed."""
        while self._open:
            observer = self._open.pop()
            self._of_kind.clear()
            await observer.close()

    def forget(self) -> None:
        """In a forked child: those that are open are its parent's."""
        self._open = []
        self._of_kind.clear()
