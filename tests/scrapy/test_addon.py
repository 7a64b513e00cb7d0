"""The add-on's changes to a project's settings, and its warnings."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.settings import Settings
from scrapy.utils.misc import load_object

from semaphore_middleware.addon import SemaphoreAddon
from semaphore_middleware.scrapy.settings import server_of
from tests.support.crawls import ADD_ON, Crawl, asyncio_test, scrapy
from tests.support.servers import RedisServer
from tests.support.site import Site
from tests.support.visits import Visits


class Polite(Visits):
    """Sets its delay and limit by attributes, as old tutorials do."""

    download_delay = 0.01
    max_concurrent_requests = 1


@pytest.mark.filterwarnings(
    "ignore::scrapy.exceptions.ScrapyDeprecationWarning", "error:.*being ignored"
)
@asyncio_test
async def test_spider_attributes_hold_for_all_nodes(server: RedisServer, site: Site) -> None:
    requests = [Request(site.url(f"/page/{n}")) for n in range(4)]
    crawl = Crawl(server, *requests, spider=Polite, limit=4)

    await crawl.gave_back(4, site)
    assert site.most == 1
    assert local_slots(crawl) == {"127.0.0.1": (16, 0.0)}, "the local slot is open"


class Modern(Polite):
    custom_settings = {"CONCURRENT_REQUESTS_PER_DOMAIN": 2, "DOWNLOAD_DELAY": 0}  # noqa: RUF012


@pytest.mark.filterwarnings("ignore::scrapy.exceptions.ScrapyDeprecationWarning")
@asyncio_test
async def test_custom_settings_win_over_spider_attributes(server: RedisServer, site: Site) -> None:
    requests = [Request(site.url(f"/slow/{n}")) for n in range(4)]
    crawl = Crawl(server, *requests, spider=Modern, limit=4)

    await site.until(lambda: site.now == 2)
    site.let_go()
    await crawl.gave_back(4, site)
    assert site.most == 2


# What the user has set, and what the downloader takes instead -------------------------------------


def local_slots(crawl: Crawl) -> dict[str, tuple[int, float]]:
    """The concurrency and the delay of each slot of the crawl's downloader."""
    slots = crawl.crawler.engine.downloader.slots
    return {key: (slot.concurrency, slot.download_delay()) for key, slot in slots.items()}


@asyncio_test
async def test_local_slot_allows_the_largest_limit(server: RedisServer, site: Site) -> None:
    limits = {"127.0.0.1": 40, "example.com": None}
    crawl = Crawl(server, Request(site.url("/page/")), limit=2, SEMAPHORE_LIMITS=limits)

    await crawl.finished()
    assert local_slots(crawl) == {"127.0.0.1": (40, 0.0)}
    handlers = crawl.crawler.engine.downloader.handlers
    assert handlers._get_handler("http")._pool.maxPersistentPerHost == 40  # type: ignore[union-attr]


@asyncio_test
async def test_settings_of_the_user_stay_as_they_are(
    server: RedisServer, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    slots = {"example.com": {"concurrency": 3}}
    crawl = Crawl(
        server, Request(site.url("/page/")), limit=2, DOWNLOAD_DELAY=0.01, DOWNLOAD_SLOTS=slots
    )

    await crawl.gave_back(1, site)
    settings = crawl.crawler.settings
    assert settings.getdict("DOWNLOAD_SLOTS") == slots
    assert settings["DOWNLOAD_DELAY"] == 0.01
    assert settings["CONCURRENT_REQUESTS_PER_DOMAIN"] == 2
    shown = caplog.text.partition("Overridden settings:")[2]
    assert "'DOWNLOAD_DELAY': 0.01" in shown
    assert "'CONCURRENT_REQUESTS_PER_DOMAIN': 2" in shown


@pytest.mark.parametrize(
    "options", [(), ("-s", "TWISTED_REACTOR_ENABLED=False")], ids=["reactor", "no reactor"]
)
@asyncio_test
async def test_download_handlers_open_as_many_connections_as_there_are_permits(
    server: RedisServer, site: Site, tmp_path: Path, options: tuple[str, ...]
) -> None:
    # Scrapy's handler for aiohttp opens no more than CONCURRENT_REQUESTS_PER_DOMAIN.
    limit = {"CONCURRENT_REQUESTS_PER_DOMAIN": 1, "SEMAPHORE_LIMITS": {"127.0.0.1": 3}}
    requests = [Request(site.url(f"/slow/{n}")) for n in range(4)]

    async with scrapy(
        tmp_path, *requests, options=options, **ADD_ON, **limit, SEMAPHORE_REDIS_URL=server.url
    ) as crawl:
        await site.until(lambda: site.now == 3)
        site.let_go()
        assert await crawl.ended() == 0
    assert site.most == 3


@asyncio_test
async def test_settings_name_the_server_and_this_node(server: RedisServer, site: Site) -> None:
    crawl = Crawl(server, Request(site.url("/page/")), SEMAPHORE_NODE="here")

    await crawl.finished()
    assert crawl.crawler.settings["REDIS_URL"] == server.url
    assert crawl.crawler.settings["SEMAPHORE_NODE"].startswith("here-")


class Asks(Visits):
    """Asks for the server when it is made, as scrapy-redis's spiders do."""

    told: str | None

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Self:
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.told = crawler.settings.get("REDIS_URL")
        return spider


@asyncio_test
async def test_spiders_are_told_the_server_of_the_environment(
    server: RedisServer, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", server.url)
    crawl = Crawl(server, Request(site.url("/page/")), spider=Asks, SEMAPHORE_REDIS_URL=None)

    await crawl.gave_back(1, site)
    assert isinstance(crawl.spider, Asks)
    assert crawl.spider.told == server.url


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "redis://environment"),
        ({"REDIS_URL": ""}, "redis://environment"),
        ({"REDIS_URL": "redis://project"}, "redis://project"),
        ({"SEMAPHORE_REDIS_URL": "redis://ours"}, "redis://ours"),
        ({"REDIS_HOST": "project"}, None),
        ({"REDIS_PORT": 6380}, None),
        ({"SEMAPHORE_ENABLED": False}, None),
        ({"SEMAPHORE_ENABLED": "perhaps"}, None),
    ],
)
def test_the_server_is_named_where_the_project_names_none(
    given: dict[str, Any], named: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://environment")
    settings = Settings(given)
    SemaphoreAddon.update_pre_crawler_settings(settings)
    assert settings.get("REDIS_URL") == named


def test_errors_say_that_the_server_was_set_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://environment")
    settings = Settings()
    SemaphoreAddon.update_pre_crawler_settings(settings)
    assert server_of(settings) == ("redis://environment", "REDIS_URL in the environment")


@asyncio_test
async def test_a_server_of_scrapy_redis_stays_that_of_the_queue(
    server: RedisServer, site: Site
) -> None:
    crawl = Crawl(server, Request(site.url("/page/")), REDIS_HOST="queue.example")

    await crawl.gave_back(1, site)
    assert crawl.crawler.settings.get("REDIS_URL") is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"AUTOTHROTTLE_ENABLED": True}, "AUTOTHROTTLE_ENABLED"),
        ({"DOWNLOADER": "tests.scrapy.test_addon.OtherDownloader"}, "DOWNLOADER is"),
        ({"SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.ScrapyPriorityQueue"}, "PRIORITY_QUEUE is"),
    ],
)
@asyncio_test
async def test_settings_that_weaken_the_limit_get_a_warning(
    server: RedisServer,
    site: Site,
    caplog: pytest.LogCaptureFixture,
    settings: dict[str, Any],
    said: str,
) -> None:
    await Crawl(server, Request(site.url("/page/")), **settings).gave_back(1, site)
    assert any(said in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    ("path", "is_kept", "is_warned_of"),
    [
        ("scrapy.core.downloader.Downloader", False, False),
        (f"{__name__}.DerivedDownloader", True, False),
        (f"{__name__}.OtherDownloader", True, True),
        ("builtins.print", True, True),
    ],
)
def test_a_class_that_is_derived_from_ours_is_kept_without_a_warning(
    caplog: pytest.LogCaptureFixture, path: str, is_kept: bool, is_warned_of: bool
) -> None:
    """Whether it is given by its path or as an object."""
    own = SimpleNamespace(obey_crawl_delay=False)
    throttler: Any = SimpleNamespace(settings=own, url=None, node="n")
    for chosen in (path, load_object(path)):
        caplog.clear()
        settings = Settings({"DOWNLOADER": chosen})
        SemaphoreAddon(throttler).update_settings(settings)
        ours = "semaphore_middleware.scrapy.downloader.SemaphoreDownloader"
        assert settings["DOWNLOADER"] == (chosen if is_kept else ours)
        assert any("DOWNLOADER is" in line for line in caplog.messages) is is_warned_of


def __getattr__(name: str) -> Any:
    # Not at the top: Scrapy's downloader imports the reactor's parts.
    if name == "OtherDownloader":
        from scrapy.core.downloader import Downloader

        return type(name, (Downloader,), {})
    if name == "DerivedDownloader":
        from semaphore_middleware.scrapy.downloader import SemaphoreDownloader

        return type(name, (SemaphoreDownloader,), {})
    raise AttributeError(name)
