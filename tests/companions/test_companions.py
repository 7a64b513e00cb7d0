"""Packages that are used beside this one, in real crawls; docs/compatibility.md has more."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request

from lab.demo.judging import Visit, response
from tests.docs.pages import blocks
from tests.support.browser import CHROMIUM, WHY_NOT
from tests.support.crawls import ADD_ON, holding, scrapy
from tests.support.nodes import eventually
from tests.support.scrapy_process import ScrapyProcess
from tests.support.servers import RedisServer
from tests.support.site import Site

pytestmark = pytest.mark.slow

PICTURES = 6  # of a page: as many as Chromium asks a host for at once
GALLERY = "<!doctype html>\n<title>A page</title>\n" + "".join(
    f'<img src="/take/0.05/{number}.png">' for number in range(PICTURES)
)
(RECIPE,) = [block.text for block in blocks() if block.text.startswith("# browser.py\n")]
PLAYWRIGHT: dict[str, Any] = {
    "DOWNLOAD_HANDLERS": {"http": "browser.DownloadHandler"},
    "PLAYWRIGHT_ABORT_REQUEST": "browser.one_at_a_time",
    "PLAYWRIGHT_LAUNCH_OPTIONS": {"executable_path": CHROMIUM, "args": ["--no-sandbox"]},
}

in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)


class Gallery(Site):
    """`/gallery/...` is a page with pictures, and with a frame."""

    async def _respond(self, visit: Visit, kind: str, rest: str, query: str) -> None:
        if kind == "gallery":
            visit.answer(response(f"{GALLERY}<iframe src='/take/0.05/frame{rest}'></iframe>"))
        else:
            await super()._respond(visit, kind, rest, query)


@asynccontextmanager
async def gallery() -> AsyncIterator[Gallery]:
    site = Gallery()
    await site.start()
    try:
        yield site
    finally:
        await site.stop()


@asynccontextmanager
async def browsing(
    directory: Path, server: RedisServer, site: Site, *paths: str, **settings: Any
) -> AsyncIterator[ScrapyProcess]:
    """Crawl with a browser by the recipe in docs/compatibility.md, with a limit of 1."""
    pytest.importorskip("scrapy_playwright")
    (directory / "browser.py").write_text(RECIPE)
    pages = [Request(site.url(path), meta={"playwright": True}) for path in paths]
    settings |= {"CONCURRENT_REQUESTS_PER_DOMAIN": 1, "SEMAPHORE_REDIS_URL": server.url}
    async with scrapy(directory, *pages, **ADD_ON, **PLAYWRIGHT, **settings) as crawl:
        yield crawl


@in_a_browser
async def test_a_browser_s_own_requests_stay_within_the_permit_of_their_page(
    server: RedisServer, tmp_path: Path
) -> None:
    pages = ("/gallery/1", "/gallery/2")
    async with gallery() as site, browsing(tmp_path, server, site, *pages) as crawl:
        assert await crawl.ended() == 0, crawl.log
    assert crawl.errors == []
    assert crawl.stat("semaphore/acquired") == crawl.stat("semaphore/released") == 2
    assert (site.most, len(site.visits)) == (1, 2 * (1 + PICTURES + 1))
    assert server.members() == {}


@in_a_browser
async def test_a_page_whose_permit_is_lost_is_closed(
    server: RedisServer, site: Site, tmp_path: Path
) -> None:
    async with browsing(tmp_path, server, site, "/slow/", SEMAPHORE_LEASE=3.0) as crawl:
        await site.until(lambda: site.now == 1)
        await eventually(lambda: holding(server))
        server.kill()
        await site.until(lambda: site.now == 0)
        assert crawl.running, "it is not its end that has closed the browser"
        assert "could not be renewed in time" in crawl.log


SPIDER_OF_SCRAPY_REDIS = """\
from scrapy_redis.spiders import RedisSpider


class Listening(RedisSpider):
    name = "listening"
    redis_key = "urls"

    def parse(self, response):
        pass
"""


async def test_scrapy_redis_needs_no_more_than_the_server_in_the_environment(
    server: RedisServer, site: Site, tmp_path: Path
) -> None:
    pytest.importorskip("scrapy_redis")
    (tmp_path / "spider.py").write_text(SPIDER_OF_SCRAPY_REDIS)
    settings = {
        "ADDONS": json.dumps(ADD_ON["ADDONS"]),
        "CLOSESPIDER_PAGECOUNT": "4",
        "CONCURRENT_REQUESTS_PER_DOMAIN": "1",
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "SCHEDULER_PERSIST": "True",
    }
    with server.client() as client:
        client.rpush("urls", *(json.dumps({"url": site.url(f"/page/{n}")}) for n in range(4)))
        with ScrapyProcess(
            *("runspider", "spider.py"),
            *(part for name, value in settings.items() for part in ("-s", f"{name}={value}")),
            directory=tmp_path,
            log_file=tmp_path / "log",
            REDIS_URL=server.url,
        ) as crawl:
            assert await crawl.ended() == 0, crawl.log
        assert client.llen("urls") == 0
    assert crawl.errors == []
    assert crawl.stat("scheduler/dequeued/redis") == 4
    assert crawl.stat("semaphore/acquired") == crawl.stat("semaphore/released") == 4
    assert (site.most, len(site.visits)) == (1, 4)
    assert server.members() == {}
