"""Middlewares after the semaphore's that send requests themselves, such as a browser's."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from scrapy import Request
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response

from tests.support.crawls import Crawl, pages
from tests.support.servers import RedisServer
from tests.support.site import Site

DELAY_S = 0.3
PAGES = 4


class Browser:
    """Records when it requests a page, and ends the request as its meta says."""

    def __init__(self) -> None:
        self.asked_at: list[float] = []
        self._has_asked_for_all = asyncio.Event()

    async def process_request(self, request: Request) -> Any:
        self.asked_at.append(asyncio.get_running_loop().time())
        if len(self.asked_at) == PAGES:
            self._has_asked_for_all.set()
        if request.meta["is_slow"]:
            await self._has_asked_for_all.wait()
        match request.meta["ends"]:
            case "response":
                return Response(request.url, body=b"a page")
            case "exception":
                raise IgnoreRequest
            case "request":
                return request.replace(meta={**request.meta, "ends": "response"}, dont_filter=True)
        return None


@pytest.mark.parametrize(
    ("ends", "is_slow"),
    [
        *(("response", False), ("exception", False), ("request", False), ("none", False)),
        ("response", True),
    ],
)
async def test_starts_behind_it_are_a_delay_apart_and_overlap(
    server: RedisServer, site: Site, ends: str, is_slow: bool
) -> None:
    meta = {"ends": ends, "is_slow": is_slow}
    requests = [request.replace(meta=meta) for request in pages(site, PAGES)]
    settings: dict[str, Any] = {"DOWNLOAD_DELAY": DELAY_S, "DOWNLOAD_DELAY_JITTER": 0}
    crawl = Crawl(server, *requests, limit=4, middlewares={Browser: 960}, **settings)
    await crawl.finished()
    browser = crawl.crawler.get_downloader_middleware(Browser)
    assert browser is not None
    asked_at = browser.asked_at
    assert len(asked_at) == PAGES * (2 if ends == "request" else 1)
    gaps = [later - earlier for earlier, later in pairwise(sorted(asked_at))]
    assert min(gaps) > 0.5 * DELAY_S  # a busy machine may note a start late
    assert server.members() == {}
