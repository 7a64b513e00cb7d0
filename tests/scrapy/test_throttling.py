"""What projects write for Scrapy's own throttling means the same here, for all nodes together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.settings import Settings

from semaphore_middleware import Limit
from semaphore_middleware.scrapy.scopes import ScopeFinder
from semaphore_middleware.scrapy.settings import SemaphoreSettings
from semaphore_middleware.scrapy.throttling import delay_of
from tests.support.crawls import Crawl, Log, pages
from tests.support.servers import RedisServer
from tests.support.site import Site

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
