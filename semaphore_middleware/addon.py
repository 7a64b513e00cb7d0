"""Turns all of it on: `ADDONS = {"semaphore_middleware.addon.SemaphoreAddon": 500}`."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from scrapy.downloadermiddlewares.robotstxt import RobotsTxtMiddleware as ScrapyRobotsTxtMiddleware
from scrapy.exceptions import NotConfigured
from scrapy.settings import SETTINGS_PRIORITIES
from scrapy.utils.misc import load_object

from semaphore_middleware.middleware import SemaphoreMiddleware
from semaphore_middleware.scrapy.robotstxt import RobotsTxtMiddleware
from semaphore_middleware.scrapy.settings import is_enabled
from semaphore_middleware.scrapy.throttler import Gate, gate_of

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)

POSITION = 950
SPIDER_ATTRIBUTES = {
    "download_delay": "DOWNLOAD_DELAY",
    "max_concurrent_requests": "CONCURRENT_REQUESTS_PER_DOMAIN",
}
# Setting -> Scrapy's class, ours, and what happens with another one.
REPLACED = {
    "DOWNLOADER": (
        "scrapy.core.downloader.Downloader",
        "semaphore_middleware.scrapy.downloader.SemaphoreDownloader",
        "requests that wait take up CONCURRENT_REQUESTS, and lost permits end no transfer",
    ),
    "SCHEDULER_PRIORITY_QUEUE": (
        "scrapy.pqueues.DownloaderAwarePriorityQueue",
        "semaphore_middleware.scrapy.priority_queue.SemaphorePriorityQueue",
        "requests of a full site may stand in the way of other sites'",
    ),
}


class SemaphoreAddon:
    """Moves the per-site politeness settings into Redis, where they hold for all nodes together.

    For Scrapy's `ADDONS`. What it hears is told in docs/settings.md.
    """

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Read the settings. Raises `NotConfigured` if `SEMAPHORE_ENABLED` is off, and
        `SettingsError` or `ServerRefusedError`, which end the crawl with one line in the log.
        """
        if not is_enabled(crawler.settings):
            raise NotConfigured("SEMAPHORE_ENABLED is off")
        _hear_spider_attributes(crawler)
        return cls(gate_of(crawler))

    def update_settings(self, settings: BaseSettings) -> None:
        """Put our parts in their places, and open Scrapy's own slots."""
        settings.setdefault_in_component_priority_dict(
            "DOWNLOADER_MIDDLEWARES", SemaphoreMiddleware, POSITION
        )
        for name, (scrapys, ours, loss) in REPLACED.items():
            if settings[name] == scrapys:
                settings.set(name, ours, "addon")
            elif settings[name] != ours:
                logger.warning("%s is %r: %s. Derive it from %s.", name, settings[name], loss, ours)
        if settings.getbool("AUTOTHROTTLE_ENABLED"):
            logger.warning(
                "AUTOTHROTTLE_ENABLED: AutoThrottle delays requests that already hold a permit, in "
                "this process only. An 'adaptive' limit in SEMAPHORE_LIMITS does for all nodes "
                "what it is for; or set a 'delay' there."
            )
        if self._gate.settings.obey_crawl_delay and not settings.getbool("ROBOTSTXT_OBEY"):
            logger.warning(
                "SEMAPHORE_OBEY_CRAWL_DELAY: robots.txt is read with ROBOTSTXT_OBEY only, so no "
                "site's Crawl-delay is known."
            )
        _judge_all_by_robots_txt(settings)
        self._open_local_slots(settings)
        # For what else wants this crawl's server and this node's name, such as a shared frontier.
        if not settings.get("REDIS_URL"):
            _overrule(settings, "REDIS_URL", self._gate.url)
        _overrule(settings, "SEMAPHORE_NODE", self._gate.node)

    def _open_local_slots(self, settings: BaseSettings) -> None:
        """The gate has read these settings and counts for all nodes. Scrapy's own slot comes after
        the middlewares: there a request would hold a permit while nothing is on the wire.

        Scrapy's pool keeps as many connections a host as the slot allows, so it must allow enough.
        """
        largest = self._gate.settings.limits.largest
        enough = max(largest, settings.getint("CONCURRENT_REQUESTS") or 1000)  # 0: without limit
        _overrule(settings, "CONCURRENT_REQUESTS_PER_DOMAIN", enough)
        _overrule(settings, "DOWNLOAD_DELAY", 0)
        _overrule(settings, "DOWNLOAD_SLOTS", {})


def _judge_all_by_robots_txt(settings: BaseSettings) -> None:
    """Put our robots.txt middleware in the place of Scrapy's, wherever that is."""
    own = "DOWNLOADER_MIDDLEWARES"
    chosen = {load_object(component) for component in settings.getdict(own)}
    name = own if ScrapyRobotsTxtMiddleware in chosen else f"{own}_BASE"
    with suppress(KeyError):  # switched off, or taken out
        settings.replace_in_component_priority_dict(
            name, ScrapyRobotsTxtMiddleware, RobotsTxtMiddleware
        )


def _hear_spider_attributes(crawler: Crawler) -> None:
    """Scrapy 2.19 makes settings of these deprecated attributes, but only after the add-ons.

    As there, a setting of the spider's own wins over its attribute.
    """
    spider = crawler.spider or crawler.spidercls
    for attribute, name in SPIDER_ATTRIBUTES.items():
        priority = crawler.settings.getpriority(name) or 0
        if hasattr(spider, attribute) and priority < SETTINGS_PRIORITIES["spider"]:
            crawler.settings.set(name, getattr(spider, attribute), "spider")


def _overrule(settings: BaseSettings, name: str, value: Any) -> None:
    """Set it whoever set it before: an add-on's own priority is below a project's settings."""
    priority = max(settings.getpriority(name) or 0, SETTINGS_PRIORITIES["addon"])
    settings.set(name, value, priority)
