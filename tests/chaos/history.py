"""What happened in a run, as the site, the nodes and the faults' own hand wrote it down.

All clocks are this machine's monotonic one, which is the same for all processes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

What = Literal[
    # The site's view. `id` is the visit's number, `path` the page, `permit` the number that its
    # node gave its permit.
    "known",  # a page that must arrive was made known to a node
    "start",
    "end",  # the response was written out, or the connection was seen closed
    # A node's view. `id` is a number that the node gave the permit.
    "grant",
    "release",
    "lost",
    "page",  # a page was worked on to its end: this is what arriving means
    "blocked",  # its event loop stood still for `seconds`, until now
    "computed",  # a callback of its spider did so, for as long
    "clock",  # its time of day less this machine's monotonic time: `seconds`
    "closed",  # a clean end; `count` is how often the node says that its loop was blocked
    "lost permits",  # a clean end; the stat `semaphore/lost` is `count`
    # The faults' hand.
    "killed",
    "frozen",
    "woken",
    "proof",  # `id` says what shows that a fault did what its name says; `count` is 0 if it did not
    "recovered",  # full use again: after `seconds`, of `promise`
    "exited",  # as it was told to: `seconds` after its last transfer, with the status `count`
    "left",  # `count` keys were left on the server `id` in the end
    "problem",  # that the run itself saw; `id` says it
]


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a run's history: what happened when, at which node and host."""

    at: float
    """Seconds, on the monotonic clock."""
    what: What
    node: str = ""
    host: str = ""
    id: str = ""
    path: str = ""
    permit: str = ""
    seconds: float = 0.0
    promise: float = 0.0
    count: int = 0


class History:
    """The events of one run, in the order of their times."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._events = list(events)

    def __iter__(self) -> Iterator[Event]:
        return iter(sorted(self._events, key=lambda event: event.at))

    def __len__(self) -> int:
        return len(self._events)

    def note(
        self,
        what: What,
        node: str = "",
        host: str = "",
        id: str = "",
        path: str = "",
        permit: str = "",
        seconds: float = 0.0,
        promise: float = 0.0,
        count: int = 0,
    ) -> None:
        now = time.monotonic()
        self._events.append(Event(now, what, node, host, id, path, permit, seconds, promise, count))

    def read(self, file: Path) -> None:
        """Add what a node has written: it may be about to write a line more."""
        with file.open() as lines:
            self._events += [Event(**json.loads(line)) for line in lines if line.endswith("\n")]

    def write(self, file: Path) -> None:
        """For whoever wants to look into a violation."""
        with file.open("w") as lines:
            lines.writelines(json.dumps(asdict(event)) + "\n" for event in self)
