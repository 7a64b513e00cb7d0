"""The names of a shared crawl's keys, and of its requests' places in the queues."""

from __future__ import annotations

import itertools
import struct

from semaphore_middleware.link import chance
from semaphore_middleware.link.text import encoded

PARTS = (
    "run",
    "nodes",
    "working",
    "seen",
    "requests",
    "queue",
    "sites",
    "taken",
    "takers",
    "suspects",
    "aside",
    "failed",
    "hungry",
    "claims",
    "budgets",
    "stats",
)
"""The keys, in the order of the scripts' KEYS."""
ORDER_LENGTH = 18
"""Bytes of a place after its site: 8 of the score, 6 of a number, 4 of the process."""
NUMBERS = 2**47
"""More than a process has of start requests, or of others. Start requests come last."""


class CrawlKeys:
    """The names of all keys of a crawl: they begin with `{<prefix>:<name>}`, so they are in one
    hash slot.
    """

    def __init__(self, prefix: str, name: str) -> None:
        self.hash_tag = f"{prefix}:{name}"
        """The text in the braces of all keys, which determines their slot."""
        self.all = tuple(self.key(part) for part in PARTS)
        self.channels = self.key("node:")
        """The beginning of the nodes' channels: each node listens to its own."""

    def key(self, part: str) -> bytes:
        return b"{%b}:%b" % (encoded(self.hash_tag), encoded(part))


def index_key(prefix: str) -> bytes:
    """The name of the sorted set of all crawls' `run` keys, for operators. It exists from the first
    survey on; a cluster has none.
    """
    return CrawlKeys(prefix, "").key("index")


class Places:
    """Makes places for this process's new requests: unique names, in the order of a site's queue.

    The queue is ordered by score. Among equal scores, start requests come after the others, and
    within each kind the newest or the oldest one is first.
    """

    def __init__(self, last_first: bool = False, last_start_first: bool = False) -> None:
        self._last_first = last_first, last_start_first
        # Made here: a number from the server might repeat after a loss of data.
        self._process = chance.source.randbytes(4)
        self._numbers = itertools.count(1)

    def new_place(self, site: str, score: float, is_start: bool = False) -> bytes:
        """A place in the site's queue: the lowest score is first."""
        number = next(self._numbers)
        if self._last_first[is_start]:
            number = NUMBERS - number
        order = (is_start * NUMBERS + number).to_bytes(6, "big")
        name = encoded(site).replace(b"\0", b" ")
        return b"%b\0%b%b%b" % (name, _sortable(score), order, self._process)


def site_of(place: bytes) -> str:
    """The site of a place."""
    return place[: -ORDER_LENGTH - 1].decode("utf-8", "surrogatepass")


def _sortable(score: float) -> bytes:
    """Eight bytes, ordered like the numbers."""
    (bits,) = struct.unpack(">Q", struct.pack(">d", score + 0.0))
    return struct.pack(">Q", bits ^ (2**64 - 1 if bits >> 63 else 2**63))
