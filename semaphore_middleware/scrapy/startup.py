"""Log lines at the start of a crawl: its node, its server, its limit, and likely mistakes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from semaphore_middleware.model.hosts import ALL, PREFIXED_KINDS, host_within, normal_host
from semaphore_middleware.model.limits import LimitTable
from semaphore_middleware.redis.location import Server
from semaphore_middleware.scrapy.settings import SETTINGS
from semaphore_middleware.scrapy.throttling import log_both

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

    from semaphore_middleware.scrapy.scopes import Namer

logger = logging.getLogger(__name__)


def log_start(node: str, url: str, is_embedded: bool, limits: LimitTable) -> None:
    """Log this node's name, the server, and the default limit."""
    default = limits.default
    assert default is not None  # CONCURRENT_REQUESTS_PER_DOMAIN has a number
    delay = f", delay {default.delay:g} s" if default.delay else ""
    embedded = " (embedded: only for this user's crawls on this machine)" if is_embedded else ""
    logger.info(
        "Node %s shares its limits with all nodes at %s%s. Default limit of a site: concurrency "
        "%d%s.",
        node,
        Server(url, 1),  # shows no password
        embedded,
        default.concurrency,
        delay,
    )


def warn_of_mistakes(
    settings: BaseSettings, limits: LimitTable, scopes: Sequence[str | Namer]
) -> None:
    """Warn of settings that are allowed, but hardly meant."""
    for name in sorted(settings):
        if name.startswith("SEMAPHORE_") and name not in SETTINGS:
            alike = get_close_matches(name, SETTINGS, 1, cutoff=0.8)
            hint = f"; did you mean {alike[0]}?" if alike else ""
            logger.warning("%s: there is no such setting%s", name, hint)
    log_both(settings, dict(limits.exact))
    for kind in (*PREFIXED_KINDS, ALL):
        if limits.names_kind(kind) and kind not in scopes:
            logger.warning(
                "SEMAPHORE_LIMITS has limits of the kind %r, which SEMAPHORE_SCOPES does not list: "
                "they hold only for requests that name such a scope in meta['semaphore_scope'].",
                kind,
            )
    for name in limits.exact:
        if name == normal_host(name) and (host := host_within(name)):
            logger.warning(
                "SEMAPHORE_LIMITS[%r] is not the name of a site: write its host alone, %r. As it "
                "is, this limit holds only for requests with this meta['semaphore_scope'].",
                name,
                host,
            )
