"""The settings of a crawl, checked."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from scrapy.settings import SETTINGS_PRIORITIES
from scrapy.utils.misc import load_object
from scrapy.utils.python import global_object_name

from semaphore_middleware.errors import SettingsError
from semaphore_middleware.link.environment import (
    EMBEDDED,
    SCRAPY_REDIS,
    misspelt_url,
    server_of,
)
from semaphore_middleware.model.feedback import Backoff
from semaphore_middleware.model.hosts import ALL, PREFIXED_KINDS, VIA, clean, domain_hint
from semaphore_middleware.model.limits import Limit, LimitTable, parse_limits
from semaphore_middleware.model.options import NodeOptions, check_job, prefix_named, unusable_server
from semaphore_middleware.model.settings import SETTINGS, check_dict, unknown_names, value_of
from semaphore_middleware.model.validation import (
    check_integer,
    check_number,
    check_truth,
    not_allowed,
)
from semaphore_middleware.scrapy.engine import end_crawl
from semaphore_middleware.scrapy.scopes import Namer

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)

NAMED_MAX = 10  # limits named in the log
DEFAULT_OF = {"host": "a site", "domain": "a domain", "proxy": "a proxy", ALL: "all requests"}
"""What has the default limit, by the first kind listed in SEMAPHORE_SCOPES; a function gives names.
"""
SPIDER_ATTRIBUTES = {
    "DOWNLOAD_DELAY": "download_delay",
    "CONCURRENT_REQUESTS_PER_DOMAIN": "max_concurrent_requests",
}
"""By setting, the deprecated attribute of spiders for it, still read by Scrapy 2.19."""
ATTRIBUTE_PRIORITY = SETTINGS_PRIORITIES["spider"] - 1
"""At the spider's own priority, Scrapy would take an attribute for the spider's own setting."""

REPLACED = {
    "DOWNLOADER": (
        "scrapy.core.downloader.Downloader",
        "semaphore_middleware.scrapy.hooks.SemaphoreDownloader",
    ),
    "SCHEDULER_PRIORITY_QUEUE": (
        "scrapy.pqueues.DownloaderAwarePriorityQueue",
        "semaphore_middleware.scrapy.hooks.SemaphorePriorityQueue",
    ),
}
"""By setting: Scrapy's class, and ours. Any other class must be derived from ours."""


@dataclass(frozen=True, slots=True)
class SemaphoreSettings(NodeOptions):
    """All settings of a crawl, checked; `job` is empty if the spider's name counts. Times are in
    seconds; docs/settings.md has the meanings.
    """

    url: str | None
    """The server's URL; None: the embedded server."""
    url_from: str
    """Where `url` was set, for errors."""
    limits: LimitTable
    """From `SEMAPHORE_LIMITS` and Scrapy's own settings."""
    scopes: tuple[str | Namer, ...]
    """Kinds, and the user's own functions."""
    acquire_timeout: float | None
    start_timeout: float | None
    node: str
    """Empty: named after the spider and its job."""
    max_crawl_delay: float
    robotstxt_unreachable: str
    backoff_codes: frozenset[int]
    backoff_times: int
    backoff_when: Callable[[Response], object] | None
    concurrent_requests: int
    """The limit of this node, for all sites together; 0: none."""

    def semaphore_options(self, spider: str = "") -> dict[str, Any]:
        """The options of `FairSemaphore`, except its server and its name. The spider's name is the
        job if SEMAPHORE_JOB is not set. Raises `SettingsError` if it is not allowed as one.
        """
        options = {field.name: getattr(self, field.name) for field in fields(NodeOptions)}
        where = "the spider's name (its job unless SEMAPHORE_JOB is set)"
        return {**options, "job": self.job or check_job(spider, where)}

    @classmethod
    def read(cls, settings: BaseSettings) -> SemaphoreSettings:
        """Read and check the settings. Raises `SettingsError` with the name of the wrong one."""
        ours = {
            name.removeprefix("SEMAPHORE_").lower(): setting.read(settings)
            for name, setting in SETTINGS.items()
        }
        url, ours["url_from"] = server_of(settings)
        ours["url"] = EMBEDDED if ours["url_from"] and url is None else url
        ours["credentials"] = ours["redis_credentials"]
        slots = check_dict(settings.get("DOWNLOAD_SLOTS"), "DOWNLOAD_SLOTS")
        default, sources = _default_limit(settings)
        ours["limits"] = parse_limits(ours["limits"], slots, default, ours["scopes"], sources)
        name = "CONCURRENT_REQUESTS"
        ours["concurrent_requests"] = check_integer(
            settings.get(name), _source(settings, name), least=0, text=True
        )
        _check_retries(settings)
        ours["backoff"] = Backoff(ours["backoff_start"], ours["backoff_max"], ours["down_after"])
        return cls(**{field.name: ours[field.name] for field in fields(cls) if field.name in ours})


def is_enabled(crawler: Crawler) -> bool:
    """True unless `SEMAPHORE_ENABLED` is off. An invalid value ends the crawl."""
    try:
        return bool(value_of("SEMAPHORE_ENABLED", crawler.settings))
    except SettingsError as error:
        end_crawl(error, crawler)


def path_of(component: Any) -> Any:
    """The path of a component. A setting holds a class or its path."""
    return global_object_name(component) if isinstance(component, type) else component


def check_components(settings: BaseSettings) -> None:
    """Raise `SettingsError` for a component whose class is not derived from ours, and for
    CONCURRENT_REQUESTS_PER_IP, which Scrapy's queues by site do not support.
    """
    if settings.getint("CONCURRENT_REQUESTS_PER_IP"):
        raise not_allowed(
            settings["CONCURRENT_REQUESTS_PER_IP"],
            "CONCURRENT_REQUESTS_PER_IP",
            "0; there is no limit of an address: limit hosts, domains or names of your own",
        )
    for name, (scrapys, ours) in REPLACED.items():
        chosen = path_of(settings[name])
        if chosen == scrapys:
            continue
        component = load_object(settings[name])
        if not isinstance(component, type) or not issubclass(component, load_object(ours)):
            raise not_allowed(chosen, name, f"a class derived from {ours}")


def _default_limit(settings: BaseSettings) -> tuple[Limit, dict[str, str]]:
    """The limit in Scrapy's own settings, and where its parts were set; with the add-on it holds
    for all nodes together.
    """
    name = "CONCURRENT_REQUESTS_PER_DOMAIN"
    where = _source(settings, name)
    concurrency = check_integer(settings.get(name), where, least=1, text=True)
    jitter, name_of_jitter = _jitter(settings)
    limit = Limit(concurrency, _number(settings, "DOWNLOAD_DELAY", 0.0), jitter)
    names = {"concurrency": name, "delay": "DOWNLOAD_DELAY", "jitter": name_of_jitter}
    return limit, {part: _source(settings, setting) for part, setting in names.items()}


def _check_retries(settings: BaseSettings) -> None:
    """Raise `SettingsError` for a setting that Scrapy could not read, either: it is needed at each
    refusal, and each of these requests would fail.
    """
    codes = "a list of HTTP statuses, like [500, 503]"
    for name, read, allowed in (
        ("RETRY_ENABLED", settings.getbool, "True or False"),
        ("HTTPERROR_ALLOW_ALL", settings.getbool, "True or False"),
        ("RETRY_HTTP_CODES", lambda name: [*map(int, settings.getlist(name))], codes),
    ):
        try:
            read(name)
        except (TypeError, ValueError):
            raise not_allowed(settings.get(name), _source(settings, name), allowed) from None


def _jitter(settings: BaseSettings) -> tuple[float, str]:
    """The jitter and the setting that has it, as in Scrapy 2.19: the older one counts at a higher
    priority.
    """
    old, new = "RANDOMIZE_DOWNLOAD_DELAY", "DOWNLOAD_DELAY_JITTER"
    if (settings.getpriority(old) or 0) > (settings.getpriority(new) or 0):
        is_random = check_truth(settings.get(old), _source(settings, old), text=True)
        return (0.5 if is_random else 0.0), old
    return min(1.0, _number(settings, new, 0.5)), new


def _source(settings: BaseSettings, name: str) -> str:
    """Where one of Scrapy's settings was set, as text."""
    texts = {
        SETTINGS_PRIORITIES["default"]: f"Scrapy's default of {name}",
        ATTRIBUTE_PRIORITY: f"the spider's {SPIDER_ATTRIBUTES.get(name, name)}",
        SETTINGS_PRIORITIES["spider"]: f"{name} in the spider's custom_settings",
        SETTINGS_PRIORITIES["cmdline"]: f"{name} on the command line",
    }
    return texts.get(settings.getpriority(name) or 0, name)


def _number(settings: BaseSettings, name: str, default: float) -> float:
    """One of Scrapy's settings: a number >= 0."""
    value = settings.get(name)
    return check_number(default if value is None else value, _source(settings, name), text=True)


def log_start(
    node: str, server: str, prefix: str, is_embedded: bool, settings: SemaphoreSettings
) -> None:
    """Log this node's name, the server without its password, and the limits in its settings."""
    limits, first = settings.limits, settings.scopes[0]
    embedded = " (embedded: only for this user's crawls on this machine)" if is_embedded else ""
    logger.info(
        "Node %s shares its limits with all nodes at %s%s%s. Default of %s: %s.",
        node,
        server,
        prefix_named(prefix),
        embedded,
        DEFAULT_OF[first] if isinstance(first, str) else "a name",
        limits.default,
    )
    if own := [f"{clean(entry.name)} ({entry.limit or 'no limit'})" for entry in limits.named()]:
        more = f", and {len(own) - NAMED_MAX:,} more" if len(own) > NAMED_MAX else ""
        logger.info("Limits of their own: %s%s.", ", ".join(own[:NAMED_MAX]), more)


def log_origin_of_server(settings: BaseSettings, url_from: str) -> None:
    """Log which setting of scrapy-redis names the server. Warn if there are some, or a misspelt one
    of ours, and none names a server.
    """
    if url_from in SCRAPY_REDIS:
        logger.info(
            "%s names the server that holds the limits, as for scrapy-redis; SEMAPHORE_REDIS_URL "
            "can name another one, or be 'embedded' for this machine's own.",
            url_from,
        )
    if url_from:
        return
    names = sorted(str(name) for name in settings if name != "REDIS_URL")
    unused = [*misspelt_url(names), *(name for name in names if name.startswith("REDIS_"))]
    unused = [name for name in unused if settings[name]]
    problem = unusable_server(settings) or (
        f"{unused[0]} is set, but no setting names a server" if unused else None
    )
    if problem is not None:
        logger.warning(
            "%s. Only crawls on this machine share their limits: set SEMAPHORE_REDIS_URL to the "
            "address of a server that all nodes reach, or to 'embedded' if all run on this "
            "machine.",
            problem,
        )


def warn_of_mistakes(settings: BaseSettings, ours: SemaphoreSettings) -> None:
    """Warn of settings that are allowed, but probably mistaken."""
    for mistake in unknown_names(sorted(settings)):
        logger.warning(mistake)
    for name in ours.limits.exact:
        if hint := domain_hint(name):
            logger.warning("SEMAPHORE_LIMITS: %s", hint)
    has_function = any(map(callable, ours.scopes))
    for kind in ("host", *PREFIXED_KINDS, ALL):
        if kind == "host" and has_function:
            continue  # its scopes may have the names of hosts
        listed_as = "proxy" if kind == VIA else kind
        if ours.limits.names_kind(kind) and listed_as not in ours.scopes:
            logger.warning(
                "SEMAPHORE_LIMITS has limits of the kind %r, but SEMAPHORE_SCOPES lacks %r: they "
                "hold only for requests that name such a scope in meta['semaphore_scope'].",
                kind,
                listed_as,
            )
