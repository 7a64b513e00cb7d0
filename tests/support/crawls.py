"""Crawls for the tests: in this process, on the reactor's loop, or as `scrapy` processes."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, ParamSpec
from urllib.parse import urlsplit

import pytest
from scrapy import Request, Spider
from scrapy.addons import AddonManager
from scrapy.crawler import Crawler
from scrapy.settings import Settings
from twisted.internet.defer import Deferred

from semaphore_middleware import FairSemaphore
from tests.support.scrapy_process import ScrapyProcess
from tests.support.servers import RedisServer
from tests.support.site import Site
from tests.support.times import ENDLESS_S, TIMEOUT_S
from tests.support.visits import Visits

ADD_ON: dict[str, Any] = {"ADDONS": {"semaphore_middleware.SemaphoreAddon": 500}}
ALONE: dict[str, Any] = {
    "DOWNLOADER_MIDDLEWARES": {"semaphore_middleware.middleware.SemaphoreMiddleware": 950}
}
QUIET: dict[str, Any] = {
    "TELNETCONSOLE_ENABLED": False,
    "REMOTE_CONTROL_ENABLED": False,
    "RETRY_TIMES": 1,
    "DOWNLOAD_TIMEOUT": ENDLESS_S,
    "SEMAPHORE_LEASE": ENDLESS_S,
    "SEMAPHORE_BACKOFF_START": 0.01,
    "SEMAPHORE_BACKOFF_MAX": 0.02,
    "SEMAPHORE_BACKOFF_TIMES": 1,
}

both = pytest.mark.parametrize("by", [ADD_ON, ALONE], ids=["add-on", "middleware alone"])

numbers = itertools.count()  # of processes
P = ParamSpec("P")
Test = Callable[P, Coroutine[Any, Any, None]]
By = Mapping[str, Any]  # the settings of the add-on, or of the middleware alone
Log = pytest.LogCaptureFixture
Patch = pytest.MonkeyPatch


def errors(caplog: Log) -> list[str]:
    """The errors in the log, each without a traceback."""
    records = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not [record for record in records if record.exc_info]
    return [record.getMessage() for record in records]


def within(seconds: float) -> Callable[[Test[P]], Callable[P, Deferred[None]]]:
    """Run the test as an asyncio task on the reactor's loop; after so long it has failed."""

    def decorate(test: Test[P]) -> Callable[P, Deferred[None]]:
        @functools.wraps(test)
        def run(*args: P.args, **kwargs: P.kwargs) -> Deferred[None]:
            task = asyncio.wait_for(test(*args, **kwargs), seconds)
            return Deferred.fromFuture(asyncio.ensure_future(task))

        return run

    return decorate


def pages(site: Site, count: int, path: str = "/page/", host: str = "127.0.0.1") -> list[Request]:
    """Requests for so many pages, whose paths begin so."""
    return [Request(site.url(f"{path}{n}", host)) for n in range(count)]


async def more_hosts(site: Site, count: int) -> list[str]:
    """Addresses at which the site listens from now on, on the same port."""
    hosts = [f"127.0.0.{number + 2}" for number in range(count)]
    for host in hosts:
        await site.listen(host, site.port)
    return hosts


def host_of(url: str) -> str:
    return urlsplit(url).hostname or ""


def waiting(server: RedisServer) -> int:
    return sum(waits for _, waits in server.members().values())


def holding(server: RedisServer) -> int:
    return sum(held for held, _ in server.members().values())


def new_crawler(spider: type[Spider], settings: Mapping[str, Any]) -> Crawler:
    """As Scrapy's runners make one; but they copy all settings, for a loader of spiders by name."""
    ours = Settings(settings)
    AddonManager.load_pre_crawler_settings(ours)
    return Crawler(spider, ours)


def ready_crawler(spider: type[Spider] = Spider, **settings: Any) -> Crawler:
    """One whose components can be made."""
    silent = {"TELNETCONSOLE_ENABLED": False, "REMOTE_CONTROL_ENABLED": False}
    crawler = new_crawler(spider, {**silent, **settings})
    crawler._apply_settings()
    return crawler


class Crawl:
    """A crawl in this process, from when it is made until `await finished()`."""

    def __init__(
        self,
        server: RedisServer,
        *requests: Request,
        spider: type[Visits] = Visits,
        by: Mapping[str, Any] = ADD_ON,
        limit: int = 1,
        middlewares: Mapping[type, int] = MappingProxyType({}),
        arguments: Mapping[str, Any] = MappingProxyType({}),
        **settings: Any,
    ) -> None:
        ours = {"SEMAPHORE_REDIS_URL": server.url, "CONCURRENT_REQUESTS_PER_DOMAIN": limit}
        chain = {**by.get("DOWNLOADER_MIDDLEWARES", {}), **middlewares}
        self._limit = limit
        self._server = server
        self.crawler = new_crawler(
            spider, {**QUIET, **ours, **by, **settings, "DOWNLOADER_MIDDLEWARES": chain}
        )
        self._task = asyncio.ensure_future(self.crawler.crawl_async(requests=requests, **arguments))

    @property
    def spider(self) -> Visits:
        assert isinstance(self.crawler.spider, Visits)
        return self.crawler.spider

    def stat(self, name: str) -> Any:
        return self.crawler.stats.get_value(name, 0)

    async def finished(self, site: Site | None = None) -> None:
        """Wait for the end of the crawl; first let the site answer, if it is given."""
        if site is not None:
            site.let_go()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await asyncio.shield(self._task)
        finally:
            self._task.cancel()

    async def gave_back(self, permits: int, site: Site) -> None:
        """Let the site answer, wait for the end of the crawl, and hold it to what every crawl
        promises.
        """
        await self.finished(site)
        assert (self.stat("semaphore/acquired"), self.stat("semaphore/released")) == (permits,) * 2
        assert self._server.members() == {}
        assert site.most <= self._limit


def set_options(monkeypatch: Patch, **options: Any) -> None:
    """Give the crawls of this process options of `FairSemaphore` that no setting has."""

    def semaphore(url: str, **given: Any) -> FairSemaphore:
        return FairSemaphore(url, **{**given, **options})

    monkeypatch.setattr("semaphore_middleware.scrapy.crawl.FairSemaphore", semaphore)


@asynccontextmanager
async def taken(
    server: RedisServer, *scopes: str, limit: int = 1
) -> AsyncIterator[Callable[[], None]]:
    """Another node holds all permits of these scopes, until what is returned is called."""
    async with FairSemaphore(server.url) as other:
        held = [await other.acquire(scope, limit) for scope in scopes for _ in range(limit)]

        def release() -> None:
            while held:
                held.pop().release()

        yield release
        release()


@asynccontextmanager
async def scrapy(
    directory: Path, *requests: Request, options: tuple[str, ...] = (), **settings: Any
) -> AsyncIterator[ScrapyProcess]:
    """Make the requests in a process; `settings` are the spider's own, `options` are typed."""
    arguments = json.dumps([{"url": request.url, "meta": request.meta} for request in requests])
    number = next(numbers)
    spider = directory / f"spider_{number}.py"
    spider.write_text(
        "from tests.support.visits import Visits\n\n\n"
        f"class Visiting(Visits):\n    custom_settings = { ({**QUIET, **settings})!r}\n"
    )
    typed = ("runspider", spider.name, "-a", f"requests={arguments}", *options)
    log_file = directory / f"{number}.log"
    with ScrapyProcess(*typed, directory=directory, log_file=log_file) as process:
        yield process
