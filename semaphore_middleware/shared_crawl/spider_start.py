"""The spider's own `start()`: a list of requests, which each node makes, or a feed of them."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from typing import Any
from weakref import WeakSet

from scrapy import Request

logger = logging.getLogger(__name__)

FEED_AFTER_S = 1.0


class SpiderStart:
    """What the spider's `start` yields. Times are the event loop's.

    Each node makes all requests of a list, so each is queued once a run. A feed, such as a reader
    of a queue, yields requests that no other node makes. `start` counts as a feed once it has
    waited for `FEED_AFTER_S` while its node had nothing to do: a list has no reason to wait. `once`
    is the user's setting: True for a list, False for a feed, None if it is unknown.
    """

    def __init__(self, once: bool | None) -> None:
        self._once = once
        self._requests: WeakSet[Request] = WeakSet()
        self._is_feed = False
        self._waits_since = math.inf  # for the next request
        self._idle_since = math.inf
        self._dropped: Request | None = None  # the first one that the run had already
        self._has_warned = False

    async def watched(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Pass on what `start` yields, and note how long each item takes."""
        loop = asyncio.get_running_loop()
        self._waits_since = loop.time()
        try:
            async for item in start:
                self._notice_feed(loop.time())
                self._waits_since = math.inf
                if isinstance(item, Request):
                    self._requests.add(item)
                yield item
                self._waits_since = loop.time()
        finally:
            self._waits_since = math.inf

    @property
    def is_feed(self) -> bool:
        """True if other nodes do not make what `start` yields."""
        return self._is_feed or self._once is False

    def is_start(self, request: Request) -> bool:
        return request in self._requests

    def is_listed(self, request: Request) -> bool:
        """True if each node makes this request, so that it must be queued only once a run."""
        is_fed = self._is_feed and request.dont_filter
        return self._once is not False and self.is_start(request) and not is_fed

    # Reports of the node ------------------------------------------------------------------------

    def on_idle(self, now: float) -> None:
        self._idle_since = min(self._idle_since, now)
        self._notice_feed(now)

    def on_busy(self) -> None:
        self._idle_since = math.inf

    def on_duplicate(self, request: Request, is_repeated: bool) -> None:
        """The run had a request already; `is_repeated`: this node has made it more than once."""
        if request.dont_filter and self.is_start(request):
            self._dropped = self._dropped or request
            if is_repeated or self._is_feed:
                self._warn()

    def _notice_feed(self, now: float) -> None:
        waited = now - max(self._waits_since, self._idle_since)
        if self._once is not None or self._is_feed or waited < FEED_AFTER_S:
            return
        self._is_feed = True
        logger.info(
            "start() has waited for %.0f s while this node had nothing to do, so it counts as a "
            "feed of requests, and no longer as a list that each node makes: from now on, all that "
            "it yields with dont_filter=True is fetched. CRAWL_START_ONCE = True makes it a list",
            waited,
        )
        self._warn()

    def _warn(self) -> None:
        if self._dropped is None or self._once is not None or self._has_warned:
            return
        self._has_warned = True
        logger.warning(
            "%s of start() is dropped: this run had it already, from this node or another one. If "
            "start() reads a queue, set CRAWL_START_ONCE = False: then all that it yields with "
            "dont_filter=True is fetched. If each node makes the same start requests, set it to "
            "True",
            self._dropped,
        )
