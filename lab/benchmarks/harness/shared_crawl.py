"""Crawls that some nodes share, and what became of their pages."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from signal import SIGKILL
from typing import Any

from lab.benchmarks.harness.crawls import RECORD, start_spider
from lab.benchmarks.harness.site import site
from tests.support.blocking import result_of
from tests.support.proxy import Wire
from tests.support.servers import RedisServer

TIMEOUT_S = 120.0
PAGE_MS = 20
PAGES_BEFORE = 5  # a node of scrapy-redis ends where it finds nothing queued
Settings = Callable[[str], Mapping[str, Any]]  # by the server's URL


class SharedCrawl:
    """A crawl of so many linked pages, on a server of its own, until the end of the stack.

    Its nodes are processes.
    """

    def __init__(
        self,
        stack: ExitStack,
        settings: Settings,
        pages: int,
        round_trip_s: float = 0.0,
        *,
        hosts: int = 1,
        page_ms: int = PAGE_MS,
    ) -> None:
        self.server = stack.enter_context(RedisServer())
        url = self.server.url
        if round_trip_s:
            url = stack.enter_context(_far_away(self.server.path, round_trip_s))
        self._settings = settings(url)
        self._of_spider = {"pages": pages, "hosts": hosts}
        self._directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        # Each page is a visitor of its own, so that its address has its number.
        of_site = stack.enter_context(site())
        self._address = of_site.pages(page_ms, "{page}", "{host}.test") + "{page}"
        self._nodes: list[subprocess.Popen[bytes]] = []
        stack.callback(self.stop)

    def start_node(self) -> subprocess.Popen[bytes]:
        number = len(self._nodes)
        settings = {**self._settings, RECORD: str(self._directory / f"{number}.pages")}
        with (self._directory / f"{number}.log").open("wb") as log:
            node = start_spider("linked", settings, log, address=self._address, **self._of_spider)
        self._nodes.append(node)
        return node

    def start_nodes(self, nodes: int = 2) -> subprocess.Popen[bytes]:
        """So many nodes that have all begun to work; the last of them."""
        last = self.start_node()
        self.wait_for(PAGES_BEFORE)
        for _ in range(nodes - 1):
            last = self.start_node()
        self.wait_until(lambda: sum(path.stat().st_size > 0 for path in self._records()) == nodes)
        return last

    def had(self) -> list[tuple[float, int]]:
        """When a callback has had which page; one that several nodes have had, several times."""
        lines = [line for path in self._records() for line in path.read_text("ascii").splitlines()]
        return [(float(moment), int(page)) for moment, page in map(str.split, lines)]

    def wait_for(self, pages: int) -> None:
        """Until so many different pages were had."""
        self.wait_until(lambda: len({page for _, page in self.had()}) >= pages)

    def wait_for_the_end(self) -> None:
        """Until all nodes have ended by themselves."""
        self.wait_until(lambda: None not in [node.poll() for node in self._nodes])

    def stop(self) -> None:
        """Kill the nodes that there are."""
        for node in self._nodes:
            node.kill()
            node.wait()

    def wait_until(self, happened: Callable[[], bool]) -> None:
        """Raises `RuntimeError` if a node fails, or it takes too long."""
        end = time.monotonic() + TIMEOUT_S
        while not happened():
            failed = {node.poll() for node in self._nodes} - {None, 0, -SIGKILL}
            if failed or time.monotonic() > end:
                logs = [log.read_text("utf-8", "replace") for log in self._directory.glob("*.log")]
                raise RuntimeError("\n".join(["a crawl failed:", *(log[-2000:] for log in logs)]))
            time.sleep(0.05)

    def _records(self) -> list[Path]:
        return list(self._directory.glob("*.pages"))


@contextmanager
def _far_away(path: Path, round_trip_s: float) -> Iterator[str]:
    """The URL of a server whose replies take so much longer."""
    proxy = Wire(path)
    proxy.delay_s = round_trip_s / 2
    result_of(proxy.__aenter__())
    try:
        yield proxy.url
    finally:
        result_of(proxy.__aexit__())
