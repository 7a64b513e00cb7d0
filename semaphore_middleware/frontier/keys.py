"""The names of a shared crawl's keys, and of the places in its queue."""

from __future__ import annotations

import itertools
import struct

from semaphore_middleware.model import chance
from semaphore_middleware.model.hosts import encoded

PARTS = (
    *("run", "nodes", "working", "seen", "requests", "queue", "sites", "taken"),
    *("suspects", "tries", "aside"),
)
"""The keys, in the order in which the scripts take them."""
TRIALS = ("trial:hash", "trial:queue", "trial:set")
"""Keys that exist only while a script tries what it may do."""
ORDER_LENGTH = 18
"""Bytes of a place after its site: 8 of the score, 6 of a number, 4 of the process."""


class CrawlKeys:
    """The names of all keys of a crawl: they begin with `{<prefix>:<name>}`, so they are in one
    hash slot.
    """

    def __init__(self, prefix: str, name: str) -> None:
        self.hash_tag = f"{prefix}:{name}"
        """What stands in the braces of all keys, and so decides on their slot."""
        self.all = tuple(self.of(part) for part in PARTS)
        self.trials = tuple(self.of(part) for part in TRIALS)
        self.channel = self.of("notifications")

    def of(self, part: str) -> bytes:
        """The name of one key."""
        return b"{%b}:%b" % (encoded(self.hash_tag), encoded(part))

    @property
    def tag(self) -> str:
        """What all keys and channels begin with, for people."""
        return f"{{{self.hash_tag}}}"


class Places:
    """Makes places for this process's new requests: names that no others have, and that are in the
    order in which the requests of a site are to be taken.
    """

    def __init__(self) -> None:
        # Made here: the server might repeat itself after it has lost data.
        self._process = chance.source.randbytes(4)
        self._numbers = itertools.count(1)

    def new(self, site: str, score: float) -> bytes:
        """A place in the site's queue: the lowest score is first; of equals, the first made."""
        number = next(self._numbers).to_bytes(6, "big")
        return b"%b\0%b%b%b" % (_encoded_site(site), _sortable(score), number, self._process)


def site_of(place: bytes) -> str:
    """The site in whose queue this place is."""
    return place[: -ORDER_LENGTH - 1].decode("utf-8", "surrogatepass")


def _encoded_site(site: str) -> bytes:
    return encoded(site).replace(b"\0", b" ")


def _sortable(score: float) -> bytes:
    """Eight bytes that are in the order of the numbers."""
    (bits,) = struct.unpack(">Q", struct.pack(">d", score + 0.0))
    return struct.pack(">Q", bits ^ (2**64 - 1 if bits >> 63 else 2**63))
