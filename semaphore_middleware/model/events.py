"""The base classes of events; `core/observer.py` has the events of the semaphore."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeVarTuple

Fields = TypeVarTuple("Fields")
"""The fields of an event, as arguments of a function that makes it."""


@dataclass(frozen=True, slots=True)
class Event:
    """A fact about this process. Times are in seconds.

    Other packages may define events of their own, and pass them on with `FairSemaphore.emit`.
    """


@dataclass(frozen=True, slots=True)
class CountedEvent(Event):
    """An event with a stat of its own."""

    counter: ClassVar[str]
    """The stat's name."""
