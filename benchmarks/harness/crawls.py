"""Starts the crawls that are measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO, Any

from benchmarks.harness.site import Visit, site
from tests.support.servers import RedisServer

# Scrapy's own, but for what would want a port or tell of every page.
QUIET: Mapping[str, Any] = {
    "DNS_RESOLVER": "benchmarks.harness.spider.Loopback",
    "LOG_LEVEL": "INFO",
    "REMOTE_CONTROL_ENABLED": False,
    "TELNETCONSOLE_ENABLED": False,
}


def with_add_on(url: str, **settings: Any) -> dict[str, Any]:
    add_on = {"semaphore_middleware.addon.SemaphoreAddon": 500}
    return {"ADDONS": add_on, "SEMAPHORE_REDIS_URL": url, **settings}


@dataclass(frozen=True, slots=True)
class Outcome:
    pages: int
    time_per_page: float  # seconds of processor time, start-up and end taken off


class Crawl:
    """A crawl in a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        self._process = process
        self._log = log

    def outcome(self) -> Outcome:
        """Wait for its end."""
        told, _ = self._process.communicate()
        if self._process.returncode or not told:
            self._log.seek(0)
            raise RuntimeError(f"a crawl failed:\n{self._log.read().decode(errors='replace')}")
        return Outcome(**json.loads(told))


@contextmanager
def crawling(
    settings: Mapping[str, Any], sites: Sequence[tuple[str, int]], warm_up: int = 0
) -> Iterator[Crawl]:
    """Crawl so many pages of each site; killed at the end of the `with` if it still runs."""
    plan = {"settings": {**QUIET, **settings}, "sites": sites, "warm_up": warm_up}
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.harness.spider", json.dumps(plan)],
            env={name: value for name, value in os.environ.items() if name != "REDIS_URL"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
        ) as process,
    ):
        try:
            yield Crawl(process, log)
        finally:
            process.kill()


def crawl(
    settings: Mapping[str, Any], sites: Sequence[tuple[str, int]], warm_up: int = 0
) -> Outcome:
    with crawling(settings, sites, warm_up) as running:
        return running.outcome()


def crawl_together(nodes: int, manner: float | str, pages: int, **settings: Any) -> list[Visit]:
    """So many nodes with the add-on ask a site for so many pages each; what the site saw."""
    with ExitStack() as stack:
        of_site = stack.enter_context(site())
        server = RedisServer().start()
        stack.callback(server.remove)
        together = with_add_on(server.url, **settings)
        crawls = [
            stack.enter_context(crawling(together, [(of_site.pages(manner, f"node-{n}"), pages)]))
            for n in range(nodes)
        ]
        for node in crawls:
            node.outcome()
        return of_site.visits()
