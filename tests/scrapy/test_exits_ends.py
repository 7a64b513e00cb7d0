"""A crawl, a fetch or a server ends while permits are held and waited for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.exceptions import CloseSpider
from scrapy.http import Response
from twisted.internet.defer import CancelledError

from semaphore_middleware.scrapy import downloads
from tests.support.crawls import By, Crawl, Patch, both, waiting
from tests.support.nodes import eventually
from tests.support.servers import RedisServer
from tests.support.site import Site
from tests.support.visits import FetchesFirst, Visits

BEFORE, AFTER = 940, 960  # ours is at 950

ALL_FOUR = ["/slow/a", "/slow/b", "/slow/c", "/slow/d"]


class Closing(Visits):
    async def parse(self, response: Response) -> Any:  # noqa: ARG002 - Scrapy's names
        raise CloseSpider("enough")


@both
async def test_a_closing_spider(server: RedisServer, site: Site, tmp_path: Path, by: By) -> None:
    requests = [Request(site.url(path)) for path in ALL_FOUR]
    crawl = Crawl(server, *requests, by=by, spider=Closing, JOBDIR=str(tmp_path))
    await site.until(lambda: site.now == 1)
    await eventually(lambda: waiting(server))
    crawl.crawler.engine.crawl(Request(site.url("/page/enough", host="localhost")))
    await eventually(lambda: not waiting(server))
    assert site.now == 1, "the request on the wire goes on"
    await crawl.gave_back(2, site)
    assert crawl.stat("finish_reason") == "enough"
    assert len(site.arrivals) == 2
    await Crawl(server, *requests, by=by, JOBDIR=str(tmp_path)).gave_back(3, site)
    assert sorted(site.arrivals) == ["/page/enough", *ALL_FOUR]


async def test_closing_during_robots_txt(server: RedisServer, site: Site, tmp_path: Path) -> None:
    requests = [
        Request(site.url("/slow/a"), meta={"dont_obey_robotstxt": True}),
        Request(site.url("/slow/b")),
    ]
    settings: dict[str, Any] = {"ROBOTSTXT_OBEY": True, "JOBDIR": str(tmp_path)}
    crawl = Crawl(server, *requests, **settings)
    await site.until(lambda: site.now == 1)
    await eventually(lambda: waiting(server))
    closing = asyncio.ensure_future(crawl.crawler.engine.close_spider_async(reason="enough"))
    await eventually(lambda: not waiting(server))
    site.let_go()
    await closing
    await crawl.gave_back(1, site)
    await Crawl(server, *requests, **settings).gave_back(2, site)
    assert site.arrivals == ["/slow/a", "/robots.txt", "/slow/b"]


@pytest.mark.parametrize("place", [BEFORE, AFTER])
@pytest.mark.parametrize("waits", [True, False], ids=["that waits", "on the wire"])
async def test_closing_spider_returns_a_request_that_a_middleware_fetches_something_for(
    server: RedisServer, site: Site, tmp_path: Path, place: int, waits: bool
) -> None:
    before = [Request(site.url("/slow/before", host="localhost"))] if waits else []
    first = site.url("/slow/first", host="localhost")
    request = Request(site.url("/page/a"), meta={"first": first})
    settings: dict[str, Any] = {"middlewares": {FetchesFirst: place}, "JOBDIR": str(tmp_path)}
    crawl = Crawl(server, *(before or [request]), **settings)
    await site.until(lambda: site.now == 1)
    if waits:
        crawl.crawler.engine.crawl(request)
        await eventually(lambda: waiting(server))
    closing = asyncio.ensure_future(crawl.crawler.engine.close_spider_async(reason="enough"))
    await eventually(lambda: not waiting(server))
    site.let_go()
    await closing
    await crawl.finished()
    assert "/page/a" not in site.arrivals
    await Crawl(server, **settings).finished()
    assert site.arrivals[-2:] == ["/slow/first", "/page/a"]


CANCELLED = (asyncio.CancelledError, CancelledError)


@both
async def test_cancelled_while_it_waits(server: RedisServer, site: Site, by: By) -> None:
    crawl = Crawl(server, Request(site.url("/slow/a")), by=by)
    await site.until(lambda: site.now == 1)
    fetch = asyncio.ensure_future(crawl.crawler.engine.download_async(Request(site.url("/page/b"))))
    await eventually(lambda: waiting(server))
    fetch.cancel()
    with pytest.raises(CANCELLED):
        await fetch
    await eventually(lambda: not waiting(server))
    await crawl.gave_back(1, site)
    assert site.arrivals == ["/slow/a"]


async def crawl_with_a_cancelled_fetch_on_the_wire(
    server: RedisServer, site: Site, path: str, by: By
) -> Crawl:
    crawl = Crawl(server, Request(site.url("/slow/elsewhere", host="localhost")), by=by)
    await site.until(lambda: site.now == 1)
    fetch = asyncio.ensure_future(crawl.crawler.engine.download_async(Request(site.url(path))))
    await site.until(lambda: site.now == 2)
    fetch.cancel()
    with pytest.raises(CANCELLED):
        await fetch
    return crawl


@both
@pytest.mark.parametrize("path", ["/slow/a", "/half/a"])
async def test_cancelled_on_the_wire(server: RedisServer, site: Site, by: By, path: str) -> None:
    crawl = await crawl_with_a_cancelled_fetch_on_the_wire(server, site, path, by)
    next_fetch = crawl.crawler.engine.download_async(Request(site.url("/page/b")))
    next_task = asyncio.ensure_future(next_fetch)
    await eventually(lambda: waiting(server))
    assert site.now == 2, "Scrapy goes on with the transfer of a cancelled fetch"
    site.let_go()
    await next_task
    await crawl.gave_back(3, site)


@both
async def test_cancelled_and_the_crawl_ends(server: RedisServer, site: Site, by: By) -> None:
    crawl = await crawl_with_a_cancelled_fetch_on_the_wire(server, site, "/never", by)
    other = Crawl(server, Request(site.url("/page/other")), SEMAPHORE_NODE="other")
    await eventually(lambda: waiting(server))
    site.let_go()
    await crawl.finished()
    assert crawl.stat("semaphore/released") == crawl.stat("semaphore/acquired") == 2
    await other.gave_back(1, site)
    assert server.members() == {}


@pytest.mark.parametrize("is_closing", [True, False], ids=["spider closes", "cancelled"])
async def test_permit_without_a_place_goes_back_at_once(
    server: RedisServer, site: Site, monkeypatch: Patch, is_closing: bool
) -> None:
    monkeypatch.setattr(downloads, "PERMIT_IDLE_TIMEOUT_S", 600.0)
    elsewhere = Request(site.url("/slow/elsewhere", host="localhost"))
    crawl = Crawl(server, elsewhere, CONCURRENT_REQUESTS=1)
    await site.until(lambda: site.now == 1)
    engine = crawl.crawler.engine
    fetch = asyncio.ensure_future(engine.download_async(Request(site.url("/page/b"))))
    await eventually(lambda: server.members().get("127.0.0.1") == (1, 0))
    if is_closing:
        ending = asyncio.ensure_future(engine.close_spider_async())
    else:
        fetch.cancel()
    await eventually(lambda: "127.0.0.1" not in server.members())
    site.let_go()
    await asyncio.gather(fetch, *([ending] if is_closing else []), return_exceptions=True)
    await crawl.gave_back(2, site)
    assert site.arrivals == ["/slow/elsewhere"]


@both
@pytest.mark.parametrize("path", ["/slow/", "/half/"])
async def test_a_lost_permit_is_retried(server: RedisServer, site: Site, by: By, path: str) -> None:
    crawl = Crawl(server, Request(site.url(path)), by=by, SEMAPHORE_LEASE=0.5)
    await site.until(lambda: site.now == 1)
    server.kill()
    await site.until(lambda: site.now == 0)
    server.start()
    await site.until(lambda: site.now == 1)
    await crawl.gave_back(2, site)
    assert site.arrivals == [path, path]
    assert len(crawl.spider.responses) == 1
    assert crawl.stat("semaphore/lost") == 1
    assert crawl.stat("retry/count") == 1
