"""New requests on their way to the server."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from scrapy import Request

from semaphore_middleware.model.validation import check_priority
from semaphore_middleware.shared_crawl.client import NewRequest, Queued, unreadable_start
from semaphore_middleware.shared_crawl.codec import Codec
from semaphore_middleware.shared_crawl.keys import Places
from semaphore_middleware.shared_crawl.prefetch import Prefetch
from semaphore_middleware.shared_crawl.spider_start import SpiderStart

# In a call: a longer one would hold up the server's other clients.
MAX_NEW_REQUESTS = 500
MAX_NEW_BYTES = 1_000_000  # except for a single larger request
MAX_LOOP_HOLD_S = 0.01  # the longest time that start requests hold the event loop


class NewRequests:
    """A node's requests for the server, in their order. No I/O.

    A promoted server may lack the last calls. Repeated callbacks then yield their requests again,
    but start requests come from no callback. So recent requests are kept until the second
    check of the server after them, and sent again if necessary.
    """

    def __init__(
        self, codec: Codec, places: Places, prefetch: Prefetch, start: SpiderStart
    ) -> None:
        self._codec = codec
        self._places = places
        self._prefetch = prefetch
        self._start = start
        self._unsent: deque[tuple[NewRequest, Request | None]] = deque()  # None: sent again
        self._sent: list[NewRequest] = []  # since the last check of the server
        self._sent_before: list[NewRequest] = []  # between that check and the one before it
        self._has_room = asyncio.Event()
        self._paused_at = 0.0  # by the loop's clock

    def __len__(self) -> int:
        return len(self._unsent)

    async def throttled(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """The spider's start requests. The scheduler adds each before it asks for the next. In
        between, other tasks get their time, and the next request waits while many are unsent.
        """
        async for item in self._start.watched(start):
            yield item
            await self._pause()

    async def _pause(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() - self._paused_at > MAX_LOOP_HOLD_S:
            await asyncio.sleep(0)
            self._paused_at = loop.time()
        while len(self._unsent) > 2 * MAX_NEW_REQUESTS:
            self._has_room.clear()
            await self._has_room.wait()

    def add_request(self, request: Request) -> None:
        """Add a request. Raises any error for one that cannot be stored."""
        place = self._new_place(request, self._start.is_start(request))
        new = self._codec.encode(place, request, self._start.is_listed(request))
        self._unsent.append((new, request))

    def _new_place(self, request: Request, is_start: bool) -> bytes:
        return self._places.new_place(
            self._prefetch.site_of(request),
            -check_priority(request.priority, "priority"),
            is_start,
        )

    def add_reserved(self, reservation: bytes, text: bytes) -> None:
        """Add a start request of the users' key. A wrong text becomes a dead letter, and raises
        any error.
        """
        try:
            request = self._codec.start_of(text.decode())
            new = self._codec.encode(
                self._new_place(request, True), request, reservation=reservation
            )
        except Exception:
            self._unsent.append((unreadable_start(reservation), None))
            raise
        self._unsent.append((new, request))

    def next_batch(self, limit: int) -> list[NewRequest]:
        """The first requests, at most `limit` of them, for the next call."""
        new: list[NewRequest] = []
        room = MAX_NEW_BYTES
        for encoded, _ in islice(self._unsent, limit):
            room -= len(encoded.data)
            if new and room < 0:
                break
            new.append(encoded)
        return new

    def on_queued(self, queued: Sequence[Queued]) -> list[tuple[Request, Queued]]:
        """Apply a reply. Returns the call's requests with their results, without those sent
        again.
        """
        done = [(*self._unsent.popleft(), reply) for reply in queued]
        self._sent += [new for new, _, _ in done]
        self._has_room.set()
        return [(request, reply) for _, request, reply in done if request is not None]

    def on_same_server(self) -> None:
        """A check of the server has found it unchanged."""
        self._sent_before = self._sent  # promise: what is sent is forgotten
        self._sent = []

    def send_again(self) -> None:
        """The server has changed: first send all requests that it may lack."""
        again = [(new, None) for new in self._sent_before + self._sent]  # promise: sent again
        self._sent_before = []
        self._sent = []
        self._unsent.extendleft(reversed(again))

    def begin_anew(self) -> None:
        """The server has lost the run, and with it the reservations of its start requests."""
        self._unsent = deque(
            (replace(new, reservation=b""), request) for new, request in self._unsent if new.place
        )

    def clear(self) -> list[Request]:
        """Forget all requests. Returns the unsent ones, without those to be sent again."""
        requests = [request for _, request in self._unsent if request is not None]
        self._unsent.clear()
        self._sent_before = []
        self._sent = []
        self._has_room.set()
        return requests
