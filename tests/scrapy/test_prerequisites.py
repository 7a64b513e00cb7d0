"""A request that another one needs never waits behind that one."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.http import Response

from semaphore_middleware.scrapy import downloads
from semaphore_middleware.scrapy.admission import READY
from semaphore_middleware.scrapy.crawl import crawl_of
from tests.support.crawls import Crawl, Patch, more_hosts, waiting
from tests.support.nodes import eventually
from tests.support.servers import RedisServer
from tests.support.site import Site
from tests.support.times import ENDLESS_S
from tests.support.visits import Fetches, Visits


class TokenMiddleware(Fetches):
    """Lets all responses wait for one further page of the site."""

    _token: asyncio.Future[Any] | None = None

    async def process_response(self, request: Request, response: Response) -> Response:
        url = response.urljoin("/page/token")
        if request.url != url:
            if self._token is None:
                self._token = asyncio.ensure_future(self.fetch(url))
            await self._token
        return response


@pytest.mark.parametrize("place", [100, 1000], ids=["before the semaphore", "behind it"])
async def test_what_a_response_waits_for(server: RedisServer, site: Site, place: int) -> None:
    requests = [Request(site.url("/slow/1")), *(Request(site.url(f"/page/{n}")) for n in "ab")]
    crawl = Crawl(server, *requests, limit=1, middlewares={TokenMiddleware: place})
    await site.until(lambda: site.now == 1)
    await eventually(lambda: waiting(server))
    await crawl.gave_back(4, site)
    assert "/page/token" in site.arrivals


class FetchesBeside(Fetches):
    """Fetches the page in `meta["beside"]` once it `may_fetch`; the request does not wait."""

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self.may_fetch = asyncio.Event()
        self.task: asyncio.Task[Response] | None = None

    async def process_request(self, request: Request) -> None:
        if "beside" in request.meta:
            self.task = asyncio.ensure_future(self._fetch_on_command(request.meta["beside"]))

    async def _fetch_on_command(self, url: str) -> Response:
        await self.may_fetch.wait()
        return await self.fetch(url)


async def test_what_is_fetched_beside_a_request_that_waits_for_a_slot(
    server: RedisServer, site: Site, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(downloads, "PERMIT_IDLE_TIMEOUT_S", ENDLESS_S)
    other, third = await more_hosts(site, 2)
    chain: dict[type, int] = {FetchesBeside: 100}
    crawl = Crawl(server, Request(site.url("/slow/1")), middlewares=chain, CONCURRENT_REQUESTS=1)
    await site.until(lambda: site.now == 1)
    engine = crawl.crawler.engine
    meta = {"beside": site.url("/page/beside", third)}
    asked = engine.download_async(Request(site.url("/page/asked", other), meta=meta))
    task = asyncio.ensure_future(asked)
    admissions = crawl_of(crawl.crawler).downloads.admissions
    await eventually(lambda: any(one.state is READY for one in admissions))
    beside = crawl.crawler.get_downloader_middleware(FetchesBeside)
    assert beside is not None
    beside.may_fetch.set()
    await eventually(lambda: len(engine.downloader.active) == 3)
    site.let_go()
    assert (await task).status == 200
    assert beside.task is not None
    assert (await beside.task).status == 200
    await crawl.gave_back(4, site)  # the one that waited for a slot asked twice


class Files(Visits):
    """Scrapes one item with many files from each page."""

    async def parse(self, response: Response) -> Any:
        yield {"file_urls": [response.urljoin(f"/take/0.05/{n}") for n in range(8)]}


async def test_what_comes_past_the_scheduler_comes_first(server: RedisServer, site: Site) -> None:
    requests = [Request(site.url(path), priority=9) for path in ("/slow/first", "/page/second")]
    crawl = Crawl(server, *requests)
    await site.until(lambda: site.now == 1)
    await eventually(lambda: waiting(server))
    asked = crawl.crawler.engine.download_async(Request(site.url("/page/asked")))
    task = asyncio.ensure_future(asked)
    await eventually(lambda: len(crawl.crawler.engine.downloader.active) == 3)
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
