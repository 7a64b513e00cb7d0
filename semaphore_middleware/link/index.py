"""An index of names on the server, so that commands and the page need not scan all keys."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from itertools import chain

from semaphore_middleware.link.connection import Connection
from semaphore_middleware.link.scripts import batches

COMPLETE = b"\0complete"
"""A member of the index: no name is missing there."""
INDEX_KEPT_MS = 8 * 86_400_000
"""After a change; longer than any scope's key is kept without a call."""
BEGUN = b"\0begun"  # a member of the index: scripts add new names from now on
NAMES_PER_CALL = 200


class Index:
    """A sorted set of names, by when they expire. A script makes it, or the first reader; scripts
    add later names. A user who may only read cannot make it, and scans all keys each time.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    async def names(
        self, connection: Connection, search: Callable[[], Awaitable[Collection[bytes]]]
    ) -> set[bytes]:
        """All names, and some that are gone. `search` finds them unless the index is complete."""
        listed = await connection.scan_set(self._key)
        if COMPLETE not in listed:
            await self._add(connection, [BEGUN], math.inf)
            listed = set(await search())
            await self._add(connection, listed, 1000 * time.time() + INDEX_KEPT_MS)
            await self._add(connection, [COMPLETE], math.inf)
        return listed - {BEGUN, COMPLETE}

    async def _add(self, connection: Connection, names: Iterable[bytes], until: float) -> None:
        for some in batches(list(names), NAMES_PER_CALL):
            added = chain(*((until, name) for name in some))
            expires = ("PEXPIRE", self._key, INDEX_KEPT_MS)  # each time: this may be interrupted
            await connection.call([("ZADD", self._key, *added), expires])
