"""Records of the wire and of the keys: each names its numbers once, for Python and for Lua.

Times are in milliseconds by the epoch's clock, unless it says otherwise. The scripts name records
in their source, and `scripts.assembled` puts the names there:

    @scope.(state)      scope.concurrency, scope.delay, scope.jitter, ...
    @zero(state)        concurrency = 0, delay = 0, jitter = 0, ...
    @zeros(reply)       0, 0, 0, ... (-1 for what may be None)
    @format(reply)      >ddddddddddddd
    @bytes(reply)       104
    @status(lost)       1
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from struct import Struct
from typing import Any, Literal, get_args

Status = Literal["ok", "lost", "old", "refused", "unreadable"]
STATUSES: tuple[Status, ...] = get_args(Status)
"""Of replies, which say them by their places here."""
READERS: dict[str, Callable[[float], Any]] = {
    "int": int,
    "float": float,
    "bool": bool,
    "int | None": lambda number: int(number) or None,
    "float | None": lambda ms: ms / 1000 if ms >= 0 else None,
    "Status": lambda place: STATUSES[int(place)],
}
"""By the type of a field that is a number on the wire: its value."""


def numbers_of(*described: type) -> dict[str, str]:
    """The fields of dataclasses that are numbers on the wire: their types, by name."""
    types = {one.name: str(one.type) for each in described for one in fields(each)}
    return {name: kind for name, kind in types.items() if kind in READERS}


class Record:
    """Numbers in a fixed order, each with a name, and a type if they are those of a dataclass. On
    the wire they are doubles: packing these costs less than text does, on both sides.
    """

    def __init__(self, numbers: Iterable[str] | Mapping[str, str]) -> None:
        types = numbers if isinstance(numbers, Mapping) else dict.fromkeys(numbers, "float")
        self.names = tuple(types)
        self._zeros = ["-1" if kind == "float | None" else "0" for kind in types.values()]
        self._readers = [READERS[kind] for kind in types.values()]
        self._struct = Struct(f">{len(self.names)}d")
        self.pack = self._struct.pack
        self.unpack_from = self._struct.unpack_from
        self.size = self._struct.size
        """In bytes."""

    def values(self, packed: bytes) -> list[Any]:
        """The values that such fields have, from what begins with the record."""
        numbers = zip(self._readers, self.unpack_from(packed), strict=True)
        return [read(number) for read, number in numbers]

    def fields(self, packed: bytes) -> dict[str, Any]:
        """The same, by name."""
        return dict(zip(self.names, self.values(packed), strict=True))

    def written_out(self, prefix: str) -> str:
        """What a script says where it names the record with this prefix."""
        if prefix == "zero":
            return ", ".join(map("{} = {}".format, self.names, self._zeros))
        if prefix == "zeros":
            return ", ".join(self._zeros)
        if prefix == "format":
            return f">{'d' * len(self.names)}"
        if prefix == "bytes":
            return str(self.size)
        return ", ".join(prefix + name for name in self.names)


LIMIT = (
    "concurrency",
    "delay",
    "jitter",
    "adaptive",  # 1 or 0; in `state` true or false
    "interval",  # between two starts at the rate; 0: there is none
    "burst",
)
HEAD = Record(
    (
        "lease",
        "step",  # the longest of the clock
        "random",  # a number in [0, 1)
        "silent",  # for how long the caller has been; infinite: it calls for the first time
        "history",  # for how long what is done to sites is kept; 0: not at all
    )
)
"""What a call begins with: see `clock.lua`."""
OF_KEYS = {
    "limit": Record(LIMIT),
    # A node's account: the field "node:<name>" of a scope's hash.
    "account": Record(
        (
            *("term", "seq"),  # the node's numbers of the account, and of the latest statement
            *("asked", "granted", "returned", "started"),
            "pending",  # of the permits that it holds, those under which no request has begun
            "lease_end",  # when the account is closed, unless its node speaks again
            "served",  # the scope's tick when it was last granted a permit, or opened
            *("held_since", "waiting_since"),  # since when its oldest request holds, or waits
            *LIMIT,  # that its node asks for
            *("job", "weight"),  # of its node; texts
        )
    ),
    # A scope's own: the field "state" of its hash.
    "state": Record(
        (
            *LIMIT,  # the strictest that nodes ask for; concurrency 0: nobody has yet
            *("held", "waiting"),  # of all accounts
            "pending",  # of the permits held, those under which no request has begun
            "tick",  # counts what decides whose turn it is: grants, and accounts that are opened
            "due",  # no account is to be closed before this
            "last_start",
            "chance",  # the number drawn for the jitter after it, in [-1, 1)
            "next_at_rate",  # the theoretical arrival time of the rate
            "started",  # requests that got a permit since the scope was idle
            "told",  # the first node in the queue, if it was told when to ask again
            "expires",  # when the key expires, by the wall clock
            "idle_since",  # NOW + QUIET then; starts and the backoff's end count from it; 0: in use
            "job",  # of all accounts; false: they are of several
        )
    ),
    # What a site's answers have taught, which most scopes do not have: the field "learned".
    "learned": Record(
        (
            "backoff_end",  # no start before: the site refused a request, or asked for a pause
            "backoff",  # the last pause that the site did not set itself, lowered by good answers
            *("failures", "failing_since"),  # requests without response in a row; the first's time
            "is_down",  # 1 if requests are to fail, but for one at a time
            "paused_at",  # when the last pause of any kind began, by the wall clock; 0: never
            "answered",  # when the youngest request began that was answered well; 0: none
            # Of adaptive limits:
            "working",  # the working limit, not rounded; 0: none yet
            "base",  # the site's usual latency, as the logarithm of milliseconds; 0: not known
            "steady",  # 1 once the working limit has been too high, and so grows slowly
            *("samples", "sum", "since"),  # of latencies under this working limit
        )
    ),
    # A pause that began at a site: the field "pause:<wall clock>" of the hash of an hour.
    "pause": Record(
        (
            "length",
            "asked",  # by the site itself; 0: it named no time
            "refused",  # 1 if the site refused a request; 0: it did not respond, or asked only
            "last",  # how long after its beginning the last request began; -1: none did
        )
    ),
}
