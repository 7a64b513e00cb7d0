"""A node's view of its run: an extension that appends what happens to its permits to a file."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from collections.abc import Callable
from typing import Any, Self
from weakref import WeakKeyDictionary

from scrapy import Request, signals
from scrapy.crawler import Crawler

from semaphore_middleware.core.permit import Permit, Stage
from tests.chaos import mutants

BEAT_S = 0.1  # between two looks at how late the event loop is
BLOCKED_S = 0.3  # as late as this is no longer a busy moment

_permits: WeakKeyDictionary[Request, str] = WeakKeyDictionary()
"""The ids that permits have in the history, by the requests that they were granted for."""


class Signature:
    """A downloader middleware after the semaphore's: tells the site which node this is, and which
    permit it has.

    Not USER_AGENT: a request that goes back to the others takes its headers along.
    """

    def __init__(self, node: str) -> None:
        self._node = node

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler.settings["CHAOS_NODE"])

    def process_request(self, request: Request) -> None:
        request.headers["User-Agent"] = self._node
        request.headers["Permit"] = _permits.get(request, "")


class Recorder:
    """Writes what happens to this node's permits into its history.

    Each line is one `write` to the kernel, so that nothing is missing after a kill.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._node: str = crawler.settings["CHAOS_NODE"]
        self._file = os.open(
            crawler.settings["CHAOS_HISTORY"], os.O_WRONLY | os.O_APPEND | os.O_CREAT
        )
        self._watch_permits()
        if name := crawler.settings.get("CHAOS_MUTANT"):
            mutants.plant(name)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        recorder = cls(crawler)
        crawler.signals.connect(recorder._opened, signals.spider_opened)
        crawler.signals.connect(recorder._stopped, signals.engine_stopped)
        return recorder

    def note(self, what: str, **facts: Any) -> None:
        event = {"at": time.monotonic(), "what": what, "node": self._node, **facts}
        os.write(self._file, json.dumps(event).encode() + b"\n")

    def _watch_permits(self) -> None:
        """Permits of this process tell their grant after it is true, and their end before."""
        grant, lose, release = Permit.grant, Permit.lose, Permit.release
        note = self.note
        numbers = itertools.count()
        held: dict[Permit, int] = {}  # with the numbers that they have in the history

        def noted_grant(permit: Permit, *how: Any) -> None:
            held[permit] = next(numbers)
            if isinstance(permit.owner, Request):
                _permits[permit.owner] = str(held[permit])
            note("grant", host=permit.scope, id=str(held[permit]))
            grant(permit, *how)

        def noted_lose(permit: Permit, *why: Any) -> None:
            note("lost", host=permit.scope, id=str(held.pop(permit)))
            lose(permit, *why)

        def noted_release(permit: Permit) -> None:
            if permit.stage is Stage.HELD:
                note("release", host=permit.scope, id=str(held.pop(permit)))
            release(permit)

        ours: dict[str, Callable[..., None]] = {
            "grant": noted_grant,
            "lose": noted_lose,
            "release": noted_release,
        }
        for name, method in ours.items():
            setattr(Permit, name, method)

    def _opened(self) -> None:
        self.note("clock", seconds=time.time() - time.monotonic())
        self._beat(asyncio.get_running_loop().time())

    def _beat(self, expected: float) -> None:
        """Note when the loop was blocked, by the spider or by a machine that had too much to do."""
        loop = asyncio.get_running_loop()
        late = loop.time() - expected
        if late > BLOCKED_S:
            self.note("blocked", seconds=late + BEAT_S)
        loop.call_later(BEAT_S, self._beat, loop.time() + BEAT_S)

    def _stopped(self) -> None:
        stat = self._crawler.stats.get_value
        self.note("closed", count=int(stat("semaphore/stalls", 0)))
        self.note("lost permits", count=int(stat("semaphore/lost", 0)))
