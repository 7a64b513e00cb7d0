"""Events of a semaphore, and the observers that it passes them to."""

from __future__ import annotations

import asyncio
import logging
from _thread import interrupt_main
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, ClassVar, Protocol

from semaphore_middleware.errors import SemaphoreError, SettingsError
from semaphore_middleware.model.events import CountedEvent, Event, Fields
from semaphore_middleware.model.validation import not_allowed, shown

if TYPE_CHECKING:
    from semaphore_middleware.core.operations import Operations
    from semaphore_middleware.core.permit import Permit
    from semaphore_middleware.link.location import Server
    from semaphore_middleware.model.limits import Limit
    from semaphore_middleware.model.options import NodeOptions
    from semaphore_middleware.model.reasons import Reason

logger = logging.getLogger(__name__)

GROUP = "semaphore_middleware.observers"
"""Entry points of other packages. Each has the name of the option that it is for, and is called
with the node's `NodeOptions` and `Server` at each `FairSemaphore.open` where that option is on. It
returns an `Observer`.
"""

FAILURES = (Exception, asyncio.CancelledError, SystemExit, GeneratorExit)
"""Errors of users' own functions, which must not end a task or a loop of ours. `KeyboardInterrupt`,
the user's Ctrl-C, is not among them.
"""


@dataclass(frozen=True, slots=True)
class NodeJoined(Event):
    """The server has accepted this node, which is open from now on."""


@dataclass(frozen=True, slots=True)
class PermitWaiting(Event):
    """No permit is free: a request has to wait."""

    permit: Permit


@dataclass(frozen=True, slots=True)
class PermitGranted(CountedEvent):
    """A permit is held from now on."""

    counter = "acquired"

    permit: Permit
    limit: int | None
    """How many may hold a permit of its scope, as last reported by the server."""
    reused: bool
    """Whether this node had the permit already, so that no call was made for it."""


@dataclass(frozen=True, slots=True)
class RequestBegun(Event):
    """A request has begun under this permit."""

    permit: Permit


@dataclass(frozen=True, slots=True)
class RequestEnded(Event):
    """A request has ended, and its caller has reported the response."""

    scope: str
    status: int
    """Of the response; 0: there was none."""
    size: int
    """Bytes of its body."""


@dataclass(frozen=True, slots=True)
class RefusalReported(Event):
    """A site has refused a request of this node."""

    scope: str


@dataclass(frozen=True, slots=True)
class UsageReported(Event):
    """The server has reported what all nodes hold of a scope, and the effective limit."""

    scope: str
    held: int
    limit: int
    least_interval: float
    """Seconds between any two starts; 0: any. A delay counts at its shortest."""
    interval: float
    """Seconds between two starts on average, if a rate that allows bursts is slower."""


@dataclass(frozen=True, slots=True)
class ScopeLeft(Event):
    """This node holds no permit of a scope any more, and no request waits for one."""

    scope: str


@dataclass(frozen=True, slots=True)
class PauseBegun(Event):
    """A pause of a site has begun, whichever node caused it, or is longer than was known."""

    scope: str
    paused_at: int
    """Milliseconds of Unix time, by the server's clock; it identifies the pause."""
    length_ms: float


@dataclass(frozen=True, slots=True)
class PauseCaused(Event):
    """A report by this node has begun a pause of a site, or has made one longer."""

    scope: str
    paused_at: int
    """As in `PauseBegun`."""
    length_ms: float
    asked: float
    """For how many seconds the site asked; 0: it named no time."""
    refused: bool
    """Whether the site refused a request."""


@dataclass(frozen=True, slots=True)
class PermitReleased(CountedEvent):
    """A granted permit has been given back, used or unused, even if it was lost before."""

    counter = "released"

    permit: Permit


@dataclass(frozen=True, slots=True)
class PermitLost(CountedEvent):
    """A permit's lease could not be renewed in time."""

    counter = "lost"

    permit: Permit


@dataclass(frozen=True, slots=True)
class AcquireTimedOut(CountedEvent):
    """A request has waited for a permit as long as its timeout allows."""

    counter = "timeouts"

    permit: Permit


@dataclass(frozen=True, slots=True)
class BackoffStarted(CountedEvent):
    """A site refused, did not answer or asked for a pause: no node starts a request there."""

    counter = "backoffs"

    scope: str
    seconds: float


@dataclass(frozen=True, slots=True)
class NodePaused(CountedEvent):
    """A site does not respond to this node, while others get answers or still wait for them: this
    node alone starts no request there for a while.
    """

    counter = "node_pauses"

    scope: str
    seconds: float


@dataclass(frozen=True, slots=True)
class LimitOverruled(Event):
    """Another node asks for a stricter limit at a site than this one: it holds for both."""

    scope: str
    own: Limit
    """What this node asks for."""


@dataclass(frozen=True, slots=True)
class FailedAtOnce(CountedEvent):
    """A request was not made, because its site is down, or refuses everything."""

    counter = "failed_at_once"

    permit: Permit
    """The permit that it waited for."""


@dataclass(frozen=True, slots=True)
class RoundTrip(Event):
    """The server answered a call."""

    seconds: float
    wall: float | None
    """The server's clock then, in seconds of Unix time; None: the call did not read it."""


@dataclass(frozen=True, slots=True)
class Reconnected(CountedEvent):
    """The connection to the server broke, and there is a new one."""

    counter = "reconnects"


@dataclass(frozen=True, slots=True)
class StoreLost(CountedEvent):
    """The server has lost its data or was replaced by another one: no permit is granted for a
    while. Not emitted when this node joins a server.
    """

    counter = "store_losses"

    seconds: float


@dataclass(frozen=True, slots=True)
class ProcessStalled(CountedEvent):
    """A renewal was missed: the event loop was stalled, or the process stopped, for `seconds`."""

    counter = "stalls"

    seconds: float


@dataclass(frozen=True, slots=True)
class RobotsTxtObeyed(Event):
    """This node obeys a site's robots.txt from now on. It has fetched it, or another node has."""

    origin: str
    """Scheme, host and port."""
    status: int
    """The status of the response; 0: there was none."""
    problem: str
    """Why the file cannot be read, so that it forbids all pages. Empty: it can."""
    text: bytes
    """The file; empty if the site has none."""


@dataclass(frozen=True, slots=True)
class UnknownNotification(CountedEvent):
    """A message on this node's channel could not be read."""

    counter = "strange_messages"


@dataclass(frozen=True, slots=True)
class UpdateRefused(CountedEvent):
    """The server could not read an update of this node."""

    counter = "refused_updates"


class ObservedSemaphore(Protocol):
    """The part of a `FairSemaphore` for its observers: `node`, `admin`, `problem`, `permits`,
    `reason_at` and `held_back_by`.
    """

    @property
    def node(self) -> str: ...
    @property
    def admin(self) -> Operations: ...
    @property
    def problem(self) -> Exception | None: ...
    def permits(self) -> Collection[Permit]: ...
    def reason_at(self, scope: str) -> tuple[Reason | None, float | None]: ...
    def held_back_by(self, scope: str) -> str: ...


class Observer:
    """Base class of observers of a semaphore; each method does nothing by default.

    All are called on the semaphore's event loop. `on_event` is called several times for each
    permit: it must return soon. What it raises is logged, `SystemExit` too, and stops nothing. An
    `open` that raises an error ends the opening of the semaphore with `SettingsError`.
    """

    kinds: ClassVar[tuple[type[Event], ...]] = (Event,)
    """The kinds of events that it is notified of."""

    async def open(self, semaphore: ObservedSemaphore) -> None:
        """Called before the semaphore connects to its server, which may take long."""

    def on_event(self, event: Event) -> None:
        """Called at each event of `kinds`."""

    async def close(self) -> None:
        """Called after the semaphore has closed."""


class Observers:
    """The observers of a semaphore, while they are open."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers
        self._open: list[Observer] = []
        self._of_kind: dict[object, list[Callable[[Event], None]]] = {}

    async def open(self, semaphore: ObservedSemaphore, more: Sequence[Observer] = ()) -> None:
        """Open all observers, with `more` until the next `close`, which closes those that were
        opened. Raises `SettingsError` if one cannot be opened.
        """
        for observer in (*self._observers, *more):
            _check(observer)
            self._open.append(observer)
            self._of_kind.clear()
            try:
                await observer.open(semaphore)
            except SemaphoreError:
                raise
            except FAILURES as error:
                if _is_cancellation(error):
                    raise
                raise SettingsError(
                    f"the observer {type(observer).__name__} cannot be opened: {shown(error)}"
                ) from error

    def emit(self, kind: Callable[[*Fields], Event], *fields: *Fields) -> None:
        """Notify the observers of an event. If no observer wants its kind, it is not created."""
        callbacks = self._of_kind.get(kind)
        if callbacks is None:
            callbacks = self._of_kind[kind] = self._find_callbacks(kind)
        if callbacks:
            event = kind(*fields)
            for on_event in callbacks:
                try:
                    on_event(event)
                except FAILURES:
                    logger.exception("The observer %s failed at %s.", _owner_of(on_event), event)
                except KeyboardInterrupt:  # raised again after the present callback
                    asyncio.get_running_loop().call_soon(interrupt_main)

    def _find_callbacks(self, kind: object) -> list[Callable[[Event], None]]:
        assert isinstance(kind, type), "a kind of events is a class"
        return [observer.on_event for observer in self._open if issubclass(kind, observer.kinds)]

    async def close(self, until: float) -> None:
        """Close all, in reverse order, by a time on the loop's clock at the latest. Each is
        notified of events until it is closed. Their errors are logged. After a cancellation the
        others get no time.
        """
        cancelled: BaseException | None = None
        while self._open:
            observer = self._open.pop()
            self._of_kind.clear()
            in_time = asyncio.timeout_at(until)
            try:
                async with in_time:
                    await observer.close()
            except FAILURES as error:
                if _is_cancellation(error):
                    cancelled, until = error, 0.0
                elif not (isinstance(error, TimeoutError) and in_time.expired()):
                    logger.exception(
                        "The observer %s could not be closed.", type(observer).__name__
                    )
        if cancelled is not None:
            raise cancelled

    def forget(self) -> None:
        """In a forked child, forget the open observers: they are its parent's."""
        self._open = []
        self._of_kind.clear()


def _is_cancellation(error: BaseException) -> bool:
    """Whether this task was cancelled, not one of the observer's."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def _check(observer: Observer) -> None:
    """Check the attributes of an observer that each event needs. Raises `SettingsError`."""
    kinds = observer.kinds
    if not isinstance(kinds, tuple) or not all(
        isinstance(kind, type) and issubclass(kind, Event) for kind in kinds
    ):
        raise not_allowed(kinds, f"{type(observer).__name__}.kinds", "a tuple of classes of events")
    if not callable(observer.on_event):
        raise not_allowed(observer.on_event, f"{type(observer).__name__}.on_event", "a method")


@cache
def _registered() -> Sequence[EntryPoint]:
    return sorted(entry_points(group=GROUP), key=lambda entry: entry.name)


def make_observers(options: NodeOptions, server: Server) -> list[Observer]:
    """The observers of other packages whose options are on. Raises `SettingsError` if a package
    that one of them needs is not installed.
    """
    return [
        _load(entry)(options, server)
        for entry in _registered()
        if getattr(options, entry.name, None)
    ]


def _load(entry: EntryPoint) -> Callable[[NodeOptions, Server], Observer]:
    try:
        return entry.load()  # type: ignore[no-any-return]
    except ImportError as error:
        name = entry.dist.name if entry.dist else entry.module
        extras = f"[{','.join(entry.extras)}]" if entry.extras else ""
        raise SettingsError(
            f"{entry.name}: this needs {error.name}, which is not installed; install it with: "
            f"pip install '{name}{extras}'"
        ) from error


def _owner_of(on_event: Callable[[Event], None]) -> str:
    return type(getattr(on_event, "__self__", on_event)).__name__
