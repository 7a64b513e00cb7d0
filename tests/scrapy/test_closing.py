"""A closing spider: the scheduler's requests go back, and those that a page awaits go on."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.http import Response
from scrapy.http.request import NO_CALLBACK
from scrapy.pipelines.files import FilesPipeline

from semaphore_middleware import FairSemaphore
from semaphore_middleware.core.permit import PermitSet
from semaphore_middleware.errors import HostDownError
from semaphore_middleware.scrapy import closing
from semaphore_middleware.scrapy.crawl import crawl_of
from semaphore_middleware.scrapy.engine import PageIncompleteError
from tests.support.crawls import Crawl, Log, Patch, waiting
from tests.support.nodes import eventually
from tests.support.servers import RedisServer
from tests.support.site import Site
from tests.support.times import ENDLESS_S
from tests.support.visits import Visits


class Pipeline:
    """Fetches the page that an item names."""

    def __init__(self, crawler: Any) -> None:
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Any) -> "Pipeline":
        return cls(crawler)

    async def process_item(self, item: Any) -> Any:
        if url := item.get("of_pipeline"):
            await self._crawler.engine.download_async(Request(url, callback=NO_CALLBACK))
        return item


class Asks(Visits):
    """Its callbacks fetch the pages of `meta["asks"]`, and its items' pipeline another one."""

    async def parse(self, response: Response) -> AsyncIterator[Any]:  # type: ignore[override]
        for url in response.meta.get("asks", ()):
            try:
                await self.crawler.engine.download_async(Request(url, callback=NO_CALLBACK))
            except Exception as error:
                self.failures.append(error)
                raise
        yield {
            "of_pipeline": response.meta.get("of_pipeline"),
            "file_urls": response.meta.get("files", []),
        }


def asking(server: RedisServer, *requests: Request, **settings: Any) -> Crawl:
    pipelines = {Pipeline: 1, FilesPipeline: 2}
    return Crawl(server, *requests, spider=Asks, ITEM_PIPELINES=pipelines, **settings)


def close(crawl: Crawl) -> asyncio.Task[None]:
    return asyncio.ensure_future(crawl.crawler.engine.close_spider_async(reason="enough"))


def incomplete(log: Log) -> list[str]:
    return [text for record in log.records if "incomplete" in (text := record.getMessage())]


async def test_what_a_page_awaits_goes_on(server: RedisServer, site: Site, tmp_path: Path) -> None:
    meta = {
        "asks": [site.url("/slow/1"), site.url("/page/2")],
        "of_pipeline": site.url("/page/3"),
        "files": [site.url("/page/4"), site.url("/page/5")],
    }
    page, later = Request(site.url("/page/"), meta=meta), Request(site.url("/page/later"))
    settings: dict[str, Any] = {"JOBDIR": str(tmp_path), "FILES_STORE": str(tmp_path)}
    crawl = asking(server, page, **settings)
    await site.until(lambda: "/slow/1" in site.arrivals)
    crawl.crawler.engine.crawl(later)
    await eventually(lambda: waiting(server))
    closes = close(crawl)
    await eventually(lambda: not waiting(server))
    await crawl.gave_back(6, site)
    await closes
    assert site.arrivals[:4] == ["/page/", "/slow/1", "/page/2", "/page/3"]
    assert sorted(site.arrivals[4:]) == ["/page/4", "/page/5"]
    assert (crawl.stat("item_scraped_count"), crawl.stat("file_status_count/downloaded")) == (1, 2)
    await asking(server, **settings).gave_back(1, site)
    assert site.arrivals[6:] == ["/page/later"]


@pytest.mark.parametrize("awaited_by", ["callback", "pipeline"])
async def test_what_a_page_awaits_at_a_paused_site(
    server: RedisServer, site: Site, caplog: Log, awaited_by: str
) -> None:
    url = site.url("/page/never", host="localhost")
    meta = {"asks": [url]} if awaited_by == "callback" else {"of_pipeline": url}
    async with FairSemaphore(server.url) as operator:
        await operator.admin.pause("localhost")
        crawl = asking(server, Request(site.url("/page/"), meta=meta))
        await eventually(lambda: waiting(server))
        closes = close(crawl)
        await crawl.gave_back(1, site)
        await closes
    (line,) = incomplete(caplog)
    why = "An operator has paused the site until it is resumed."
    assert line.startswith(f"<GET {url}> is not made, as the spider is closing. {why}")
    assert line.endswith(f"The items of {site.url('/page/')} that wait for it are incomplete.")


@pytest.mark.parametrize(("seconds", "pages"), [(ENDLESS_S, 1), (4.0, 2)])
async def test_what_a_page_awaits_in_a_backoff(
    server: RedisServer, site: Site, caplog: Log, seconds: float, pages: int
) -> None:
    async with FairSemaphore(server.url) as other:
        async with other.permit("localhost", 2) as permit:
            permit.refused(seconds)
        asks = [site.url("/page/later", host="localhost")]
        crawl = asking(server, Request(site.url("/page/"), meta={"asks": asks}))
        await eventually(lambda: waiting(server))
        closes = close(crawl)
        await crawl.gave_back(pages, site)
        await closes
    late = f"{closing.GOES_ON_S:g} s"
    assert [late in line for line in incomplete(caplog)] == [False] * (2 - pages)


async def test_what_a_page_awaits_for_long(
    server: RedisServer, site: Site, caplog: Log, monkeypatch: Patch
) -> None:
    """One request is on the wire, and the other waits for its permit."""
    monkeypatch.setattr(closing, "GOES_ON_S", 0.5)
    asks = [
        Request(site.url(f"/page/{n}", "localhost"), meta={"asks": [site.url(f"/never/{n}")]})
        for n in "ab"
    ]
    crawl = asking(server, *asks)
    await eventually(lambda: server.members() == {"127.0.0.1": (1, 1)})
    closes = close(crawl)
    await crawl.gave_back(3, site)
    await closes
    assert [text.count("It was not done 0.5 s after the stop.") for text in incomplete(caplog)] == [
        1,
        1,
    ]
    assert [type(error) for error in crawl.spider.failures] == [PageIncompleteError] * 2


async def test_a_robots_txt_goes_on_for_what_a_page_awaits(
    server: RedisServer, site: Site, tmp_path: Path
) -> None:
    """Two requests need the waiting robots.txt; one comes from the scheduler."""
    needed, drained = site.url("/page/needed", "localhost"), site.url("/page/drained", "localhost")
    page = Request(site.url("/page/"), meta={"asks": [needed]})
    blocks = Request(site.url("/slow/", "localhost"), meta={"dont_obey_robotstxt": True})
    settings: dict[str, Any] = {"ROBOTSTXT_OBEY": True, "JOBDIR": str(tmp_path)}
    crawl = asking(server, blocks, **settings)
    await site.until(lambda: site.now == 1)
    crawl.crawler.engine.crawl(Request(drained))
    await eventually(lambda: waiting(server) == 1)
    crawl.crawler.engine.crawl(page)
    await site.until(lambda: site.arrivals[-1] == "/page/")
    closes = close(crawl)
    await crawl.finished(site)
    await closes
    assert sorted(site.arrivals) == [
        *("/page/", "/page/needed", "/robots.txt", "/robots.txt", "/slow/"),
    ]
    await asking(server, **settings).finished()
    assert site.arrivals[5:] == ["/page/drained"]


async def test_what_a_page_awaits_at_a_host_that_is_down(
    server: RedisServer, site: Site, caplog: Log, monkeypatch: Patch
) -> None:
    async def is_down(*_: Any, **__: Any) -> PermitSet:
        raise HostDownError("localhost is down")

    meta = {"asks": [site.url("/page/never", host="localhost")]}
    crawl = asking(server, Request(site.url("/slow/"), meta=meta))
    await site.until(lambda: site.now == 1)
    closes = close(crawl)
    monkeypatch.setattr(crawl_of(crawl.crawler).semaphore, "acquire_all", is_down)
    await crawl.gave_back(1, site)
    await closes
    (line,) = incomplete(caplog)
    assert "as the spider is closing. localhost is down. The items of" in line
    assert site.arrivals == ["/slow/"]
