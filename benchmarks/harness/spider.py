"""A crawl as a process of its own: `python -m benchmarks.harness.spider '<plan as JSON>'`.

It asks for pages of sites that need no real name, looks at no page, and tells what it took.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from time import process_time
from typing import Any

from scrapy import Request, Spider
from scrapy.crawler import AsyncCrawlerProcess
from scrapy.http import Response
from scrapy.resolver import CachingThreadedResolver
from twisted.internet.defer import Deferred, succeed

AHEAD = 64  # requests of a site, on their way or in the scheduler; each page yields one more


class Loopback(CachingThreadedResolver):
    """Every name is this machine's."""

    def getHostByName(self, name: str, timeout: Any = ()) -> Deferred[str]:  # noqa: ARG002, N802
        return succeed("127.0.0.1")


class Pages(Spider):
    name = "pages"

    def __init__(self, sites: list[tuple[str, int]], warm_up: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._sites = sites  # addresses to which a number is added, and how many of them
        self._warm_up = warm_up
        self.pages = 0
        self.time_before = 0.0

    async def start(self) -> AsyncIterator[Any]:
        for address, pages in self._sites:
            more = iter([f"{address}{number}" for number in range(pages)])
            for url in islice(more, AHEAD):
                yield Request(url, cb_kwargs={"more": more})

    def parse(self, response: Response, more: Iterator[str]) -> Any:  # noqa: ARG002
        if self.pages == self._warm_up:
            self.time_before = process_time()
        self.pages += 1
        if url := next(more, None):
            yield Request(url, cb_kwargs={"more": more})

    def closed(self, reason: str) -> None:
        assert reason == "finished", reason
        told = {
            "pages": self.pages,
            "time_per_page": (process_time() - self.time_before) / (self.pages - self._warm_up),
        }
        sys.stdout.write(json.dumps(told))


def main() -> None:
    plan = json.loads(sys.argv[1])
    process = AsyncCrawlerProcess(plan["settings"])
    process.crawl(Pages, sites=plan["sites"], warm_up=plan["warm_up"])
    process.start()


if __name__ == "__main__":
    main()
