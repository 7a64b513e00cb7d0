"""The commands' clients for the server in Scrapy's settings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from semaphore_middleware.console.cli.commands import CommandError, Status
from semaphore_middleware.core.admin import Admin
from semaphore_middleware.frontier.crawls import Crawls
from semaphore_middleware.frontier.settings import CrawlSettings, checked
from semaphore_middleware.redis import embedded
from semaphore_middleware.redis.environment import URL_NAMES, server_of
from semaphore_middleware.scrapy.settings import value_of

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

T = TypeVar("T")


def admin_of(settings: BaseSettings) -> Admin:
    """A client for the server of crawls with these settings; not connected yet.

    Starts no embedded server. Raises `SettingsError`, and `CommandError` if there is no server.
    """
    url, url_from = _address_of(settings)
    return Admin(
        url,
        name=settings.get("SEMAPHORE_NODE"),
        lease=value_of("SEMAPHORE_LEASE", settings),
        prefix=value_of("SEMAPHORE_PREFIX", settings),
        url_from=url_from,
    )


def do_with_admin(settings: BaseSettings, work: Callable[[Admin], Awaitable[T]]) -> T:
    """Do it with a client of its own: none is open while a question waits for its answer."""

    async def do() -> T:
        async with admin_of(settings) as admin:
            return await work(admin)

    return asyncio.run(do())


def crawls_of(settings: BaseSettings) -> Crawls:
    """The shared crawls on the server of these settings. Raises as `admin_of`."""
    url, url_from = _address_of(settings)
    names = "CRAWL_PREFIX", "CRAWL_RECRAWL_AFTER", "CRAWL_RUN", "CRAWL_SERIALIZER"
    return Crawls(CrawlSettings(url, url_from=url_from, **checked(settings, names)))


def _address_of(settings: BaseSettings) -> tuple[str, str]:
    """The URL of the server, and where it was set."""
    url, url_from = server_of(settings)
    if (url := url or embedded.find()) is None:
        raise CommandError(
            f"no server's address is given ({' or '.join(URL_NAMES)}, in the settings, by -s, or "
            "in the environment), and no embedded server runs",
            Status.NO_SERVER,
        )
    return url, url_from
