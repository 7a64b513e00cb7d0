"""The add-on: `ADDONS = {"semaphore_middleware.SemaphoreAddon": 500}`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from scrapy.downloadermiddlewares.robotstxt import RobotsTxtMiddleware as ScrapyRobotsTxtMiddleware
from scrapy.exceptions import NotConfigured
from scrapy.settings import SETTINGS_PRIORITIES
from scrapy.utils.misc import load_object

from semaphore_middleware.errors import SemaphoreError, SettingsError
from semaphore_middleware.link.environment import server_of, unusable_of_scrapy_redis
from semaphore_middleware.model.settings import SETTINGS
from semaphore_middleware.scrapy.engine import end_crawl, keep_spider_arguments
from semaphore_middleware.scrapy.settings import (
    ATTRIBUTE_PRIORITY,
    REPLACED,
    SPIDER_ATTRIBUTES,
    check_components,
    is_enabled,
    path_of,
)

# Modules that need redis-py are imported within functions, and only with the semaphore on: Scrapy
# imports this module even if it is off.
if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

    from semaphore_middleware.scrapy.crawl import Crawl

MIDDLEWARE_POSITION = 950


class SemaphoreAddon:
    """Makes Scrapy's per-site politeness settings hold for all nodes together, in Redis.

    Name it in `ADDONS`; docs/settings.md lists all settings.
    """

    def __init__(self, crawl: Crawl) -> None:
        self._crawl = crawl

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Read the settings, and join the server. Raises `NotConfigured` if `SEMAPHORE_ENABLED` is
        off, and `SettingsError` or `ServerRefusedError`, which end the crawl with one line in the
        log.
        """
        if not is_enabled(crawler):
            raise NotConfigured("SEMAPHORE_ENABLED is off")
        from semaphore_middleware.scrapy.crawl import crawl_of

        try:
            check_components(crawler.settings)
        except SettingsError as error:
            end_crawl(error, crawler)
        _apply_spider_attributes(crawler)
        crawl = crawl_of(crawler)
        try:
            crawl.join_server()
        except SemaphoreError as error:
            end_crawl(error, crawler)
        return cls(crawl)

    @classmethod
    def update_pre_crawler_settings(cls, settings: BaseSettings) -> None:
        """Keep the spider's arguments, which the nodes of a shared crawl compare, and set
        `REDIS_URL`, which a spider of scrapy-redis reads.
        """
        keep_spider_arguments()
        with suppress(SettingsError):  # `from_crawler` raises it again, and logs it
            if SETTINGS["SEMAPHORE_ENABLED"].read(settings):
                _name_server(settings, server_of(settings)[0])

    def update_settings(self, settings: BaseSettings) -> None:
        """Set our components, unless the user has chosen classes derived from ours."""
        from semaphore_middleware.middleware import SemaphoreMiddleware

        settings.setdefault_in_component_priority_dict(
            "DOWNLOADER_MIDDLEWARES", SemaphoreMiddleware, MIDDLEWARE_POSITION
        )
        for name, (scrapys, ours) in REPLACED.items():
            if path_of(settings[name]) == scrapys:
                _override(settings, name, ours)
        _replace_robotstxt_middleware(settings)
        # For other components that use the server and the node's name, such as a scheduler. They
        # do not fall back to the embedded one if the project names one by a value that is wrong.
        url = self._crawl.semaphore.url
        if server_of(settings)[1] or unusable_of_scrapy_redis(settings) is None:
            _name_server(settings, url)
            if server_of(settings)[0] is None:  # the embedded one, beside settings of scrapy-redis
                _override(settings, "SEMAPHORE_REDIS_URL", url)
        _override(settings, "SEMAPHORE_NODE", self._crawl.semaphore.node)


def _name_server(settings: BaseSettings, url: str | None) -> None:
    """Set `REDIS_URL`, unless the project names a server in a setting of scrapy-redis."""
    by_addons = SETTINGS_PRIORITIES["addon"]
    is_named = any(
        settings.get(name) and (settings.getpriority(name) or 0) > by_addons
        for name in ("REDIS_URL", "REDIS_HOST", "REDIS_PORT")
    )
    if url is not None and not is_named:
        _override(settings, "REDIS_URL", url)


def _replace_robotstxt_middleware(settings: BaseSettings) -> None:
    """Replace Scrapy's robots.txt middleware with ours, at the same position; also in the
    defaults, as Scrapy would add it from there.
    """
    from semaphore_middleware.scrapy.robotstxt import RobotsTxtMiddleware

    own = "DOWNLOADER_MIDDLEWARES"
    chosen = {load_object(component) for component in settings.getdict(own)}
    with suppress(KeyError):  # switched off, or taken out
        names = [own, f"{own}_BASE"] if ScrapyRobotsTxtMiddleware in chosen else [f"{own}_BASE"]
        for name in names:
            settings.replace_in_component_priority_dict(
                name, ScrapyRobotsTxtMiddleware, RobotsTxtMiddleware
            )


def _apply_spider_attributes(crawler: Crawler) -> None:
    """Copy a spider's deprecated attributes to settings: Scrapy 2.19 does so only after add-ons.

    As in Scrapy, the spider's own setting wins over its attribute.
    """
    spider = crawler.spider or crawler.spidercls
    for name, attribute in SPIDER_ATTRIBUTES.items():
        if hasattr(spider, attribute):
            crawler.settings.set(name, getattr(spider, attribute), ATTRIBUTE_PRIORITY)


def _override(settings: BaseSettings, name: str, value: Any) -> None:
    """Set a setting even if the project has set it: an add-on's priority is below a project's."""
    priority = max(settings.getpriority(name) or 0, SETTINGS_PRIORITIES["addon"])
    settings.set(name, value, priority)
