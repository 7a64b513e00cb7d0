"""What projects write for Scrapy's own throttling means the same here, for all nodes together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from scrapy import Request
from scrapy.exceptions import IgnoreRequest
from scrapy.settings import Settings

from semaphore_middleware import Limit, SettingsError
from semaphore_middleware.scrapy.scopes import ScopeFinder
from semaphore_middleware.scrapy.settings import SemaphoreSettings
from semaphore_middleware.scrapy.throttling import RequestDelays
from tests.scrapy.test_throttler import opened, page, turns
from tests.support.crawls import Crawl, asyncio_test, until
from tests.support.nodes import in_asyncio
from tests.support.servers import RedisServer
from tests.support.site import Site

OLD, NEW = "CONCURRENT_REQUESTS_PER_DOMAIN", "THROTTLING_SCOPE_CONCURRENCY"


def read(*settings: tuple[str, Any, str]) -> SemaphoreSettings:
    """From names, values and priorities."""
    made = Settings()
    for name, value, priority in settings:
        made.set(name, value, priority)
    return SemaphoreSettings.read(made)


# Settings ---------------------------------------------------------------------------------------


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
def test_default_concurrency_is_that_of_the_setting_of_higher_priority(
    settings: list[tuple[str, Any, str]], concurrency: int
) -> None:
    default = read(*settings).limits.default
    assert default is not None
    assert default.concurrency == concurrency


def test_throttling_scopes_are_limits_of_hosts_and_names() -> None:
    scopes = {"A.example": {"concurrency": 3, "delay": 1.5, "jitter": 0}, "API": {"delay": 2}}
    slots = {"a.example": {"concurrency": 9}, "b.example": {"concurrency": 4}}
    limits = read(("THROTTLING_SCOPES", scopes, "project"), ("DOWNLOAD_SLOTS", slots, "project"))
    of = limits.limits.of
    assert of("a.example") == Limit(3, 1.5, 0)
    assert of("API") == Limit(8, 2, 0.5)
    assert of("b.example") == Limit(4, 0, 0.5)


def test_semaphore_limits_win_over_throttling_scopes() -> None:
    settings = read(
        ("SEMAPHORE_LIMITS", {"a.example": 2}, "project"),
        ("THROTTLING_SCOPES", {"a.example": {"concurrency": 7}}, "cmdline"),
    )
    assert settings.limits.of("a.example") == Limit(2, 0, 0.5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (NEW, 0),
        (NEW, "many"),
        ("THROTTLING_SCOPES", {"a": 2}),
        ("THROTTLING_SCOPES", {"a": {"concurrency": 0}}),
        ("THROTTLING_SCOPES", {"a": {"delay": -1}}),
        ("THROTTLING_SCOPES", "a=2"),
    ],
)
def test_mistakes_name_the_setting(name: str, value: object) -> None:
    with pytest.raises(SettingsError, match=f"{name}.*allowed"):
        read((name, value, "project"))


@asyncio_test
async def test_log_says_which_setting_counts(
    server: RedisServer, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
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


# A request's meta --------------------------------------------------------------------------------


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
    assert {name for name, _ in finder.scopes_of(request)} == scopes


@pytest.mark.parametrize(
    ("meta", "named"),
    [
        ({"throttling_scopes": 5}, "throttling_scopes"),
        ({"throttling_scopes": []}, "throttling_scopes"),
        ({"delay": "soon"}, "delay"),
        ({"delay": -1}, "delay"),
    ],
)
@in_asyncio
async def test_a_meta_that_is_not_allowed_ends_the_request_alone(
    server: RedisServer, meta: dict[str, Any], named: str
) -> None:
    async with opened(server) as scrapy:
        with pytest.raises(IgnoreRequest, match=f"{named}.*allowed"):
            await scrapy.throttler.acquire_for(Request("http://a.example/", meta=meta))
        await scrapy.begin(page())


@in_asyncio
async def test_a_delayed_request_waits_once_and_its_site_has_room_meanwhile(
    server: RedisServer,
) -> None:
    async with opened(server) as scrapy:
        later, now = page(number=1, delay=0.1), page(number=2)
        asked = asyncio.get_running_loop().time()
        waiting = scrapy.fetch(later)
        other = scrapy.fetch(now)
        await until(lambda: scrapy.held)
        assert scrapy.permit_of(now) is not None
        other.cancel()
        await until(lambda: scrapy.permit_of(later))
        assert asyncio.get_running_loop().time() - asked >= 0.1
        waiting.cancel()
        assert RequestDelays.delay_of(later.replace(dont_filter=True)) == 0, "a retry waits no more"
        assert RequestDelays.delay_of(page(**{**later.meta, "delay": 7})) == 7


@in_asyncio
async def test_a_delayed_request_goes_back_when_the_spider_closes(server: RedisServer) -> None:
    async with opened(server) as scrapy:
        fetch = scrapy.fetch(page(delay=600))
        await turns()
        scrapy.throttler._drain()
        returned = await fetch
        assert isinstance(returned, Request)
        assert RequestDelays.delay_of(returned) == 600
