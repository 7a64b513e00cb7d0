"""The add-on's changes to a project's settings, and its warnings."""

import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import Request
from scrapy.http import Response
from scrapy.settings import Settings
from scrapy.utils.defer import deferred_from_coro
from scrapy.utils.misc import load_object

from semaphore_middleware.addon import SemaphoreAddon
from semaphore_middleware.errors import SettingsError
from semaphore_middleware.link.environment import server_of
from semaphore_middleware.scrapy.hooks import NO_CONCURRENCY_LIMIT
from semaphore_middleware.scrapy.settings import REPLACED
from tests.support.crawls import ADD_ON, ALONE, By, Crawl, Log, Patch, pages, scrapy, taken
from tests.support.nodes import eventually
from tests.support.servers import RedisServer
from tests.support.site import Site
from tests.support.visits import Visits


def local_slots(crawl: Crawl) -> dict[str, tuple[float, int]]:
    """The delay that each slot of the downloader keeps, and how many requests it holds up."""
    slots = crawl.crawler.engine.downloader.slots
    return {key: (slot.download_delay(), len(slot.queue)) for key, slot in slots.items()}


def connections_kept(crawl: Crawl) -> int:
    """The number of connections to a host that the downloader keeps open."""
    handler: Any = crawl.crawler.engine.downloader.handlers._get_handler("http")
    return int(handler._pool.maxPersistentPerHost)


class Polite(Visits):
    """Sets its delay and limit by attributes, as old tutorials do."""

    download_delay = 0.01
    max_concurrent_requests = 1


class Modern(Polite):
    custom_settings = {"CONCURRENT_REQUESTS_PER_DOMAIN": 2, "DOWNLOAD_DELAY": 0}  # noqa: RUF012


heeded = pytest.mark.filterwarnings("error:.*being ignored")


@pytest.mark.filterwarnings("ignore::scrapy.exceptions.ScrapyDeprecationWarning")
@pytest.mark.parametrize(("spider", "limit"), [pytest.param(Polite, 1, marks=heeded), (Modern, 2)])
async def test_spider_attributes_hold_for_all_nodes_unless_its_settings_say_otherwise(
    server: RedisServer, site: Site, spider: type[Visits], limit: int
) -> None:
    crawl = Crawl(server, *pages(site, 4, "/slow/"), spider=spider, limit=4)
    await site.until(lambda: site.now == limit)
    assert local_slots(crawl) == {"127.0.0.1": (0.0, 0)}, "the local slot is open"
    await crawl.gave_back(4, site)
    assert site.most == limit


async def test_the_user_s_settings_stay(server: RedisServer, site: Site, caplog: Log) -> None:
    caplog.set_level("INFO")
    own: dict[str, Any] = {
        "SEMAPHORE_LIMITS": {"127.0.0.1": 40, "example.com": None},
        "DOWNLOAD_SLOTS": {"example.com": {"concurrency": 3}},
        "DOWNLOAD_DELAY": 0.01,
    }
    crawl = Crawl(server, Request(site.url("/page/")), limit=2, SEMAPHORE_NODE="here", **own)
    await crawl.finished()
    settings = crawl.crawler.settings
    assert {name: settings[name] for name in own} == own
    assert settings["CONCURRENT_REQUESTS_PER_DOMAIN"] == 2
    shown = caplog.text.partition("Overridden settings:")[2]
    assert "'DOWNLOAD_DELAY': 0.01" in shown
    assert "'CONCURRENT_REQUESTS_PER_DOMAIN': 2" in shown
    assert local_slots(crawl) == {"127.0.0.1": (0.0, 0)}
    assert connections_kept(crawl) == 40
    assert settings["REDIS_URL"] == server.url, "for components that use the same server"
    assert settings["SEMAPHORE_NODE"].startswith("here-")


async def test_without_concurrent_requests_connections_are_kept(
    server: RedisServer, site: Site
) -> None:
    crawl = Crawl(server, Request(site.url("/page/")), limit=2, CONCURRENT_REQUESTS=0)
    await crawl.finished()
    assert connections_kept(crawl) == NO_CONCURRENCY_LIMIT


async def test_how_a_node_is_named(server: RedisServer, site: Site, monkeypatch: Patch) -> None:
    monkeypatch.setenv("SCRAPY_JOB", "6487ec79")
    for arguments, job in (
        ({}, "6487ec79"),
        ({"_job": "monday"}, "monday"),
        ({"name": "given"}, "6487ec79"),  # then its class need have none
    ):
        crawl = Crawl(server, Request(site.url("/page/")), limit=2, arguments=arguments)
        await crawl.finished()
        name = f"{arguments.get('name', Visits.name)}-{job}-"
        assert crawl.crawler.settings["SEMAPHORE_NODE"].startswith(name)


async def test_one_connection_a_permit(server: RedisServer, site: Site, tmp_path: Path) -> None:
    # Scrapy's handler for aiohttp opens no more than CONCURRENT_REQUESTS_PER_DOMAIN.
    limit = {"CONCURRENT_REQUESTS_PER_DOMAIN": 1, "SEMAPHORE_LIMITS": {"127.0.0.1": 3}}
    settings = {**ADD_ON, **limit, "SEMAPHORE_REDIS_URL": server.url}
    requests, options = pages(site, 4, "/slow/"), ("-s", "TWISTED_REACTOR_ENABLED=False")
    async with scrapy(tmp_path, *requests, options=options, **settings) as crawl:
        await site.until(lambda: site.now == 3)
        site.let_go()
        assert await crawl.ended() == 0
    assert site.most == 3


def test_the_server_is_named_where_the_project_names_none(monkeypatch: Patch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://environment")
    given_and_named: list[tuple[dict[str, Any], str | None]] = [
        ({}, "redis://environment"),
        ({"REDIS_URL": ""}, "redis://environment"),
        ({"REDIS_URL": "redis://project"}, "redis://project"),
        ({"SEMAPHORE_REDIS_URL": "redis://ours"}, "redis://ours"),
        ({"REDIS_HOST": "project"}, None),
        ({"REDIS_PORT": 6380}, None),
        *(({"SEMAPHORE_ENABLED": value}, None) for value in (False, "perhaps")),
    ]
    for given, named in given_and_named:
        settings = Settings(given)
        SemaphoreAddon.update_pre_crawler_settings(settings)
        assert settings.get("REDIS_URL") == named, given


def test_other_components_find_the_embedded_server_beside_settings_of_scrapy_redis() -> None:
    semaphore = SimpleNamespace(url="unix:///embedded", node="node")
    add_on = SemaphoreAddon(SimpleNamespace(semaphore=semaphore))  # type: ignore[arg-type]
    port = "tcp://10.0.0.1:6379"
    given_and_found: list[tuple[dict[str, Any], str | None]] = [
        ({"SEMAPHORE_REDIS_URL": "embedded", "REDIS_HOST": "a"}, semaphore.url),
        ({"SEMAPHORE_REDIS_URL": "embedded", "REDIS_HOST": "a", "REDIS_PORT": port}, semaphore.url),
        ({"REDIS_HOST": "a", "REDIS_PORT": port}, None),
        ({"REDIS_PORT": port}, None),
    ]
    for given, found in given_and_found:
        settings = Settings(given)
        add_on.update_settings(settings)
        assert server_of(settings)[0] == found, given
        assert settings["REDIS_URL"] is None, "the project's own is another one"


DOWNLOADERS = {  # the setting, and the class that is used
    "scrapy.core.downloader.Downloader": "SemaphoreDownloader",
    f"{__name__}.DerivedDownloader": "DerivedDownloader",
}


@pytest.mark.parametrize(("path", "used"), DOWNLOADERS.items())
@pytest.mark.parametrize("load", [str, load_object], ids=["path", "object"])
async def test_a_class_that_is_derived_from_ours_is_kept(
    server: RedisServer, site: Site, path: str, used: str, load: Any
) -> None:
    crawl = Crawl(server, Request(site.url("/page/")), DOWNLOADER=load(path))
    await crawl.gave_back(1, site)
    assert type(crawl.crawler.engine.downloader).__name__ == used


async def test_a_class_within_a_function_is_taken_as_it_is(server: RedisServer, site: Site) -> None:
    class Local(load_object(REPLACED["DOWNLOADER"][1])):  # type: ignore[misc]
        pass

    await Crawl(server, Request(site.url("/page/")), DOWNLOADER=Local).gave_back(1, site)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("DOWNLOADER", f"{__name__}.OtherDownloader"),
        ("DOWNLOADER", f"{__name__}.OwnDownloader"),
        ("SCHEDULER_PRIORITY_QUEUE", "scrapy.pqueues.ScrapyPriorityQueue"),
    ],
)
@pytest.mark.parametrize("load", [str, load_object], ids=["path", "object"])
async def test_another_class_than_ours_ends_the_crawl(
    server: RedisServer, site: Site, caplog: Log, name: str, path: str, load: Any
) -> None:
    with pytest.raises(SettingsError):
        await Crawl(server, Request(site.url("/page/")), **{name: load(path)}).finished()
    [error] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert error.startswith(f"{name} = '{path}': allowed is a class derived from semaphore_middle")
    assert site.arrivals == []


@pytest.mark.filterwarnings("ignore::scrapy.exceptions.ScrapyDeprecationWarning")
async def test_a_limit_for_each_address_by_scrapy_s_own_setting_ends_the_crawl(
    server: RedisServer, site: Site, caplog: Log
) -> None:
    with pytest.raises(SettingsError):
        await Crawl(server, Request(site.url("/page/")), CONCURRENT_REQUESTS_PER_IP=2).finished()
    [error] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert error.endswith(
        "allowed is 0; there is no limit of an address: limit hosts, domains or names of your own"
    )


async def test_a_slot_of_the_user_s_is_said_to_have_no_effect(
    server: RedisServer, site: Site, caplog: Log
) -> None:
    other_host = site.url("/page/1", "localhost").removeprefix("http:")
    moved = Request(site.url(f"/redirect{other_host}"))
    own = [
        Request(site.url(f"/page/{n}"), meta={"download_slot": "mine.example"}) for n in range(2, 4)
    ]
    for requests in ([moved], own):
        assert not [message for message in caplog.messages if "download_slot" in message]
        crawl = Crawl(server, *requests)
        await crawl.finished()
        assert len(crawl.spider.responses) == len(requests)
    said = [message for message in caplog.messages if "download_slot" in message]
    assert len(said) == 1
    assert "meta['download_slot'] = 'mine.example' has no effect" in said[0]


class Persons(Visits):
    """A spider whose start is one of Scrapy's commands', as in `scrapy fetch`."""

    async def start(self) -> AsyncIterator[Any]:
        async for request in super().start():
            yield request

    start.__module__ = "scrapy.commands.fetch"


async def test_a_person_is_soon_told_why_it_takes_long(
    server: RedisServer, site: Site, caplog: Log
) -> None:
    caplog.set_level(logging.INFO)
    async with taken(server, "127.0.0.1") as release:
        crawl = Crawl(server, Request(site.url("/page/")), spider=Persons)
        await eventually(lambda: re.search(r"a request has waited \d+ s for a permit", caplog.text))
        release()
    await crawl.finished()


async def test_own_downloader_ends_the_crawl(server: RedisServer, site: Site, caplog: Log) -> None:
    path = f"{__name__}.OwnDownloader"
    crawl = Crawl(server, Request(site.url("/page/")), by=ALONE, DOWNLOADER=path)
    await crawl.finished()
    [error] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert error.startswith(f"DOWNLOADER = '{path}': allowed is a class derived from ")
    assert crawl.stat("finish_reason") == "semaphore_error"
    assert crawl.crawler.spider is None, "scrapy crawl exits with status 1"
    assert site.arrivals == []


@pytest.mark.filterwarnings("ignore::scrapy.exceptions.ScrapyDeprecationWarning")
@pytest.mark.parametrize(
    ("by", "name"),
    [(ADD_ON, "OldDerivedDownloader"), (ALONE, "OldDerivedDownloader"), (ALONE, "OldDownloader")],
    ids=["add-on", "middleware alone", "not derived from ours"],
)
async def test_downloader_gets_a_spider(server: RedisServer, site: Site, by: By, name: str) -> None:
    path = f"{__name__}.{name}"
    crawl = Crawl(server, Request(site.url("/page/")), by=by, DOWNLOADER=path)
    await crawl.gave_back(1, site)
    assert site.arrivals == ["/page/"]


class OwnDownloader:
    """A downloader with only what the engine needs, which downloads without Scrapy's handlers."""

    def __init__(self, crawler: Any) -> None:
        from scrapy.core.downloader.middleware import DownloaderMiddlewareManager

        self.middleware = DownloaderMiddlewareManager.from_crawler(crawler)

    def needs_backout(self) -> bool:
        return False

    def get_slot_key(self, request: Request) -> str:
        return request.url

    def fetch(self, request: Request) -> Any:
        async def download(request: Request) -> Response:
            return Response(request.url)

        return deferred_from_coro(self.middleware.download_async(download, request))

    def close(self) -> None:
        pass


def __getattr__(name: str) -> Any:
    # Not at the top: Scrapy's downloader imports the reactor's parts.
    if name.startswith("Old"):
        from scrapy.core.downloader import Downloader

        base = Downloader if name == "OldDownloader" else __getattr__("DerivedDownloader")

        def fetch(self: Any, request: Request, spider: Visits) -> Any:
            assert spider.name == Visits.name
            return base.fetch(self, request, spider)

        return type(name, (base,), {"fetch": fetch, "__module__": __name__})
    if name == "OtherDownloader":
        from scrapy.core.downloader import Downloader

        return type(name, (Downloader,), {})
    if name == "DerivedDownloader":
        from semaphore_middleware.scrapy.hooks import SemaphoreDownloader

        return type(name, (SemaphoreDownloader,), {})
    raise AttributeError(name)
