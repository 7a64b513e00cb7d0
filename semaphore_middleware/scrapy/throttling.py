"""The names of Scrapy's own throttling, and their meaning here.

They come from Scrapy's open pull request 6931: the settings `THROTTLING_SCOPES` and
`THROTTLING_SCOPE_CONCURRENCY`, and in a request's meta `throttling_scopes`, `dont_throttle` and
`delay`. If a project also uses our names for the same, ours win.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from scrapy.settings import SETTINGS_PRIORITIES

from semaphore_middleware.model.validation import check_number

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)

OLD_CONCURRENCY = "CONCURRENT_REQUESTS_PER_DOMAIN"
NEW_CONCURRENCY = "THROTTLING_SCOPE_CONCURRENCY"
SCOPES_KEY, SKIP_KEY, DELAY_KEY = "throttling_scopes", "dont_throttle", "delay"
DELAYED_KEY = "semaphore_delayed"
"""In a request's meta: the delay already over, also for its retries."""


def concurrency_setting(settings: BaseSettings) -> str:
    """The setting of a scope's default concurrency: the one of higher priority, as in Scrapy; the
    old one if the user has set neither.
    """
    old, new = (_priority(settings, name) for name in (OLD_CONCURRENCY, NEW_CONCURRENCY))
    is_old = old > new or (old == new and old <= SETTINGS_PRIORITIES["default"])
    return OLD_CONCURRENCY if is_old else NEW_CONCURRENCY


def _priority(settings: BaseSettings, name: str) -> int:
    priority = settings.getpriority(name)
    return -1 if priority is None else priority


def log_both(settings: BaseSettings, limits_by_name: dict[str, Any]) -> None:
    """Log the setting in force where two compete."""
    default = SETTINGS_PRIORITIES["default"]
    names = (OLD_CONCURRENCY, NEW_CONCURRENCY)
    if all(_priority(settings, name) > default for name in names):
        used = concurrency_setting(settings)
        logger.info("%s and %s are both set: %s counts.", *names, used)
    both = sorted(limits_by_name.keys() & settings.getdict("THROTTLING_SCOPES").keys())
    if both:
        logger.info(
            "SEMAPHORE_LIMITS and THROTTLING_SCOPES both name %s: SEMAPHORE_LIMITS counts.",
            ", ".join(map(repr, both)),
        )


def delay_of(request: Request) -> float:
    """The delay of a request, in seconds; 0 once the delay is over. Raises `SettingsError`."""
    delay = request.meta.get(DELAY_KEY)
    if not delay or request.meta.get(DELAYED_KEY) == delay:
        return 0.0
    return check_number(delay, f"{request}: meta[{DELAY_KEY!r}]")


def has_waited(request: Request) -> None:
    """Note the end of a request's delay."""
    request.meta[DELAYED_KEY] = request.meta.get(DELAY_KEY)
