"""Every `SEMAPHORE_*` setting, read once into one frozen dataclass."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semaphore_middleware.core.semaphore import default_node
from semaphore_middleware.errors import SettingsError
from semaphore_middleware.model.feedback import Backoff
from semaphore_middleware.model.limits import Limit, LimitTable, parse_limits
from semaphore_middleware.model.validation import LONGEST_S
from semaphore_middleware.redis.keys import check_prefix
from semaphore_middleware.redis.location import URL_NAMES, url_from_environment
from semaphore_middleware.scrapy.engine import end_crawl

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

NAMES = frozenset(
    f"SEMAPHORE_{name}"
    for name in (
        *("ENABLED", "REDIS_URL", "LIMITS", "SCOPE", "LEASE", "ACQUIRE_TIMEOUT", "RECOVERY_WAIT"),
        *("BACKOFF_CODES", "BACKOFF_START", "BACKOFF_MAX", "BACKOFF_TIMES", "OBEY_CRAWL_DELAY"),
        *("MAX_CRAWL_DELAY", "METRICS_PORT", "METRICS_HOST", "PREFIX", "NODE"),
    )
)
SCOPES = ("host", "registered_domain")


@dataclass(frozen=True, slots=True)
class SemaphoreSettings:
    """What the user asked for, checked. Times are in seconds."""

    url: str | None
    """The server; None means the embedded one."""
    url_from: str
    """Where `url` was set, for errors."""
    limits: LimitTable
    scope: str
    lease: float
    acquire_timeout: float | None
    recovery_wait: float
    metrics_port: int | None
    """0: any that is free; None: no metrics."""
    metrics_host: str
    prefix: str
    node: str
    backoff: Backoff
    backoff_codes: frozenset[int]
    """HTTP statuses that mean "not now"."""
    backoff_times: int
    """How often a request that was told so is made again."""
    obey_crawl_delay: bool
    max_crawl_delay: float

    @classmethod
    def read(cls, settings: BaseSettings) -> SemaphoreSettings:
        """Check Scrapy's settings. Raises `SettingsError`, which names the setting at fault."""
        lease = _seconds(settings, "SEMAPHORE_LEASE", 15.0, least=0.1)
        recovery_wait = _seconds(settings, "SEMAPHORE_RECOVERY_WAIT", lease, least=0.0)
        timeout = None
        if settings.get("SEMAPHORE_ACQUIRE_TIMEOUT") is not None:
            timeout = _seconds(settings, "SEMAPHORE_ACQUIRE_TIMEOUT", 0.0, least=0.001)
        url, url_from = _url(settings)
        return cls(
            url=url,
            url_from=url_from,
            limits=_limits(settings),
            scope=_one_of(settings, "SEMAPHORE_SCOPE", SCOPES),
            lease=lease,
            acquire_timeout=timeout,
            recovery_wait=recovery_wait,
            metrics_port=_port(settings, "SEMAPHORE_METRICS_PORT"),
            metrics_host=_host(settings, "SEMAPHORE_METRICS_HOST", "127.0.0.1"),
            prefix=check_prefix(settings.get("SEMAPHORE_PREFIX", "semaphore"), "SEMAPHORE_PREFIX"),
            node=settings.get("SEMAPHORE_NODE") or default_node(),
            backoff=_backoff(settings),
            backoff_codes=_statuses(settings, "SEMAPHORE_BACKOFF_CODES", (429, 503)),
            backoff_times=_count(settings, "SEMAPHORE_BACKOFF_TIMES", 10),
            obey_crawl_delay=_truth(
                settings, "SEMAPHORE_OBEY_CRAWL_DELAY", settings.getbool("ROBOTSTXT_OBEY")
            ),
            max_crawl_delay=_seconds(settings, "SEMAPHORE_MAX_CRAWL_DELAY", 60.0, least=0.0),
        )


def is_enabled(settings: BaseSettings) -> bool:
    """Whether `SEMAPHORE_ENABLED` is on. A bad value ends the crawl here."""
    try:
        return _truth(settings, "SEMAPHORE_ENABLED", True)
    except SettingsError as error:
        end_crawl(error)


def _url(settings: BaseSettings) -> tuple[str | None, str]:
    for name in URL_NAMES:
        if settings.get(name):
            return str(settings.get(name)), name
    return url_from_environment()


def _limits(settings: BaseSettings) -> LimitTable:
    where = "CONCURRENT_REQUESTS_PER_DOMAIN"
    try:
        concurrency = int(settings.get(where))
        if concurrency != float(settings.get(where)):
            raise ValueError
    except (TypeError, ValueError):
        concurrency = 0
    if concurrency < 1:
        raise SettingsError(f"{where} = {settings.get(where)!r}: allowed is an integer >= 1")
    default = Limit(
        concurrency,
        _seconds(settings, "DOWNLOAD_DELAY", 0.0, least=0.0),
        _jitter(settings),
    )
    return parse_limits(
        _dict(settings, "SEMAPHORE_LIMITS"),
        _dict(settings, "DOWNLOAD_SLOTS"),
        default,
        "SEMAPHORE_LIMITS",
    )


def _backoff(settings: BaseSettings) -> Backoff:
    start = _seconds(settings, "SEMAPHORE_BACKOFF_START", 1.0, least=0.001)
    return Backoff(start, _seconds(settings, "SEMAPHORE_BACKOFF_MAX", max(300.0, start), start))


def _statuses(settings: BaseSettings, name: str, default: tuple[int, ...]) -> frozenset[int]:
    value = settings.get(name)
    try:
        statuses = default if value is None else [int(status) for status in settings.getlist(name)]
        if not all(100 <= status <= 599 for status in statuses):
            raise ValueError
    except (TypeError, ValueError):
        raise SettingsError(
            f"{name} = {value!r}: allowed is a list of HTTP statuses, like [429, 503], or []"
        ) from None
    return frozenset(statuses)


def _count(settings: BaseSettings, name: str, default: int) -> int:
    number = _seconds(settings, name, float(default), least=0.0)
    if number != int(number):
        raise SettingsError(f"{name} = {settings.get(name)!r}: allowed is an integer >= 0")
    return int(number)


def _jitter(settings: BaseSettings) -> float:
    """Scrapy 2.19 goes by the older of its two settings where that is set at a higher priority."""
    old, new = "RANDOMIZE_DOWNLOAD_DELAY", "DOWNLOAD_DELAY_JITTER"
    if (settings.getpriority(old) or 0) > (settings.getpriority(new) or 0):
        return 0.5 if settings.getbool(old) else 0.0
    return min(1.0, _seconds(settings, new, 0.5, least=0.0))


def _dict(settings: BaseSettings, name: str) -> Mapping[str, Any]:
    value = settings.get(name) or {}
    if isinstance(value, str):  # from the command line
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, Mapping):
        raise SettingsError(
            f"{name} = {settings.get(name)!r}: allowed is a dict of hosts to limits, on the "
            "command line as JSON, like '{\"example.com\": 2}'"
        )
    return value


def _seconds(settings: BaseSettings, name: str, default: float, least: float) -> float:
    value = settings.get(name)
    try:
        seconds = default if value is None else float(value)
        if isinstance(value, bool) or not least <= seconds <= LONGEST_S:
            raise ValueError
    except (TypeError, ValueError):
        raise SettingsError(
            f"{name} = {value!r}: allowed is a number >= {least:g} and <= 1e9"
        ) from None
    return seconds


def _port(settings: BaseSettings, name: str) -> int | None:
    value = settings.get(name)
    if value is None or value == "":  # as an environment has it that does not set it
        return None
    try:
        port = int(value)
        if isinstance(value, bool) or port != float(value) or not 0 <= port <= 65535:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise SettingsError(
            f"{name} = {value!r}: allowed is a port, 0 (any that is free) to 65535, or None"
        ) from None
    return port


def _host(settings: BaseSettings, name: str, default: str) -> str:
    value = settings.get(name) or default
    if not isinstance(value, str):
        raise SettingsError(
            f"{name} = {value!r}: allowed is an address to listen on, like '127.0.0.1' or '0.0.0.0'"
        )
    return value


def _truth(settings: BaseSettings, name: str, default: bool) -> bool:
    try:
        return settings.getbool(name, default)
    except ValueError:
        raise SettingsError(f"{name} = {settings.get(name)!r}: allowed is True or False") from None


def _one_of(settings: BaseSettings, name: str, allowed: tuple[str, ...]) -> str:
    value = settings.get(name) or allowed[0]
    if value not in allowed:
        raise SettingsError(f"{name} = {value!r}: allowed is {' or '.join(map(repr, allowed))}")
    return str(value)
