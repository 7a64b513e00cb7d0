"""Middlewares behind the semaphore's, which ask the site by themselves: a browser, as a rule."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from scrapy import Request
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response

from tests.support.crawls import By, Crawl, both, pages
from tests.support.servers import RedisServer
from tests.support.site import Site

DELAY_S = 0.15
QUICK_S, SLOW_S = 0.0, 4 * DELAY_S
PAGES = 4


class Browser:
    """Notes when it asks the site for a page, and ends the request as its meta says."""

    def __init__(self) -> None:
        self.asked_at: list[float] = []

    async def process_request(self, request: Request) -> Any:
        self.asked_at.append(asyncio.get_running_loop().time())
        await asyncio.sleep(request.meta["takes"])
        match request.meta["ends"]:
            case "response":
                return Response(request.url, body=b"a page")
            case "exception":
                raise IgnoreRequest
            case "request":
                return request.replace(meta={**request.meta, "ends": "response"}, dont_filter=True)
        return None


@both
@pytest.mark.parametrize(
    ("ends", "takes"),
    [
        *(("response", QUICK_S), ("exception", QUICK_S), ("request", QUICK_S), ("none", QUICK_S)),
        ("response", SLOW_S),
    ],
)
async def test_starts_behind_it_are_a_delay_apart_and_overlap(
    server: RedisServer, site: Site, by: By, ends: str, takes: float
) -> None:
    meta = {"ends": ends, "takes": takes}
    requests = [request.replace(meta=meta) for request in pages(site, PAGES)]
    settings: dict[str, Any] = {"DOWNLOAD_DELAY": DELAY_S, "DOWNLOAD_DELAY_JITTER": 0}
    crawl = Crawl(server, *requests, by=by, limit=4, middlewares={Browser: 960}, **settings)
    await crawl.finished()
    browser = crawl.crawler.get_downloader_middleware(Browser)
    assert browser is not None
    asked_at = browser.asked_at
    assert len(asked_at) == PAGES * (2 if ends == "request" else 1)
    gaps = [later - earlier for earlier, later in pairwise(sorted(asked_at))]
    assert min(gaps) > 0.95 * DELAY_S
    assert asked_at[PAGES - 1] - asked_at[0] < (PAGES - 1) * SLOW_S, "they overlap"
    assert server.members() == {}
