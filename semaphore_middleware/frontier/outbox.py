"""New requests on their way to the server."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import islice
from typing import Any
from weakref import WeakSet

from scrapy import Request

from semaphore_middleware.frontier.client import NewRequest, Queued, given_up
from semaphore_middleware.frontier.codec import Codec

# In a call: a longer one would hold up the server's other clients.
MAX_NEW_REQUESTS = 500
MAX_NEW_BYTES = 1_000_000  # but for one request that is larger
MAX_LOOP_HOLD_S = 0.01  # for which start requests may keep the event loop


class Outbox:
    """The requests that a node has to queue on the server, in their order. No I/O.

    A server that was promoted may lack the last calls. Callbacks that are repeated then yield their
    requests again, but start requests come from no callback. So what was queued of late is kept,
    from one look at the server to the next but one, to be sent again.

    `place_of(request, is_start)` gives a request's place in the queue of its site.
    """

    def __init__(self, codec: Codec, place_of: Callable[[Request, bool], bytes]) -> None:
        self._codec = codec
        self._place_of = place_of
        self._unsent: deque[tuple[NewRequest, Request | None]] = deque()  # None: sent again
        self._sent: list[NewRequest] = []  # since the last look at the server
        self._sent_before: list[NewRequest] = []  # that look, and since the one before it
        self._starts: WeakSet[Request] = WeakSet()  # those of the spider
        self.claims: set[bytes] = set()
        """Of start requests from the users' key that are not queued yet."""
        self._has_room = asyncio.Event()
        self._rested_at = 0.0  # by the loop's clock

    def __len__(self) -> int:
        return len(self._unsent)

    async def paced(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """The spider's start requests, each of which is added before the next one is asked for.
        Between two, others have a turn of the event loop now and then, and while many requests are
        still to be sent, the next one waits.
        """
        async for item in start:
            if isinstance(item, Request):
                self._starts.add(item)
            yield item
            await self._rest()

    async def _rest(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() - self._rested_at > MAX_LOOP_HOLD_S:
            await asyncio.sleep(0)
            self._rested_at = loop.time()
        while len(self._unsent) > 2 * MAX_NEW_REQUESTS:
            self._has_room.clear()
            await self._has_room.wait()

    def add(self, request: Request) -> None:
        """Add a request. Raises any error for one that cannot be stored."""
        is_start = request in self._starts
        new = self._codec.encode(self._place_of(request, is_start), request, is_start)
        self._unsent.append((new, request))

    def add_claimed(self, claim: bytes, text: bytes) -> None:
        """Add a start request of the users' key; if its text has none, give the claim up, and raise
        the error that says why.
        """
        self.claims.add(claim)
        try:
            request = self._codec.start_of(text.decode("utf-8", "replace"))
            new = self._codec.encode(self._place_of(request, True), request, claim=claim)
        except Exception:
            self._unsent.append((given_up(claim), None))
            raise
        self._unsent.append((new, request))

    def next(self, most: int) -> list[NewRequest]:
        """What the next call brings: so many requests at most."""
        new: list[NewRequest] = []
        room = MAX_NEW_BYTES
        for encoded, _ in islice(self._unsent, most):
            room -= len(encoded.data)
            if new and room < 0:
                break
            new.append(encoded)
        return new

    def on_queued(self, queued: Sequence[Queued]) -> list[tuple[Request, Queued]]:
        """A call was answered. What has become of its requests, but for those sent again."""
        done = [(*self._unsent.popleft(), one) for one in queued]
        self._sent += [new for new, _, _ in done]
        self.claims.difference_update(new.claim for new, _, _ in done)
        self._has_room.set()
        return [(request, one) for _, request, one in done if request is not None]

    def on_same_server(self) -> None:
        """A look at the server has found the same one."""
        self._sent_before, self._sent = self._sent, []

    def send_again(self) -> None:
        """The server is another one: send first what it may lack."""
        again = [(new, None) for new in self._sent_before + self._sent]
        self._sent_before, self._sent = [], []
        self._unsent.extendleft(reversed(again))

    def clear(self) -> list[Request]:
        """Forget what is unsent, and return it, but for what was to be sent again."""
        requests = [request for _, request in self._unsent if request is not None]
        self._unsent.clear()
        self._has_room.set()
        return requests
