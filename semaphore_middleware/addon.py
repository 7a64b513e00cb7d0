"""The add-on: `ADDONS = {"semaphore_middleware.addon.SemaphoreAddon": 500}`."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from scrapy.downloadermiddlewares.robotstxt import RobotsTxtMiddleware as ScrapyRobotsTxtMiddleware
from scrapy.exceptions import NotConfigured
from scrapy.settings import SETTINGS_PRIORITIES
from scrapy.utils.misc import load_object
from scrapy.utils.python import global_object_name

from semaphore_middleware.errors import SettingsError
from semaphore_middleware.redis.environment import server_of
from semaphore_middleware.scrapy.engine import keep_spider_arguments
from semaphore_middleware.scrapy.settings import SETTINGS, is_enabled

# Modules that need redis-py are imported within functions that run only with the semaphore on:
# Scrapy imports this module in any case.
if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

    from semaphore_middleware.scrapy.throttler import Throttler

logger = logging.getLogger(__name__)

MIDDLEWARE_POSITION = 950
SPIDER_ATTRIBUTES = {
    "download_delay": "DOWNLOAD_DELAY",
    "max_concurrent_requests": "CONCURRENT_REQUESTS_PER_DOMAIN",
}
"""Attributes of spiders that Scrapy 2.19 still reads, and the settings that they stand for."""
REPLACED = {
    "DOWNLOADER": (
        "scrapy.core.downloader.Downloader",
        "semaphore_middleware.scrapy.hooks.SemaphoreDownloader",
        "requests that wait take up CONCURRENT_REQUESTS, and lost permits end no transfer",
    ),
    "SCHEDULER_PRIORITY_QUEUE": (
        "scrapy.pqueues.DownloaderAwarePriorityQueue",
        "semaphore_middleware.scrapy.hooks.SemaphorePriorityQueue",
        "requests of a full site may hold up those of other sites",
    ),
}
"""By setting: Scrapy's class, ours, and what is lost with any other."""


class SemaphoreAddon:
    """Moves the per-site politeness settings into Redis, where they hold for all nodes together.

    For Scrapy's `ADDONS`; docs/settings.md lists all settings.
    """

    def __init__(self, throttler: Throttler) -> None:
        self._throttler = throttler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Read the settings. Raises `NotConfigured` if `SEMAPHORE_ENABLED` is off, and
        `SettingsError` or `ServerRefusedError`, which end the crawl with one line in the log.
        """
        if not is_enabled(crawler.settings):
            raise NotConfigured("SEMAPHORE_ENABLED is off")
        from semaphore_middleware.scrapy.throttler import throttler_of

        _apply_spider_attributes(crawler)
        return cls(throttler_of(crawler))

    @classmethod
    def update_pre_crawler_settings(cls, settings: BaseSettings) -> None:
        """Do what comes before the spider is made. That gets its arguments, which the nodes of a
        shared crawl compare, and may use the server, as one of scrapy-redis does.
        """
        keep_spider_arguments()
        with suppress(SettingsError):  # which `from_crawler` raises, in one line
            if SETTINGS["SEMAPHORE_ENABLED"].read(settings):
                _name_server(settings, server_of(settings)[0])

    def update_settings(self, settings: BaseSettings) -> None:
        """Put our components in their places. What the user has set stays as it is."""
        from semaphore_middleware.middleware import SemaphoreMiddleware

        settings.setdefault_in_component_priority_dict(
            "DOWNLOADER_MIDDLEWARES", SemaphoreMiddleware, MIDDLEWARE_POSITION
        )
        for name, (scrapys, ours, loss) in REPLACED.items():
            chosen = settings[name]
            if _path(chosen) == scrapys:
                _override(settings, name, ours)
            elif not _is_derived(load_object(chosen), load_object(ours)):
                logger.warning("%s is %r: %s. Derive it from %s.", name, chosen, loss, ours)
        if settings.getbool("AUTOTHROTTLE_ENABLED"):
            logger.warning(
                "AUTOTHROTTLE_ENABLED: AutoThrottle delays requests that already hold a permit, "
                "and only in this process. For all nodes together, set 'adaptive' or a 'delay' in "
                "SEMAPHORE_LIMITS instead."
            )
        if self._throttler.settings.obey_crawl_delay and not settings.getbool("ROBOTSTXT_OBEY"):
            logger.warning(
                "SEMAPHORE_OBEY_CRAWL_DELAY has no effect without ROBOTSTXT_OBEY: no robots.txt is "
                "read."
            )
        _replace_robotstxt_middleware(settings)
        # For components that use the same server and node name, such as a shared frontier.
        _name_server(settings, self._throttler.url)
        _override(settings, "SEMAPHORE_NODE", self._throttler.node)


def _path(component: Any) -> Any:
    """The path of a class; settings have either."""
    return global_object_name(component) if isinstance(component, type) else component


def _is_derived(component: Any, base: type) -> bool:
    return isinstance(component, type) and issubclass(component, base)


def _name_server(settings: BaseSettings, url: str | None) -> None:
    """Set `REDIS_URL`, unless the project says in scrapy-redis's words where its queue is."""
    by_addons = SETTINGS_PRIORITIES["addon"]
    is_named = any(
        settings.get(name) and (settings.getpriority(name) or 0) > by_addons
        for name in ("REDIS_URL", "REDIS_HOST", "REDIS_PORT")
    )
    if url is not None and not is_named:
        _override(settings, "REDIS_URL", url)


def _replace_robotstxt_middleware(settings: BaseSettings) -> None:
    """Put our robots.txt middleware in the place of Scrapy's, wherever that is."""
    from semaphore_middleware.scrapy.robotstxt import RobotsTxtMiddleware

    own = "DOWNLOADER_MIDDLEWARES"
    chosen = {load_object(component) for component in settings.getdict(own)}
    name = own if ScrapyRobotsTxtMiddleware in chosen else f"{own}_BASE"
    with suppress(KeyError):  # switched off, or taken out
        settings.replace_in_component_priority_dict(
            name, ScrapyRobotsTxtMiddleware, RobotsTxtMiddleware
        )


def _apply_spider_attributes(crawler: Crawler) -> None:
    """Turn a spider's deprecated attributes into settings, as Scrapy 2.19 does, but after add-ons.

    As in Scrapy, a setting of the spider's own wins over its attribute.
    """
    spider = crawler.spider or crawler.spidercls
    for attribute, name in SPIDER_ATTRIBUTES.items():
        if hasattr(spider, attribute):
            # At a spider's own priority, Scrapy would take it for a setting that wins.
            crawler.settings.set(
                name, getattr(spider, attribute), SETTINGS_PRIORITIES["spider"] - 1
            )


def _override(settings: BaseSettings, name: str, value: Any) -> None:
    """Set a setting, wherever it was set before: an add-on's priority is below a project's."""
    priority = max(settings.getpriority(name) or 0, SETTINGS_PRIORITIES["addon"])
    settings.set(name, value, priority)
