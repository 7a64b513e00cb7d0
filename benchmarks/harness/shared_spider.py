"""A node of a shared crawl: `python -m benchmarks.harness.shared_spider '<plan as JSON>'`.

It looks at no page: which links a page has follows from its number. Each page that its callback has
had goes into a file at once, as a line with the time and the page's number.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from scrapy import Request, Spider
from scrapy.crawler import AsyncCrawlerProcess
from scrapy.http import Response

RECORD = "BENCHMARK_RECORD"  # a setting: the file; nodes of a crawl have the same arguments
BRANCHES = 8  # links down the tree that makes every page reachable


def links_of(page: int, pages: int) -> list[int]:
    """Down the tree, across it and back, as the example site's pages have them."""
    down = range(BRANCHES * page + 1, BRANCHES * page + BRANCHES + 1)
    across = ((7 * page + 3) % pages, max(page - 1, 0), 0)
    return [link for link in (*down, *across) if link < pages]


class Linked(Spider):
    """Follows the links of a site of so many pages."""

    name = "linked"

    def __init__(self, address: str, pages: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._address = address  # with a place for the page's number
        self._pages = pages

    async def start(self) -> AsyncIterator[Request]:
        path = self.settings[RECORD]
        self._record = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        yield self._request(0)

    def parse(self, response: Response) -> Iterator[Request]:
        page = int(response.url.rpartition("/")[2])
        os.write(self._record, f"{time.monotonic()} {page}\n".encode())
        for link in links_of(page, self._pages):
            yield self._request(link)

    def _request(self, page: int) -> Request:
        return Request(self._address.format(page))


def main() -> None:
    plan = json.loads(sys.argv[1])
    process = AsyncCrawlerProcess(plan.pop("settings"))
    process.crawl(Linked, **plan)
    process.start()


if __name__ == "__main__":
    main()
