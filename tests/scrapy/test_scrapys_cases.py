"""Cases that the tests of Scrapy's own throttling have (its pull request 6931), with real crawls.

They run with whatever Scrapy is installed: with the add-on's downloader, or with its throttler.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Self

import pytest
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.http.request import NO_CALLBACK
from scrapy.utils.test import get_crawler

from tests.support.crawls import Crawl, Log, until, waiting
from tests.support.servers import RedisServer
from tests.support.site import Site
from tests.support.visits import Visits

OURS = "semaphore_middleware.throttler.SemaphoreThrottler"
ANOTHER = f"{__name__}.TokenMiddleware"


async def test_robots_txt_does_not_wait_for_its_page(server: RedisServer, site: Site) -> None:
    requests = [Request(site.url(f"/page/{n}")) for n in range(3)]
    crawl = Crawl(server, *requests, limit=1, ROBOTSTXT_OBEY=True, CONCURRENT_REQUESTS=1)
    await crawl.gave_back(4, site)
    assert site.arrivals[0] == "/robots.txt"
    assert len(site.arrivals) == 4


class TokenMiddleware:
    """Has each response wait for one and the same further page of the site."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._token: asyncio.Future[Any] | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    async def process_response(self, request: Request, response: Response) -> Response:
        url = response.urljoin("/page/token")
        if request.url != url:
            if self._token is None:
                token = Request(url, callback=NO_CALLBACK)
                self._token = asyncio.ensure_future(self._crawler.engine.download_async(token))
            await self._token
        return response


@pytest.mark.parametrize("place", [100, 1000], ids=["before the semaphore", "behind it"])
async def test_what_a_response_waits_for(server: RedisServer, site: Site, place: int) -> None:
    requests = [Request(site.url("/slow/1")), *(Request(site.url(f"/page/{n}")) for n in "ab")]
    crawl = Crawl(server, *requests, limit=1, middlewares={TokenMiddleware: place})
    await site.until(lambda: site.now == 1)
    await until(lambda: waiting(server))
    await crawl.gave_back(4, site)
    assert "/page/token" in site.arrivals


class Files(Visits):
    """Scrapes one item with many files from each page."""

    async def parse(self, response: Response) -> Any:
        yield {"file_urls": [response.urljoin(f"/take/0.05/{n}") for n in range(8)]}


async def test_what_comes_past_the_scheduler_comes_first(server: RedisServer, site: Site) -> None:
    requests = [Request(site.url(path), priority=9) for path in ("/slow/first", "/page/second")]
    crawl = Crawl(server, *requests)
    await site.until(lambda: site.now == 1)
    await until(lambda: waiting(server))
    asked = crawl.crawler.engine.download_async(Request(site.url("/page/asked")))
    task = asyncio.ensure_future(asked)
    await until(lambda: len(crawl.crawler.engine.downloader.active) == 3)
    site.let_go()
    await task
    await crawl.gave_back(3, site)
    assert site.arrivals == ["/slow/first", "/page/asked", "/page/second"]


async def test_a_flood_of_files(server: RedisServer, site: Site, tmp_path: Path) -> None:
    media: dict[str, Any] = {
        "ITEM_PIPELINES": {"scrapy.pipelines.files.FilesPipeline": 1},
        "FILES_STORE": str(tmp_path),
    }
    crawl = Crawl(server, Request(site.url("/page/")), spider=Files, limit=2, **media)
    await crawl.gave_back(9, site)
    assert site.most == 2
    assert crawl.stat("file_count") == 8


def throttler_of(crawl: Crawl) -> Any:
    from semaphore_middleware.throttler import SemaphoreThrottler

    return SemaphoreThrottler.from_crawler(crawl.crawler)


async def test_what_only_waits_takes_no_concurrency(server: RedisServer, site: Site) -> None:
    requests = [Request(site.url(f"/slow/{n}")) for n in range(4)]
    crawl = Crawl(server, *requests, CONCURRENT_REQUESTS=16)
    await until(lambda: waiting(server) == 1)
    throttler, one = throttler_of(crawl), Request(site.url("/slow/more"))
    await throttler.acquire(one, unscheduled=True)
    assert crawl.crawler.engine.downloader.total_concurrency == 16 + 2
    assert throttler.get_scope_load("127.0.0.1") == 3
    assert throttler.get_scope_load("other") == 0
    throttler.release(one)
    assert crawl.crawler.engine.downloader.total_concurrency == 16 + 1
    await crawl.gave_back(4, site)


async def test_it_shows_scopes_and_limits(server: RedisServer, site: Site, caplog: Log) -> None:
    limits = {"a": {"concurrency": 3, "delay": 2}, "all": 9, "free": None}
    settings: dict[str, Any] = {"SEMAPHORE_SCOPES": ["host", "all"], "SEMAPHORE_LIMITS": limits}
    crawl = Crawl(server, Request(site.url("/slow/")), **settings)
    await site.until(lambda: site.now == 1)
    throttler, request = throttler_of(crawl), Request("http://a/")
    assert throttler.get_scopes(request) == throttler.get_applied_scopes(request) == ["a", "all"]
    assert throttler.get_scopes_key(request) == '["a", "all"]'
    other = Request("http://free/", meta={"throttling_scopes": "x"})
    assert throttler.get_scopes_key(other) == "x"
    assert not throttler.download_handler_blocked(request)
    manager = throttler.get_scope_manager("a")
    assert (manager.get_concurrency(), manager.get_base_delay()) == (3, 2)
    manager.set_base_delay(7)
    throttler.get_scope_manager("all").set_concurrency(7)
    assert (manager.get_concurrency(), manager.get_base_delay()) == (3, 2)
    [warning] = [line for line in caplog.messages if "scrapy semaphore limit" in line]
    assert warning.startswith("A component changes a scope's delay or concurrency")
    site.let_go()
    await crawl.finished()


@pytest.mark.parametrize("chosen", [None, OURS, ANOTHER])
def test_where_scrapy_has_the_setting(server: RedisServer, caplog: Log, chosen: str | None) -> None:
    from semaphore_middleware.addon import SemaphoreAddon

    crawler = get_crawler(settings_dict={"SEMAPHORE_REDIS_URL": server.url})
    settings = crawler.settings.copy()
    settings.frozen = False
    settings.set("THROTTLER", chosen or "scrapy.throttler.Throttler", "default")
    before = {name: settings[name] for name in ("DOWNLOADER", "SCHEDULER_PRIORITY_QUEUE")}
    SemaphoreAddon.from_crawler(crawler).update_settings(settings)
    assert settings["THROTTLER"] == (chosen or OURS)
    assert {name: settings[name] for name in before} == before
    warned = any("THROTTLER is" in line for line in caplog.messages)
    assert warned is (chosen == ANOTHER)
