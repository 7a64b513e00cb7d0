"""Crawls that are measured: their spiders, and who starts them.

`python -m lab.benchmarks.harness.crawls '<plan as JSON>'` is one of them, in a process of its own.
Its sites need no real names. A spider looks at no page, so that it takes little time itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from time import monotonic, process_time
from typing import IO, Any

from scrapy import Request, Spider
from scrapy.crawler import AsyncCrawlerProcess
from scrapy.http import Response
from scrapy.resolver import CachingThreadedResolver
from twisted.internet.defer import Deferred, succeed

AHEAD = 64  # requests of a site that `start` yields; each page yields one more
RECORD = "BENCHMARK_RECORD"  # a setting: the file; nodes of a crawl have the same arguments
BRANCHES = 8  # links down the tree that makes every page reachable
# Settings against what would need a port, or a log line for every page.
QUIET: Mapping[str, Any] = {
    "DNS_RESOLVER": "lab.benchmarks.harness.crawls.Loopback",
    "LOG_LEVEL": "INFO",
    "REMOTE_CONTROL_ENABLED": False,
    "TELNETCONSOLE_ENABLED": False,
}


def with_add_on(url: str, **settings: Any) -> dict[str, Any]:
    add_on = {"semaphore_middleware.SemaphoreAddon": 500}
    return {"ADDONS": add_on, "SEMAPHORE_REDIS_URL": url, **settings}


def start_spider(
    name: str, settings: Mapping[str, Any], log: IO[bytes], **arguments: Any
) -> subprocess.Popen[bytes]:
    """A spider in a process of its own."""
    plan = {"spider": name, "settings": {**QUIET, **settings}, "arguments": arguments}
    return subprocess.Popen(
        [sys.executable, "-m", "lab.benchmarks.harness.crawls", json.dumps(plan)],
        env={name: value for name, value in os.environ.items() if name != "REDIS_URL"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
    )


@contextmanager
def crawling(
    settings: Mapping[str, Any],
    sites: Sequence[tuple[str, int]],
    warm_up: int = 0,
    ahead: int = AHEAD,
) -> Iterator[Callable[[], float]]:
    """Crawl so many pages of each site; killed at the end of the `with` if it still runs.

    What it yields waits for the end, and returns seconds of processor time a page, start-up and end
    taken off.
    """

    def wait() -> float:
        told, _ = process.communicate()
        if process.returncode or not told:
            log.seek(0)
            raise RuntimeError(f"a crawl failed:\n{log.read().decode(errors='replace')}")
        return float(told)

    with (
        tempfile.TemporaryFile() as log,
        start_spider("pages", settings, log, sites=sites, warm_up=warm_up, ahead=ahead) as process,
    ):
        try:
            yield wait
        finally:
            process.kill()


def crawl(
    settings: Mapping[str, Any],
    sites: Sequence[tuple[str, int]],
    warm_up: int = 0,
    ahead: int = AHEAD,
) -> float:
    with crawling(settings, sites, warm_up, ahead) as wait:
        return wait()


# In a process -----------------------------------------------------------------------------------


class Loopback(CachingThreadedResolver):
    """Every name is this machine's."""

    def getHostByName(self, name: str, timeout: Any = ()) -> Deferred[str]:  # noqa: ARG002, N802
        return succeed("127.0.0.1")


class Pages(Spider):
    """Requests so many pages of each site, and prints the processor time of each."""

    name = "pages"

    def __init__(
        self, sites: list[tuple[str, int]], warm_up: int, ahead: int, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._ahead = ahead
        self._sites = sites  # addresses to which a number is added, and how many of them
        self._warm_up = warm_up
        self._pages = 0
        self._time_before = 0.0

    async def start(self) -> AsyncIterator[Any]:
        for address, pages in self._sites:
            more = iter([f"{address}{number}" for number in range(pages)])
            for url in islice(more, self._ahead):
                yield Request(url, cb_kwargs={"more": more})

    def parse(self, response: Response, more: Iterator[str]) -> Any:  # noqa: ARG002
        if self._pages == self._warm_up:
            self._time_before = process_time()
        self._pages += 1
        if url := next(more, None):
            yield Request(url, cb_kwargs={"more": more})

    def closed(self, reason: str) -> None:
        assert reason == "finished", reason
        assert self._pages == sum(pages for _, pages in self._sites), self._pages
        seconds = (process_time() - self._time_before) / (self._pages - self._warm_up)
        sys.stdout.write(str(seconds))


class Linked(Spider):
    """Follows the links of a site of so many pages. Which links a page has follows from its number;
    or all of them are start URLs.

    Each page that its callback has had goes into a file at once, as a line with the time and the
    page's number.
    """

    name = "linked"

    def __init__(
        self, address: str, pages: int, all_start: bool = False, hosts: int = 1, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._address = address  # with places for the page's number, and its host's
        self._pages = pages
        self._hosts = hosts
        self._all_start = all_start

    async def start(self) -> AsyncIterator[Request]:
        path = self.settings[RECORD]
        self._record = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for page in range(self._pages if self._all_start else 1):
            yield self._request(page)

    def parse(self, response: Response) -> Iterator[Request]:
        page = int(response.url.rpartition("/")[2])
        os.write(self._record, f"{monotonic()} {page}\n".encode())
        for link in self._links(page):
            if link < self._pages:
                yield self._request(link)

    def _links(self, page: int) -> Iterable[int]:
        if self._all_start:
            return ()
        # Down the tree, across it and back, as the example site's pages have them.
        down = range(BRANCHES * page + 1, BRANCHES * page + BRANCHES + 1)
        return (*down, (7 * page + 3) % self._pages, max(page - 1, 0), 0)

    def _request(self, page: int) -> Request:
        return Request(self._address.format(page=page, host=page % self._hosts))


if __name__ == "__main__":
    plan = json.loads(sys.argv[1])
    spiders: dict[str, type[Spider]] = {spider.name: spider for spider in (Pages, Linked)}
    process = AsyncCrawlerProcess(plan["settings"])
    process.crawl(spiders[plan["spider"]], **plan["arguments"])
    process.start()
