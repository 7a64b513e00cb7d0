"""Records of the wire and of the keys: each names its numbers once, for Python and for Lua.

Times are in milliseconds by the epoch's clock, unless noted otherwise. The scripts name records
in their source, and `scripts.assembled` puts the names there:

    @scope.(state)      scope.concurrency, scope.delay, scope.jitter, ...
    @zero(state)        concurrency = 0, delay = 0, jitter = 0, ...
    @zeros(reply)       0, 0, 0, ... (-1 for a time that may be None)
    @format(reply)      >ddd...
    @bytes(reply)       the size of that
    @constant(complete) '\\0complete'
    @status(lost)       1
    @reason(paused)     2
    @policies(always)   this section of the policies' files, one after the other
    @hook(on_good)      blocked_on_good(learned), ...: one line for each policy with this function
    @sense(limit)       concurrency % 1 == 0 and concurrency >= 1 and ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from struct import Struct
from typing import Any, Literal, get_args

from semaphore_middleware.model.limits import PARTS
from semaphore_middleware.politeness import ALL_REASONS, POLICIES

Status = Literal["ok", "lost", "old", "refused", "unreadable"]
STATUSES: tuple[Status, ...] = get_args(Status)
"""Of replies; on the wire a status is its index here."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How a value is written on the wire or in a key, and what it is while nothing is known."""

    zero: str = "0"
    """In Lua."""
    read: Callable[[float], Any] = float
    """Its value in Python."""


NUMBER = Kind()
TEXT = Kind("''")
NEVER = Kind("math.huge")
LONG_AGO = Kind("-math.huge")
KINDS: Mapping[str, Kind] = {
    "int": Kind(read=int),
    "float": NUMBER,
    "bool": Kind(read=bool),
    "int | None": Kind(read=lambda number: int(number) or None),
    "float | None": Kind("-1", lambda ms: ms / 1000 if ms >= 0 else None),
    "Status": Kind(read=lambda index: STATUSES[int(index)]),
    "Reason | None": Kind(read=lambda index: ALL_REASONS[int(index) - 1] if index else None),
}
"""By the type of a field of a dataclass, as written there: commands need not evaluate it."""


def numbers_of(*described: type) -> dict[str, Kind]:
    """The kinds of dataclass fields marked with `Wire`, by name."""
    return {
        field.name: KINDS[field.type.removeprefix("Wire[").removesuffix("]")]
        for each in described
        for field in fields(each)
        if isinstance(field.type, str) and field.type.startswith("Wire[")
    }


def sense_of_limit() -> str:
    """The condition, in Lua, that the numbers of a limit are within their bounds."""
    conditions: list[str] = []
    for part in PARTS:
        name = part.wire_name or part.name
        conditions += [f"{name} % 1 == 0"] if part.is_whole else []
        conditions += [f"{name} >= {part.least:g}", f"{name} <= {part.most:.0f}"]
    return " and ".join(conditions)


class Record:
    """Values in a fixed order, each with a name and a kind. On the wire they are numbers, packed as
    doubles: this costs less than text does, on both sides.
    """

    def __init__(self, kinds: Mapping[str, Kind]) -> None:
        self.names = tuple(kinds)
        self._zeros = [kind.zero for kind in kinds.values()]
        self._readers = [kind.read for kind in kinds.values()]
        self._struct = Struct(f">{len(self.names)}d")
        self.pack = self._struct.pack
        self.unpack_from = self._struct.unpack_from
        self.size = self._struct.size
        """In bytes."""

    def values(self, packed: bytes) -> list[Any]:
        """The values of the fields, from bytes that begin with the record."""
        return self.read(self.unpack_from(packed))

    def read(self, numbers: Iterable[float]) -> list[Any]:
        """The values of the fields, from their numbers."""
        return [read(number) for read, number in zip(self._readers, numbers, strict=True)]

    def fields(self, packed: bytes) -> dict[str, Any]:
        """The values of the fields by name, from bytes that begin with the record."""
        return dict(zip(self.names, self.values(packed), strict=True))

    def written_out(self, prefix: str) -> str:
        """The text that replaces the record's name with this prefix in a script."""
        if prefix == "zero":
            return ", ".join(map("{} = {}".format, self.names, self._zeros))
        if prefix == "zeros":
            return ", ".join(self._zeros)
        if prefix == "format":
            return f">{'d' * len(self.names)}"
        if prefix == "bytes":
            return str(self.size)
        return ", ".join(prefix + name for name in self.names)


LIMIT: Mapping[str, Kind] = {
    part.wire_name or part.name: Kind(
        "0" if part.default is None else f"{part.pack(part.default):g}"
    )
    for part in PARTS
}
HEAD = Record(
    {
        "lease": NUMBER,
        "step": NUMBER,  # the longest step of the clock
        "random": NUMBER,  # in [0, 1)
        "silent": NUMBER,  # time since the caller's last call; infinite: this is its first
        "machine": NUMBER,  # of the caller; 0: an operator
    }
)
"""The head of a call: see `clock.lua`."""
OF_KEYS = {
    "limit": Record(LIMIT),
    # The parts of a limit that hold starts back by themselves, besides concurrency and delay.
    "rest": Record(
        {
            part.wire_name or part.name: NUMBER
            for part in PARTS
            if not part.of and part.name not in ("concurrency", "delay")
        }
    ),
    # A node's entry of a scope: the field "node:<name>" of a scope's hash.
    "entry": Record(
        {
            "lease_id": NUMBER,  # of the node's lease
            "seq": NUMBER,  # the node's number of the latest update
            "requested": NUMBER,
            "granted": NUMBER,
            "returned": NUMBER,
            "started": NUMBER,
            "unstarted": NUMBER,  # permits that it holds whose requests have not begun
            "lease_end": NUMBER,  # when the entry will be closed, unless its node calls again
            "served": NUMBER,  # the scope's tick when it was last granted one, or began to wait
            "held_since": NUMBER,  # since when its oldest request holds a permit
            "waiting_since": NUMBER,  # since when its oldest request waits for one
            "suspended": NUMBER,  # further requests that wait while it pauses
            "failures": NUMBER,  # its requests without response, in a row
            "ended_at": NUMBER,  # when it last gave a permit back
            **LIMIT,  # that its node asks for
            "job": TEXT,  # of its node
        }
    ),
    # A scope's own: the field "state" of its hash.
    "state": Record(
        {
            **LIMIT,  # the strictest that nodes ask for; concurrency 0: nobody has yet
            "held": NUMBER,  # of all entries
            "waiting": NUMBER,  # of all entries
            "suspended": NUMBER,  # of all entries
            "unstarted": NUMBER,  # permits held whose requests have not begun
            "tick": NUMBER,  # counts grants and opened entries: it decides the order of the queue
            "due": NEVER,  # no entry is closed before this
            "granted_at": LONG_AGO,  # time of the last grant: starts reported since are newer
            "last_start": LONG_AGO,
            "chance": NUMBER,  # drawn for the jitter after it, in [-1, 1)
            "next_at_rate": LONG_AGO,  # the theoretical arrival time of the rate
            "started": NUMBER,  # requests begun since the scope was idle
            "notified": TEXT,  # the first node in the queue, if it knows when to ask again
            "expires": NUMBER,  # when the key expires, by the wall clock
            "listed": NUMBER,  # until when the index has the scope, by the wall clock
            "idle_since": NUMBER,  # NOW + QUIET then; its times are relative to it; 0: in use
            "job": TEXT,  # of all entries; false: they have several; true: too many to count
        }
    ),
    # What a site's answers have taught, which most scopes do not have: the field "learned".
    "learned": Record(
        {
            "backoff_end": NUMBER,  # no start before: the site refused one or asked for a pause
            "backoff": NUMBER,  # the last pause not set by the site, lowered by good answers
            **{name: NUMBER for policy in POLICIES for name in policy.learned},
            **{name: TEXT for policy in POLICIES for name in policy.learned_texts},
            "paused_at": NUMBER,  # when the last pause began, by the wall clock; 0: never
            "pause_length": NUMBER,
            "answered": NUMBER,  # when the newest request with a good answer began; 0: none
        }
    ),
}
