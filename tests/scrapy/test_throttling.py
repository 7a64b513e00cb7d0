"""What projects write for Scrapy's own throttling means the same here, for all nodes together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.http import Response
from scrapy.settings import Settings

from semaphore_middleware import Limit
from semaphore_middleware.scrapy.scopes import ScopeFinder
from semaphore_middleware.scrapy.settings import SemaphoreSettings
from semaphore_middleware.scrapy.throttling import delay_of
from tests.support.crawls import Crawl, Log, pages, waiting
from tests.support.nodes import eventually
from tests.support.servers import RedisServer
from tests.support.site import Site
from tests.support.visits import Fetches, Visits

OLD, NEW = "CONCURRENT_REQUESTS_PER_DOMAIN", "THROTTLING_SCOPE_CONCURRENCY"


def read(*settings: tuple[str, Any, str]) -> SemaphoreSettings:
    """From names, values and priorities."""
    made = Settings()
    for name, value, priority in settings:
        made.set(name, value, priority)
    return SemaphoreSettings.read(made)


@pytest.mark.parametrize(
    ("settings", "concurrency"),
    [
        ([], 8),
        ([(NEW, 3, "default")], 8),
        ([(NEW, 3, "project")], 3),
        ([(NEW, 3, "project"), (OLD, 5, "project")], 3),
        ([(NEW, 3, "project"), (OLD, 5, "spider")], 5),
        ([(NEW, 3, "cmdline"), (OLD, 5, "spider")], 3),
    ],
)
def test_default_concurrency(settings: list[tuple[str, Any, str]], concurrency: int) -> None:
    default = read(*settings).limits.default
    assert default is not None
    assert default.concurrency == concurrency


def test_throttling_scopes_are_limits_of_hosts_and_names() -> None:
    scopes = {
        "A.example": {"concurrency": 3, "delay": 1.5, "jitter": 0},
        "API": {"delay": 2},
        "c.example": {"delay": 9},
    }
    slots = {"a.example": {"concurrency": 9}, "b.example": {"concurrency": 4}}
    ours = {"c.example": 2}
    of = read(
        ("THROTTLING_SCOPES", scopes, "cmdline"),
        ("DOWNLOAD_SLOTS", slots, "project"),
        ("SEMAPHORE_LIMITS", ours, "project"),
    ).limits.of
    assert of("a.example") == Limit(3, 1.5, 0)
    assert of("API") == Limit(8, 2, 0.5)
    assert of("b.example") == Limit(4, 0, 0.5)
    assert of("c.example") == Limit(2, 0, 0.5), "ours comes first"


async def test_log_says_which_counts(server: RedisServer, site: Site, caplog: Log) -> None:
    caplog.set_level("INFO")
    both = {"127.0.0.1": {"concurrency": 2}}
    limits: dict[str, Any] = {"SEMAPHORE_LIMITS": both, "THROTTLING_SCOPES": both, NEW: 3}
    crawl = Crawl(server, Request(site.url("/page/")), limit=1, **limits)
    await crawl.gave_back(1, site)
    lines = [line for line in caplog.messages if line.endswith("counts.")]
    assert lines == [
        f"{OLD} and {NEW} are both set: {NEW} counts.",
        "SEMAPHORE_LIMITS and THROTTLING_SCOPES both name '127.0.0.1': SEMAPHORE_LIMITS counts.",
    ]


@pytest.mark.parametrize(
    ("meta", "scopes"),
    [
        ({"throttling_scopes": "api"}, {"api"}),
        ({"throttling_scopes": ["api", "users"]}, {"api", "users"}),
        ({"throttling_scopes": {"users", "api"}}, {"api", "users"}),
        ({"throttling_scopes": "api", "semaphore_scope": "ours"}, {"ours"}),
        ({"throttling_scopes": None}, {"a.example"}),
        ({"dont_throttle": True}, set()),
        ({"dont_throttle": False}, {"a.example"}),
        ({"dont_throttle": True, "semaphore_skip": False}, {"a.example"}),
    ],
)
def test_meta_names_scopes_or_takes_none(meta: Mapping[str, Any], scopes: set[str]) -> None:
    finder = ScopeFinder(("host",), read().limits)
    request = Request("http://a.example/", meta=dict(meta))
    assert {name for name, _ in finder.scopes_of(request).limits} == scopes


async def test_a_delayed_request_waits_once(server: RedisServer, site: Site) -> None:
    later = Request(site.url("/status-once/503"), meta={"delay": 0.5}, priority=1)
    asked = asyncio.get_running_loop().time()
    crawl = Crawl(server, later, *pages(site, 3))
    await crawl.gave_back(5, site)
    assert site.arrivals[3:] == ["/status-once/503"] * 2
    assert site.times[3] >= asked + 0.5
    retried = crawl.spider.responses[-1].request
    assert retried is not None
    assert delay_of(retried) == 0, "a retry waits no more"
    assert delay_of(retried.replace(meta={"delay": 7})) == 7


async def test_delayed_when_it_closes(server: RedisServer, site: Site, tmp_path: Path) -> None:
    requests = [Request(site.url("/page/late"), meta={"delay": 600}), Request(site.url("/page/"))]
    crawl = Crawl(server, *requests, JOBDIR=str(tmp_path))
    await site.until(lambda: site.arrivals == ["/page/"])
    await crawl.crawler.engine.close_spider_async()
    await crawl.gave_back(1, site)
    assert crawl.stat("scheduler/enqueued/disk") == 3, "both, and the one that went back"


# Cases of its own tests (pull request 6931), with real crawls -------------------------------------


class TokenMiddleware(Fetches):
    """Has each response wait for one and the same further page of the site."""

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
