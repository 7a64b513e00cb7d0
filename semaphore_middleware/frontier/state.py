"""What the server keeps of a shared crawl: the names of its keys, its size, its scripts."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Self

from semaphore_middleware.model import chance
from semaphore_middleware.model.hosts import encoded
from semaphore_middleware.redis import scripts

PARTS = (
    *("run", "nodes", "working", "seen", "requests", "queue", "sites", "taken"),
    *("suspects", "aside", "failed", "hungry", "claims", "budgets", "stats"),
)
"""The keys, in the order in which the scripts take them."""
TRIALS = ("trial:hash", "trial:queue")
"""Keys that exist only while a script tries what it may do."""
ORDER_LENGTH = 18
"""Bytes of a place after its site: 8 of the score, 6 of a number, 4 of the process."""
NUMBERS = 2**47
"""Of a process's requests of one kind: start requests, which come after the others, or others."""


class CrawlKeys:
    """The names of all keys of a crawl: they begin with `{<prefix>:<name>}`, so they are in one
    hash slot.
    """

    def __init__(self, prefix: str, name: str) -> None:
        self.hash_tag = f"{prefix}:{name}"
        """What stands in the braces of all keys, and so decides on their slot."""
        self.all = tuple(self.of(part) for part in PARTS)
        self.trials = tuple(self.of(part) for part in TRIALS)
        self.channels = self.of("node:")
        """What the channels' names begin with: each node listens to one of its own."""

    def of(self, part: str) -> bytes:
        """The name of one key."""
        return b"{%b}:%b" % (encoded(self.hash_tag), encoded(part))

    @property
    def tag(self) -> str:
        """What all keys and channels begin with, for people."""
        return f"{{{self.hash_tag}}}"


class Places:
    """Makes places for this process's new requests: names that no others have, and that are in the
    order in which the requests of a site are to be taken: by score, start requests after others,
    and of equals the last one made first, or the first one.
    """

    def __init__(self, last_first: bool, last_start_first: bool) -> None:
        self._last_first = last_first, last_start_first
        # Made here: the server might repeat itself after it has lost data.
        self._process = chance.source.randbytes(4)
        self._numbers = itertools.count(1)

    def new(self, site: str, score: float, is_start: bool = False) -> bytes:
        """A place in the site's queue: the lowest score is first."""
        number = next(self._numbers)
        if self._last_first[is_start]:
            number = NUMBERS - number
        order = (is_start * NUMBERS + number).to_bytes(6, "big")
        return b"%b\0%b%b%b" % (_encoded_site(site), _sortable(score), order, self._process)


def site_of(place: bytes) -> str:
    """The site in whose queue this place is."""
    return place[: -ORDER_LENGTH - 1].decode("utf-8", "surrogatepass")


def _encoded_site(site: str) -> bytes:
    return encoded(site).replace(b"\0", b" ")


def _sortable(score: float) -> bytes:
    """Eight bytes that are in the order of the numbers."""
    (bits,) = struct.unpack(">Q", struct.pack(">d", score + 0.0))
    return struct.pack(">Q", bits ^ (2**64 - 1 if bits >> 63 else 2**63))


SIZES = (
    *(("ZCARD", "sites"), ("ZCARD", "queue"), ("ZCARD", "suspects"), ("ZCARD", "taken")),
    *(("HLEN", "aside"), ("HLEN", "failed")),
)
"""Commands, and the keys that they are for."""
STATES = ("running", "stopped", "ended")


@dataclass(frozen=True, slots=True)
class Counts:
    """The size of a shared crawl."""

    exists: bool
    nodes: int  # that have joined and not left, and whose leases have not ended
    sites: int  # with queued requests
    queued: int  # requests that are to be taken
    taken: int  # requests that nodes have taken and not finished
    set_aside: int  # requests that three nodes have failed with
    failed: int  # requests that have brought no page: no response, or a server's error
    seen: int  # fingerprints
    pages: int  # that were fetched
    ended_at: float | None  # Unix time; a run that has fetched nothing has not ended

    @classmethod
    def of(cls, replies: Sequence[Any]) -> Self:
        """From the replies to `commands_for`."""
        time, nodes, *numbers, seen, (id, pages, ended, wall, clock, empty) = replies
        sites, queued, suspects, taken, set_aside, failed = numbers
        return cls(
            exists=id is not None,
            nodes=_living(nodes, time, float(wall or 0), float(clock or 0)),
            sites=sites,
            queued=queued + suspects,
            taken=taken,
            set_aside=set_aside,
            failed=failed,
            seen=int(seen or 0),
            pages=int(pages or 0),
            ended_at=float(ended) / 1000 if ended and id != empty else None,
        )

    @property
    def state(self) -> str:
        """One of `STATES`; stopped: it has not ended, and no node takes part."""
        running, stopped, ended = STATES
        if self.ended_at is not None:
            return ended
        return running if self.nodes else stopped

    @property
    def unfinished(self) -> int:
        """Requests that are queued, taken or set aside."""
        return self.queued + self.taken + self.set_aside


def commands_for(keys: CrawlKeys) -> list[tuple[Any, ...]]:
    """Commands that change nothing, for `Counts.of`."""
    nodes = ("ZRANGE", keys.of("nodes"), 0, -1, "WITHSCORES")
    sizes = [(command, keys.of(part)) for command, part in SIZES]
    run = ("HMGET", keys.of("run"), "id", "pages", "ended", "wall", "clock", "empty")
    return [("TIME",), nodes, *sizes, ("HGET", keys.of("seen"), "count"), run]


def _living(nodes: Sequence[bytes], time: Sequence[bytes], wall: float, clock: float) -> int:
    """How many nodes have a lease. Leases go by the crawl's clock, which stands still while nobody
    calls: of this silence the server's wall clock tells, as in end.lua.
    """
    seconds, microseconds = map(int, time)
    silent_ms = max(0.0, 1000 * seconds + microseconds // 1000 - wall)
    return sum(float(lease_end) > clock + silent_ms for lease_end in nodes[1::2])


NODES_SCRIPTS = ("join", "sync", "idle", "leave")
SCRIPTS = (*NODES_SCRIPTS, "take_starts", "end", "retry")


@cache
def script(name: str) -> str:
    """The source of a script, as it is sent to the server."""
    return scripts.assembled(source_of(name), source_of)


def source_of(file: str) -> str:
    """The source of one file below `frontier/lua/`, named without its ending; the wall
    clock is the semaphore's.
    """
    if file == "shared/wall":
        return scripts.source_of(file)
    return (resources.files("semaphore_middleware.frontier") / "lua" / f"{file}.lua").read_text(
        "utf-8"
    )
