"""Crawls that some nodes share, and what became of their pages."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any

from benchmarks.harness.crawls import QUIET
from benchmarks.harness.shared_spider import RECORD
from benchmarks.harness.site import site
from tests.chaos.proxy import Proxy
from tests.support.servers import RedisServer

TIMEOUT_S = 600.0
PAGES_BEFORE = 5  # a node of scrapy-redis ends where it finds nothing queued
Settings = Callable[[str], Mapping[str, Any]]  # by the server's URL


@dataclass(frozen=True, slots=True)
class Site:
    """Linked pages of one host."""

    pages: int
    page_ms: float


class SharedCrawl:
    """A crawl on a server of its own. Its nodes are processes."""

    def __init__(self, settings: Settings, of: Site, round_trip_s: float, stack: ExitStack) -> None:
        self.server = RedisServer().start()
        stack.callback(self.server.remove)
        url = self.server.url
        if round_trip_s:
            url = stack.enter_context(_far_away(self.server.path, round_trip_s))
        self._settings = {**QUIET, **settings(url)}
        self._of = of
        self._directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        # Each page is a visitor of its own, so that its address has its number.
        self._address = stack.enter_context(site()).pages(of.page_ms, "{0}") + "{0}"
        self._nodes: list[subprocess.Popen[bytes]] = []
        stack.callback(self.stop)

    def start_node(self) -> subprocess.Popen[bytes]:
        number = len(self._nodes)
        plan = {
            "settings": {**self._settings, RECORD: str(self._directory / f"{number}.pages")},
            "address": self._address,
            "pages": self._of.pages,
        }
        with (self._directory / f"{number}.log").open("wb") as log:
            node = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.harness.shared_spider", json.dumps(plan)],
                env={name: value for name, value in os.environ.items() if name != "REDIS_URL"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._nodes.append(node)
        return node

    def start_two(self) -> subprocess.Popen[bytes]:
        """Two nodes that have both begun to work; the second of them."""
        self.start_node()
        self.wait_for(PAGES_BEFORE)
        second = self.start_node()
        self._wait_until(lambda: len(self._records()) == 2 and all(map(_is_begun, self._records())))
        return second

    def had(self) -> list[tuple[float, int]]:
        """When a callback has had which page; one that several nodes have had, several times."""
        found = []
        for path in self._records():
            for line in path.read_text("ascii").splitlines():
                moment, page = line.split()
                found.append((float(moment), int(page)))
        return found

    def wait_for(self, pages: int) -> None:
        """Until so many different pages were had."""
        self._wait_until(lambda: len({page for _, page in self.had()}) >= pages)

    def wait_for_the_end(self) -> None:
        """Until all nodes have ended by themselves."""
        self._wait_until(lambda: self._all_are(0, -SIGKILL), 0)

    def stop(self) -> None:
        """Kill the nodes that there are."""
        for node in self._nodes:
            node.kill()
            node.wait()

    def _wait_until(self, happened: Callable[[], bool], *allowed: int) -> None:
        """Raises `RuntimeError` if a node ends with another status, and was not killed."""
        end = time.monotonic() + TIMEOUT_S
        while not happened():
            if not self._all_are(None, -SIGKILL, *allowed) or time.monotonic() > end:
                raise RuntimeError(f"a crawl failed:\n{self._logs()}")
            time.sleep(0.05)

    def _all_are(self, *statuses: int | None) -> bool:
        return all(node.poll() in statuses for node in self._nodes)

    def _records(self) -> list[Path]:
        return list(self._directory.glob("*.pages"))

    def _logs(self) -> str:
        logs = sorted(self._directory.glob("*.log"))
        return "\n".join(log.read_text("utf-8", "replace")[-2000:] for log in logs)


def _is_begun(record: Path) -> bool:
    return record.stat().st_size > 0


@contextmanager
def shared_crawl(settings: Settings, of: Site, round_trip_s: float = 0.0) -> Iterator[SharedCrawl]:
    with ExitStack() as stack:
        yield SharedCrawl(settings, of, round_trip_s, stack)


@contextmanager
def _far_away(path: Path, round_trip_s: float) -> Iterator[str]:
    """The URL of a server whose replies take so much longer."""
    proxy = Proxy(path)
    proxy.delay = round_trip_s / 2
    ready = threading.Event()
    ends: list[Callable[[], object]] = []

    async def serve() -> None:
        loop, end = asyncio.get_running_loop(), asyncio.Event()
        ends.append(lambda: loop.call_soon_threadsafe(end.set))
        async with proxy:
            ready.set()
            await end.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    ready.wait()
    try:
        yield proxy.url
    finally:
        ends[0]()
        thread.join()
