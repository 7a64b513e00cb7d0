"""What a crawl goes by, said at its start: Scrapy's log shows only what the add-on made of it."""

from __future__ import annotations

import logging
from difflib import get_close_matches
from typing import TYPE_CHECKING

from semaphore_middleware.model.hosts import host_within, normal_host
from semaphore_middleware.model.limits import LimitTable
from semaphore_middleware.redis.location import Server
from semaphore_middleware.scrapy.settings import NAMES

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)


def introduce(node: str, url: str, is_embedded: bool, limits: LimitTable) -> None:
    """Say who this is, with whom it shares, and what."""
    default = limits.default
    assert default is not None  # CONCURRENT_REQUESTS_PER_DOMAIN has a number
    delay = f", {default.delay:g} s from one start to the next" if default.delay else ""
    whose = " (embedded, for this user's crawls on this machine only)" if is_embedded else ""
    logger.info(
        "This is node %s. All nodes at %s%s together have at most %d open at a site%s, where no "
        "other limit is set for it.",
        node,
        Server(url, 1),  # shows no password
        whose,
        default.concurrency,
        delay,
    )


def warn_of_mistakes(settings: BaseSettings, limits: LimitTable) -> None:
    """What is allowed, and yet can hardly be meant."""
    for name in sorted(settings):
        if name.startswith("SEMAPHORE_") and name not in NAMES:
            alike = get_close_matches(name, NAMES, 1, cutoff=0.8)
            hint = f"; did you mean {alike[0]}?" if alike else ""
            logger.warning("%s: there is no such setting%s", name, hint)
    for name in limits.exact:
        if name == normal_host(name) and (host := host_within(name)):
            logger.warning(
                "SEMAPHORE_LIMITS[%r]: a site goes by its host alone, %r. This one is for requests "
                "with that text as their meta['semaphore_scope'].",
                name,
                host,
            )
